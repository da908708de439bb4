//! The macros that turn a line of the symbol table into a method.
//!
//! `struct Table in PLACES` names the places of its libraries, CUDA's and HIP's. `[has] name = "cuName" | "hipName"
//! (arguments) -> kind, "counted";` defines the method `name`. An empty name means that this API has no such function;
//! an optional symbol has `[has]`, the method that returns whether it was found. Errors use the C name of the call in
//! its API.
//!
//! | kind | arguments added | chosen to fail | counted |
//! |---|---|---|---|
//! | `status` | | not called | |
//! | `get T` | `*mut T` in front, made a `Result` | not called | |
//! | `create T` | the same, never null | not called | + 1 |
//! | `count` | | not called | + 1 |
//! | `release` | | called | − 1 |
//! | `settle` | | called | |
//! | `raw T` | | by hand | |

/// The C type of a call.
macro_rules! raw {
    (get $of:ty, ($($ty:ty),*)) => { unsafe extern "system" fn(*mut $of $(, $ty)*) -> i32 };
    (create $of:ty, ($($ty:ty),*)) => { unsafe extern "system" fn(*mut $of $(, $ty)*) -> i32 };
    (raw $of:ty, ($($ty:ty),*)) => { unsafe extern "system" fn($($ty),*) -> $of };
    ($kind:ident, ($($ty:ty),*)) => { unsafe extern "system" fn($($ty),*) -> i32 };
}

/// The method of a call.
macro_rules! method {
    (status, $name:ident, $names:expr, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $names;
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), Refused> {
                let at = self.enter(self.$name, $names)?;
                // SAFETY: the caller keeps the C function's contract.
                at.answer(unsafe { (at.function)($($arg),*) })
            }
        }
    };
    (get $of:ty, $name:ident, $names:expr, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $names;
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$of, Refused> {
                let at = self.enter(self.$name, $names)?;
                let mut got = <$of>::default();
                // SAFETY: the caller keeps the C function's contract; `got` is valid for the result.
                at.answer(unsafe { (at.function)(&raw mut got $(, $arg)*) })?;
                Ok(got)
            }
        }
    };
    (create $of:ty, $name:ident, $names:expr, ($($arg:ident: $ty:ty),*), $kind:literal) => {
        method! { @doc $names;
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$of, Refused> {
                let at = self.enter(self.$name, $names)?;
                let mut made = <$of>::default();
                // SAFETY: the caller keeps the C function's contract; `made` is valid for the result.
                at.answer(unsafe { (at.function)(&raw mut made $(, $arg)*) })?;
                if made.is_null() {
                    return Err(Refused { call: at.name, status: CuStatus::NULL_HANDLE });
                }
                self.count($kind, 1);
                Ok(made)
            }
        }
    };
    (count, $name:ident, $names:expr, ($($arg:ident: $ty:ty),*), $kind:literal) => {
        method! { @doc $names;
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), Refused> {
                let at = self.enter(self.$name, $names)?;
                // SAFETY: the caller keeps the C function's contract.
                at.answer(unsafe { (at.function)($($arg),*) })?;
                self.count($kind, 1);
                Ok(())
            }
        }
    };
    (release, $name:ident, $names:expr, ($($arg:ident: $ty:ty),*), $kind:literal) => {
        method! { @doc $names;
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), Refused> {
                let (at, chosen) = self.enter_anyway(self.$name, $names)?;
                // SAFETY: the caller keeps the C function's contract.
                let done = at.answer(unsafe { (at.function)($($arg),*) });
                if done.is_ok() {
                    self.count($kind, -1);
                }
                chosen.and(done)
            }
        }
    };
    (settle, $name:ident, $names:expr, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $names;
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), Refused> {
                let (at, chosen) = self.enter_anyway(self.$name, $names)?;
                // SAFETY: the caller keeps the C function's contract.
                let done = at.answer(unsafe { (at.function)($($arg),*) });
                chosen.and(done)
            }
        }
    };
    (raw $of:ty, $name:ident, $names:expr, $args:tt) => {};
    (@doc $names:expr; $($method:tt)*) => {
        /// Calls the function of this name; see the table in the source for its C names.
        ///
        /// # Safety
        ///
        /// The contract of the C function.
        #[inline]
        $($method)*
    };
}

/// The sizes of a call's arguments, for comparison with the headers.
#[cfg(all(test, target_pointer_width = "64"))]
macro_rules! sizes {
    (get $of:ty, ($($ty:ty),*)) => { &[size_of::<usize>() $(, size_of::<$ty>())*] };
    (create $of:ty, ($($ty:ty),*)) => { &[size_of::<usize>() $(, size_of::<$ty>())*] };
    ($kind:ident $($of:ty)?, ($($ty:ty),*)) => { &[$(size_of::<$ty>(),)*] };
}

