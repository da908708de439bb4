//! The C ABI from outside: its header, and programs in C, C++ and Fortran that use it.

mod coverage;
mod fortran;
mod header;
mod programs;
mod support;
mod talk;
