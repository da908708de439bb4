//! The macros that turn a line of the symbol table into a method.
//!
//! `[has] name = "glName" (arguments) -> kind, "counted";` defines the method `name`; an optional symbol has `[has]`,
//! the method that returns whether it was found. OpenGL's functions return no status: the error is queried afterwards,
//! and stays set until then. A call whose error the next queried call reports is `quiet`.
//!
//! | kind | C arguments added, C result | chosen to fail | counted |
//! |---|---|---|---|
//! | `truth` | `EGLBoolean`, then `eglGetError` | not called | |
//! | `released_truth` | the same | called | − 1 |
//! | `settled_truth` | the same | called | |
//! | `handle T` | `T`, never null, then `eglGetError` | not called | + 1 |
//! | `asked` | nothing, then `glGetError` | not called | |
//! | `asked_for T` | `T`, then `glGetError` | not called | |
//! | `waited u32` | `u32`, then `glGetError` if that is `GL_WAIT_FAILED` | not called | |
//! | `made T` | `T`, never zero, then `glGetError` | not called | + 1 |
//! | `one` | `(1, *mut u32)`, then `glGetError` | not called | + 1 |
//! | `quiet` | nothing | not called | |
//! | `ended` | nothing | called | − 1 |
//! | `end_one` | `(1, *const u32)` | called | − 1 |
//! | `raw T` | `T` | by hand | |

/// The C type of a call.
macro_rules! gl_raw {
    (truth, ($($ty:ty),*)) => { unsafe extern "C" fn($($ty),*) -> u32 };
    (released_truth, ($($ty:ty),*)) => { unsafe extern "C" fn($($ty),*) -> u32 };
    (settled_truth, ($($ty:ty),*)) => { unsafe extern "C" fn($($ty),*) -> u32 };
    (one, ()) => { unsafe extern "C" fn(i32, *mut u32) };
    (end_one, ()) => { unsafe extern "C" fn(i32, *const u32) };
    ($kind:ident $of:ty, ($($ty:ty),*)) => { unsafe extern "C" fn($($ty),*) -> $of };
    ($kind:ident, ($($ty:ty),*)) => { unsafe extern "C" fn($($ty),*) };
}

/// The method of a call.
macro_rules! gl_method {
    (truth, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*)) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), GlRefused> {
            let call = self.enter(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            self.truth($c, unsafe { call($($arg),*) })
        }}
    };
    (released_truth, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*), $kind:literal) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), GlRefused> {
            let (call, chosen) = self.enter_anyway(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            self.truth($c, unsafe { call($($arg),*) })?;
            self.count($kind, -1);
            chosen
        }}
    };
    (settled_truth, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*)) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), GlRefused> {
            let (call, chosen) = self.enter_anyway(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            self.truth($c, unsafe { call($($arg),*) })?;
            chosen
        }}
    };
    (handle $of:ty, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*) $(, $kind:literal)?) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$of, GlRefused> {
            let call = self.enter(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            let made = unsafe { call($($arg),*) };
            self.truth($c, (!made.is_null()).into())?;
            $(self.count($kind, 1);)?
            Ok(made)
        }}
    };
    (asked, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*)) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), GlRefused> {
            let call = self.enter(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            unsafe { call($($arg),*) };
            self.answer($c)
        }}
    };
    (asked_for $of:ty, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*)) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$of, GlRefused> {
            let call = self.enter(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            let answer = unsafe { call($($arg),*) };
            self.answer($c)?;
            Ok(answer)
        }}
    };
    (waited $of:ty, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*)) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$of, GlRefused> {
            let call = self.enter(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            let answer = unsafe { call($($arg),*) };
            if answer == consts::WAIT_FAILED {
                self.answer($c)?;
            }
            Ok(answer)
        }}
    };
    (made $of:ty, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*) $(, $kind:literal)?) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$of, GlRefused> {
            let call = self.enter(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            let made = unsafe { call($($arg),*) };
            self.answer($c)?;
            if made == <$of>::default() {
                return Err(GlRefused { call: $c, status: GlStatus::NULL_HANDLE });
            }
            $(self.count($kind, 1);)?
            Ok(made)
        }}
    };
    (one, $name:ident, $c:literal, (), $kind:literal) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self) -> Result<u32, GlRefused> {
            let call = self.enter(self.$name, $c)?;
            let mut made = 0;
            // SAFETY: the caller keeps the C function's contract; `made` has room for one name.
            unsafe { call(1, &raw mut made) };
            self.answer($c)?;
            if made == 0 {
                return Err(GlRefused { call: $c, status: GlStatus::NULL_HANDLE });
            }
            self.count($kind, 1);
            Ok(made)
        }}
    };
    (quiet, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*)) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), GlRefused> {
            let call = self.enter(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            unsafe { call($($arg),*) };
            Ok(())
        }}
    };
    (ended, $name:ident, $c:literal, ($($arg:ident: $ty:ty),*), $kind:literal) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), GlRefused> {
            let (call, chosen) = self.enter_anyway(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract.
            unsafe { call($($arg),*) };
            self.count($kind, -1);
            chosen
        }}
    };
    (end_one, $name:ident, $c:literal, (), $kind:literal) => {
        gl_method! { @doc $c; pub unsafe fn $name(&self, name: u32) -> Result<(), GlRefused> {
            let (call, chosen) = self.enter_anyway(self.$name, $c)?;
            // SAFETY: the caller keeps the C function's contract; one name is passed.
            unsafe { call(1, &raw const name) };
            self.count($kind, -1);
            chosen
        }}
    };
    (raw $of:ty, $name:ident, $c:literal, $args:tt) => {};
    (@doc $c:literal; $($method:tt)*) => {
        #[doc = concat!("`", $c, "`")]
        ///
        /// # Safety
        ///
        /// The contract of the C function.
        $($method)*
    };
}

