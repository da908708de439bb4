//! Libraries that work on class A's memory: loaded at run time, a printed skip if missing.

use crate::absent;
use onebuf_sys::loader::{self, Loaded};

/// Loads the library; the environment variable may name another file, or `none`.
///
/// # Panics
/// If it is missing in strict mode.
pub(super) fn open(name: &'static str, variable: &str, soname: &str, hint: &str) -> Option<Loaded> {
    match loader::open(name, None, variable, &[soname], hint) {
        Ok(loaded) => Some(loaded),
        Err(missing) => {
            absent(name, &format!("{}; {}", missing.reason, missing.hint));
            None
        }
    }
}

/// Defines a table of functions that return an `int`; each line is a C prototype.
macro_rules! functions {
    ($table:ident: $($name:ident = $symbol:ident($($ty:ty),* $(,)?);)*) => {
        #[derive(Debug)]
        struct $table {
            $($name: unsafe extern "C" fn($($ty),*) -> i32,)*
        }

        impl $table {
            /// Looks up every symbol; the error is the first missing one.
            fn find(library: &onebuf_sys::Loaded) -> Result<Self, &'static str> {
                $(
                    let name = concat!(stringify!($symbol), "\0").as_bytes();
                    let name = std::ffi::CStr::from_bytes_with_nul(name).map_err(|_| stringify!($symbol))?;
                    let at = library.symbol(name).ok_or(stringify!($symbol))?;
                    // SAFETY: by its header, the library's function of that name has this prototype.
                    let $name = unsafe {
                        std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> i32>(at.as_ptr())
                    };
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}
pub(super) use functions;
