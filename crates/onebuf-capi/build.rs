//! Gives the shared library its soname: what programs linked to it look for at run time.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libonebuf.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
