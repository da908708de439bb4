//! Version
//!
//! Programs built against one minor version run with every later patch version. Before 1.0 a minor version may break
//! compatibility, and the soname contains it (`libonebuf.so.0.MINOR`); from 1.0 on only a major version may
//! (`libonebuf.so.MAJOR`).

use std::ffi::c_char;

/// Major version of this header.
pub const ONEBUF_VERSION_MAJOR: u32 = 0;
/// Minor version of this header.
pub const ONEBUF_VERSION_MINOR: u32 = 2;
/// Patch version of this header.
pub const ONEBUF_VERSION_PATCH: u32 = 0;

/// The library's version as text, such as `0.2.0`, or `0.2.0-dev` before its release.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_version() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}

/// The library's version as a number: `major * 1000000 + minor * 1000 + patch`.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_version_number() -> u32 {
    ONEBUF_VERSION_MAJOR * 1_000_000 + ONEBUF_VERSION_MINOR * 1_000 + ONEBUF_VERSION_PATCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_packages_version() {
        let parts = [ONEBUF_VERSION_MAJOR, ONEBUF_VERSION_MINOR, ONEBUF_VERSION_PATCH];
        let package = env!("CARGO_PKG_VERSION").split('-').next();
        assert_eq!(Some(&*parts.map(|n| n.to_string()).join(".")), package);
    }
}
