//! The C ABI from outside: its header, and programs in C and C++ that use it.

mod header;
mod programs;
mod support;
