//! Numbered examples, to be read in order; see the files beside this one.
