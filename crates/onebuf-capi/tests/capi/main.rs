//! The C ABI from outside: its header, and programs in C, C++ and Fortran that use it.

mod coverage;
mod declarations;
mod fortran;
mod fortran_header;
mod fortran_layout;
mod fortran_names;
mod fortran_objects;
mod header;
mod programs;
mod support;
mod talk;
