//! How a line of the symbol table becomes a call.
//!
//! `struct Table in PLACES` says where its library is looked for, CUDA's and HIP's.
//! `[has] name = "cuName" | "hipName" (arguments) -> kind, "counted";` makes the method `name`. An empty
//! name says that this API has no such call; an optional symbol has `[has]`, the method that says
//! whether it was found. An error names the call as its own API does.
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
                // SAFETY: the caller keeps the C function's contract; `got` is a place for the answer.
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
                // SAFETY: the caller keeps the C function's contract; `made` is a place for the answer.
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
        /// The call of that meaning; see the table in the source for its names.
        ///
        /// # Safety
        ///
        /// The contract of the C function.
        #[inline]
        $($method)*
    };
}

/// The sizes of a call's arguments, to be held against the headers.
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
            /// Opens the library and looks its symbols up. Calls nothing in it.
            ///
            /// `library` is a path or a soname, or `none`; without it the library's variable (`ONEBUF_…_LIB`) is
            /// asked, and then the usual names are tried. Every call goes through `probe`, where there is one.
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

            /// Looks every symbol up; those that this API has not are never asked for.
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

            /// The C names of the symbols that are required, and were not found.
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

            /// Asks the probe, if there is one, whether this call is the one to fail.
            #[inline]
            fn enter<F>(&self, at: Option<F>, names: [&'static str; 2]) -> Result<At<F>, Refused> {
                let (at, chosen) = self.enter_anyway(at, names)?;
                chosen.map(|()| at)
            }

            /// The same for a call that is made whether it is to fail or not.
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

            /// Whose calls they are.
            pub fn flavor(&self) -> Flavor {
                self.flavor
            }

            #[cfg(all(test, target_pointer_width = "64"))]
            pub(crate) const SIZES: &[([&str; 2], &[usize])] =
                &[$(([$cuda, $hip], sizes!($kind $($of)?, ($($ty),*)))),*];
        }

        /// The calls themselves, with the arguments of C.
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
