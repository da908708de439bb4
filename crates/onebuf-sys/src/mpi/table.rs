//! The macro that turns a line of the symbol table into a method.
//!
//! `[has] name = MPI_Name(arguments) -> kind, "counted";` defines the method `name`. An optional symbol has `[has]`, the method
//! that returns whether it was found. Each function is called with the handles of its library, `int` or pointer.
//!
//! | kind | arguments added at the end | chosen to fail | counted |
//! |---|---|---|---|
//! | `status` | | not called | |
//! | `get` | `int *`, made a `Result` | not called | |
//! | `create T` | `T *`, made a `Result` | not called | + 1 |
//! | `change T` | its argument, by a pointer | not called | |
//! | `free T` | its argument, by a pointer | called | − 1 |
//! | `raw T` | by hand, with the C type for the handle `H` | by hand | by hand |

macro_rules! c_name {
    ($symbol:ident) => {{
        const NAME: &CStr =
            match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };
        NAME
    }};
}

/// The C type of a call, for a library with handles `$h`.
macro_rules! raw {
    ($h:ident, status, ($($ty:ty),*)) => { unsafe extern "C" fn($(<$ty as Native<$h>>::C),*) -> i32 };
    ($h:ident, get, ($($ty:ty),*)) => { unsafe extern "C" fn($(<$ty as Native<$h>>::C,)* *mut i32) -> i32 };
    ($h:ident, create $of:ty, ($($ty:ty),*)) => { unsafe extern "C" fn($(<$ty as Native<$h>>::C,)* *mut $h) -> i32 };
    ($h:ident, change $of:ty, ()) => { unsafe extern "C" fn(*mut $h) -> i32 };
    ($h:ident, free $of:ty, ()) => { unsafe extern "C" fn(*mut $h) -> i32 };
    ($h:ident, raw $of:ty, ()) => { $of };
}

/// Calls the function, with its handles as `$h`.
macro_rules! call {
    ($self:ident, $name:ident, $symbol:ident, $h:ident, ($($arg:expr),*)) => {{
        let missing = MpiRefused { call: stringify!($symbol), status: MpiStatus::NOT_LOADED };
        match &$self.calls {
            Calls::Ints(calls) => {
                #[allow(dead_code)] // Some calls take no handle.
                type $h = i32;
                let call = calls.$name.ok_or(missing)?;
                // SAFETY: the caller keeps the C function's contract.
                unsafe { call($($arg),*) }
            }
            Calls::Pointers(calls) => {
                #[allow(dead_code)]
                type $h = *mut c_void;
                let call = calls.$name.ok_or(missing)?;
                // SAFETY: the caller keeps the C function's contract.
                unsafe { call($($arg),*) }
            }
        }
    }};
}

/// The method of a call.
macro_rules! method {
    (status, $name:ident, $symbol:ident, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), MpiRefused> {
                self.enter(stringify!($symbol))?;
                let status = call!(self, $name, $symbol, H, ($(Native::<H>::native($arg)),*));
                answer(stringify!($symbol), status)
            }
        }
    };
    (get, $name:ident, $symbol:ident, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<i32, MpiRefused> {
                self.enter(stringify!($symbol))?;
                let mut got = 0;
                let status = call!(self, $name, $symbol, H, ($(Native::<H>::native($arg),)* &raw mut got));
                answer(stringify!($symbol), status).map(|()| got)
            }
        }
    };
    (create $of:ty, $name:ident, $symbol:ident, ($($arg:ident: $ty:ty),*), $kind:literal) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$of, MpiRefused> {
                self.enter(stringify!($symbol))?;
                let mut made = 0;
                let status = call!(self, $name, $symbol, H, ($(Native::<H>::native($arg),)* Out::<H>::new(&mut made).at()));
                answer(stringify!($symbol), status)?;
                self.count($kind, 1);
                Ok(<$of>::from_word(made))
            }
        }
    };
    (change $of:ty, $name:ident, $symbol:ident, ()) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, object: $of) -> Result<(), MpiRefused> {
                self.enter(stringify!($symbol))?;
                let mut word = object.word();
                let status = call!(self, $name, $symbol, H, (Out::<H>::new(&mut word).at()));
                answer(stringify!($symbol), status)
            }
        }
    };
    (free $of:ty, $name:ident, $symbol:ident, (), $kind:literal) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, object: $of) -> Result<(), MpiRefused> {
                let chosen = self.enter(stringify!($symbol));
                if crate::fork::is_child() {
                    return chosen;
                }
                let mut word = object.word();
                let status = call!(self, $name, $symbol, H, (Out::<H>::new(&mut word).at()));
                let done = answer(stringify!($symbol), status);
                if done.is_ok() {
                    self.count($kind, -1);
                }
                chosen.and(done)
            }
        }
    };
    (raw $of:ty, $name:ident, $symbol:ident, ()) => {};
    (@doc $symbol:ident $($method:tt)*) => {
        #[doc = concat!("`", stringify!($symbol), "`.")]
        ///
        /// # Safety
        ///
        /// The contract of the C function.
        $($method)*
    };
}

macro_rules! table {
    ($(
        $([$has:ident])? $name:ident = $symbol:ident ($($arg:ident: $ty:ty),* $(,)?) -> $kind:ident $($of:ty)? $(, $counted:literal)?;
    )*) => {
        /// The functions of a library whose handles have the type `H`.
        struct Functions<H: HandleAbi> {
            $($name: Option<raw!(H, $kind $($of)?, ($($ty),*))>,)*
        }

        impl<H: HandleAbi> Functions<H> {
            fn resolve(loaded: &Loaded) -> Self {
                // SAFETY: the prototypes are those of MPI's headers for libraries with such handles; a library is never closed.
                Self { $($name: loaded.symbol(c_name!($symbol)).map(|at| unsafe { as_function(at) }),)* }
            }

            /// The C names of required symbols that were not found.
            fn lacking(&self) -> Vec<&'static str> {
                let mut lacking = Vec::new();
                $({
                    let optional = !<[&str]>::is_empty(&[$(stringify!($has))?]);
                    if self.$name.is_none() && !optional {
                        lacking.push(stringify!($symbol));
                    }
                })*
                lacking
            }
        }

        #[allow(clippy::too_many_arguments)] // MPI's calls have as many.
        impl Mpi {
            $($(
                #[doc = concat!("Whether the library has `", stringify!($symbol), "`.")]
                pub fn $has(&self) -> bool {
                    match &self.calls {
                        Calls::Ints(calls) => calls.$name.is_some(),
                        Calls::Pointers(calls) => calls.$name.is_some(),
                    }
                }
            )?)*

            $(method! { $kind $($of)?, $name, $symbol, ($($arg: $ty),*) $(, $counted)? })*
        }

        /// Each row as text, for the comparison with the headers: name, arguments, kind, whether it is optional.
        #[cfg(test)]
        const ROWS: &[(&str, &[&str], &str, bool)] = &[$((
            stringify!($symbol),
            &[$(stringify!($ty)),*],
            stringify!($kind $($of)?),
            !<[&str]>::is_empty(&[$(stringify!($has))?]),
        )),*];
    };
}