/// The sizes of a call's arguments, for comparison with the headers.
#[cfg(test)]
macro_rules! gl_sizes {
    (one, ()) => { &[4, size_of::<usize>()] };
    (end_one, ()) => { &[4, size_of::<usize>()] };
    ($kind:ident $($of:ty)?, ($($ty:ty),*)) => { &[$(size_of::<$ty>(),)*] };
}

macro_rules! gl_table {
    (
        $(#[$meta:meta])*
        pub struct $table:ident;
        $(
            $([$has:ident])? $name:ident = $c:literal
                ($($arg:ident: $ty:ty),* $(,)?) -> $kind:ident $($of:ty)? $(, $counted:literal)?;
        )*
    ) => {
        $(#[$meta])*
        pub struct $table {
            probe: Option<Arc<Probe>>,
            $($name: Option<gl_raw!($kind $($of)?, ($($ty),*))>,)*
        }

        impl $table {
            /// Looks up all symbols.
            fn resolve(probe: Option<Arc<Probe>>, find: &dyn Fn(&CStr) -> Option<NonNull<c_void>>) -> Self {
                $(
                    let name = CStr::from_bytes_with_nul(concat!($c, "\0").as_bytes());
                    // SAFETY: the prototype is that of Khronos' headers for this name; the library is
                    // never closed.
                    let $name = name.ok().and_then(find).map(|at| unsafe { as_function(at) });
                )*
                Self { probe, $($name,)* }
            }

            /// The C names of required symbols that were not found.
            fn lacking(&self) -> Vec<&'static str> {
                let mut lacking = Vec::new();
                $(
                    let optional = !<[&str]>::is_empty(&[$(stringify!($has))?]);
                    if self.$name.is_none() && !optional {
                        lacking.push($c);
                    }
                )*
                lacking
            }

            $($(
                #[doc = concat!("Whether `", $c, "` was found.")]
                pub fn $has(&self) -> bool {
                    self.$name.is_some()
                }
            )?)*

            #[cfg(test)]
            pub(crate) const SIZES: &[(&str, &[usize])] =
                &[$(($c, gl_sizes!($kind $($of)?, ($($ty),*)))),*];
        }

        /// The C function pointers.
        #[allow(clippy::too_many_arguments)]
        impl $table {
            $(gl_method! { $kind $($of)?, $name, $c, ($($arg: $ty),*) $(, $counted)? })*
        }
    };
}
