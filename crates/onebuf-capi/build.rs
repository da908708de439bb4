//! Sets the soname of the shared library, which programs linked to it look for at run time.

fn main() {
    let part = |name: &str| std::env::var(name).expect("cargo sets it");
    let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR"));
    // Before 1.0 a minor version may change the interface. `./dev install` names the files by the same rule.
    let version = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libonebuf.so.{version}");
    println!("cargo::rustc-env=ONEBUF_SONAME=libonebuf.so.{version}");
    println!("cargo::rerun-if-changed=build.rs");
}
