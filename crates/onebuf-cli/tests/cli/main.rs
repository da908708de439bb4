//! The program as its users run it: what it prints, and with what status it ends.

mod bench;
mod cache;
mod demo;
mod liars;
mod peers;
mod privileged;
mod program;
mod seeing;
mod send;
mod support;
mod terminal;
