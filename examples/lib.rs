//! Numbered examples, meant to be read in order; each is a file beside this one.
