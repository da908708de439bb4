//! Tests of the program as users run it: its output and exit status.

mod bench;
mod book;
mod cache;
mod demo;
mod liars;
mod network;
mod peers;
mod privileged;
mod program;
mod ranks;
mod seeing;
mod send;
mod support;
mod terminal;