macro_rules! table {
    (
        $(#[$meta:meta])*
        pub struct $table:ident in $places:ident;
        $(
            $([$has:ident])? $name:ident = $cuda:literal | $hip:literal
                ($($arg:ident: $ty:ty),* $(,)?) -> $kind:ident $($of:ty)? $(, $counted:literal)?;
        )*
    ) => {
        $(#[$meta])*
        pub struct $table {
            flavor: Flavor,
            probe: Option<Arc<Probe>>,
            $($name: Option<raw!($kind $($of)?, ($($ty),*))>,)*
        }

        impl $table {
            /// Opens the library and looks up its symbols. Calls nothing in it.
            ///
            /// `library` is a path, a soname, or `none`. Without it the library's environment variable (`ONEBUF_…_LIB`)
            /// applies, and then the usual names are tried. Every call goes through `probe`, if there is one.
            pub fn load(
                flavor: Flavor,
                library: Option<&str>,
                probe: Option<Arc<Probe>>,
            ) -> Result<Self, Missing> {
                let Place { api, variable, names, hint } = flavor.pick($places);
                loader::require_64_bits(api)?;
                let loaded = loader::open(api, library, variable, names, hint)?;
                let table = Self::resolve(flavor, probe, &loaded);
                match table.lacking() {
                    lacking if lacking.is_empty() => Ok(table),
                    lacking => Err(Missing::incomplete(api, loaded, &lacking, hint)),
                }
            }

            /// Looks up all symbols, except those that this API does not have.
            fn resolve(flavor: Flavor, probe: Option<Arc<Probe>>, loaded: &Loaded) -> Self {
                $(
                    let $name = find(loaded, flavor.pick([$cuda, $hip])).map(|at| {
                        // SAFETY: the prototype is that of the API's headers for this name; the library
                        // is never closed.
                        unsafe { as_function(at) }
                    });
                )*
                Self { flavor, probe, $($name,)* }
            }

            /// The C names of required symbols that were not found.
            fn lacking(&self) -> Vec<&'static str> {
                let mut lacking = Vec::new();
                $({
                    let name = self.flavor.pick([$cuda, $hip]);
                    let optional = !<[&str]>::is_empty(&[$(stringify!($has))?]);
                    if self.$name.is_none() && !optional && !name.is_empty() {
                        lacking.push(name);
                    }
                })*
                lacking
            }

            $($(
                #[doc = concat!("Whether `", $cuda, "` or `", $hip, "` was found.")]
                pub fn $has(&self) -> bool {
                    self.$name.is_some()
                }
            )?)*

            /// Returns the function; refuses if it is missing, in a forked child, or if the probe fails this call.
            #[inline]
            fn enter<F>(&self, at: Option<F>, names: [&'static str; 2]) -> Result<At<F>, Refused> {
                let (at, chosen) = self.enter_anyway(at, names)?;
                chosen.map(|()| at)
            }

            /// Like `enter`, for a call that reaches the driver even if it is chosen to fail.
            #[inline]
            #[allow(clippy::type_complexity)]
            fn enter_anyway<F>(
                &self,
                at: Option<F>,
                names: [&'static str; 2],
            ) -> Result<(At<F>, Result<(), Refused>), Refused> {
                let name = self.flavor.pick(names);
                let refused = |status| Refused { call: name, status };
                let function = at.ok_or(refused(CuStatus::NOT_LOADED))?;
                if crate::fork::is_child() {
                    return Err(refused(CuStatus::FORKED));
                }
                let chosen = match &self.probe {
                    None => Ok(()),
                    Some(probe) => probe.enter(name).map_err(|code| refused(CuStatus(code))),
                };
                Ok((At { function, name }, chosen))
            }

            #[inline]
            fn count(&self, kind: &'static str, change: i64) {
                if let Some(probe) = &self.probe {
                    probe.count(kind, change);
                }
            }

            /// The API of this table.
            pub fn flavor(&self) -> Flavor {
                self.flavor
            }

            #[cfg(all(test, target_pointer_width = "64"))]
            pub(crate) const SIZES: &[([&str; 2], &[usize])] =
                &[$(([$cuda, $hip], sizes!($kind $($of)?, ($($ty),*)))),*];
        }

        /// The C function pointers.
        #[allow(clippy::too_many_arguments)]
        impl $table {
            $(method! { $kind $($of)?, $name, [$cuda, $hip], ($($arg: $ty),*) $(, $counted)? })*
        }

        impl fmt::Debug for $table {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?}, {:?})", stringify!($table), self.flavor, self.library())
            }
        }
    };
}
