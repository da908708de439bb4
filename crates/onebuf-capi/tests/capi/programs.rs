//! Programs in C and C++.
