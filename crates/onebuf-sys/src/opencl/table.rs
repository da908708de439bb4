//! The macros that turn a line of a symbol table into a method.
//!
//! `[has] name = clName(arguments) -> kind;` defines the method `name`. An optional symbol has `[has]`, the method that
//! returns whether it was found. The kind determines which arguments are added at the end, and what the probe does with
//! the call:
//!
//! | kind | arguments added | chosen to fail | counted |
//! |---|---|---|---|
//! | `status` | | not called | |
//! | `info` | size, value, size_ret | not called | |
//! | `create T` | *errcode_ret, made a `Result`* | not called | `T` + 1 |
//! | `retain` | | not called | + 1 |
//! | `release` | | called | − 1 |
//! | `settle` | | called | |
//! | `enqueue` | wait_count, wait_list, event | not called | the event, if requested |
//! | `raw T` | | by hand | by hand |

#[cfg(test)]
pub(super) const PTR: usize = size_of::<usize>();

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

/// The C type of a call.
macro_rules! raw {
    (create $of:ty, ($($ty:ty),*)) => { unsafe extern "system" fn($($ty,)* *mut i32) -> $of };
    (info, ($($ty:ty),*)) => {
        unsafe extern "system" fn($($ty,)* usize, *mut c_void, *mut usize) -> i32
    };
    (enqueue, ($($ty:ty),*)) => {
        unsafe extern "system" fn($($ty,)* u32, *const ClEvent, *mut ClEvent) -> i32
    };
    (raw $of:ty, ($($ty:ty),*)) => { unsafe extern "system" fn($($ty),*) -> $of };
    ($kind:ident, ($($ty:ty),*)) => { unsafe extern "system" fn($($ty),*) -> i32 };
}

/// The method of a call.
macro_rules! method {
    (status, $name:ident, $symbol:ident, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), ClStatus> {
                let call = self.$name.ok_or(ClStatus::NOT_LOADED)?;
                self.enter(stringify!($symbol))?;
                // SAFETY: the caller keeps the C function's contract.
                ClStatus(unsafe { call($($arg),*) }).ok()
            }
        }
    };
    (info, $name:ident, $symbol:ident, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $symbol
            pub unsafe fn $name(
                &self, $($arg: $ty,)* size: usize, value: *mut c_void, size_ret: *mut usize,
            ) -> Result<(), ClStatus> {
                let call = self.$name.ok_or(ClStatus::NOT_LOADED)?;
                self.enter(stringify!($symbol))?;
                // SAFETY: the caller keeps the C function's contract.
                ClStatus(unsafe { call($($arg,)* size, value, size_ret) }).ok()
            }
        }
    };
    (create $of:ty, $name:ident, $symbol:ident, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$of, ClStatus> {
                let call = self.$name.ok_or(ClStatus::NOT_LOADED)?;
                self.enter(stringify!($symbol))?;
                let mut status = ClStatus::SUCCESS;
                // SAFETY: the caller keeps the C function's contract; a `ClStatus` is an `i32`.
                let made = unsafe { call($($arg,)* &raw mut status.0) };
                status.ok()?;
                if made.is_null() {
                    return Err(ClStatus::NULL_HANDLE);
                }
                self.count(<$of>::KIND, 1);
                Ok(made)
            }
        }
    };
    (retain, $name:ident, $symbol:ident, ($arg:ident: $ty:ty)) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, $arg: $ty) -> Result<(), ClStatus> {
                let call = self.$name.ok_or(ClStatus::NOT_LOADED)?;
                self.enter(stringify!($symbol))?;
                // SAFETY: the caller keeps the C function's contract.
                ClStatus(unsafe { call($arg) }).ok()?;
                self.count(<$ty>::KIND, 1);
                Ok(())
            }
        }
    };
    (release, $name:ident, $symbol:ident, ($arg:ident: $ty:ty)) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, $arg: $ty) -> Result<(), ClStatus> {
                let call = self.$name.ok_or(ClStatus::NOT_LOADED)?;
                let chosen = self.enter(stringify!($symbol));
                if chosen == Err(ClStatus::FORKED) {
                    return chosen;
                }
                // SAFETY: the caller keeps the C function's contract.
                let done = ClStatus(unsafe { call($arg) }).ok();
                if done.is_ok() {
                    self.count(<$ty>::KIND, -1);
                }
                chosen.and(done)
            }
        }
    };
    (settle, $name:ident, $symbol:ident, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $symbol
            pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), ClStatus> {
                let call = self.$name.ok_or(ClStatus::NOT_LOADED)?;
                let chosen = self.enter(stringify!($symbol));
                if chosen == Err(ClStatus::FORKED) {
                    return chosen;
                }
                // SAFETY: the caller keeps the C function's contract.
                let done = ClStatus(unsafe { call($($arg),*) }).ok();
                chosen.and(done)
            }
        }
    };
    (enqueue, $name:ident, $symbol:ident, ($($arg:ident: $ty:ty),*)) => {
        method! { @doc $symbol
            pub unsafe fn $name(
                &self, $($arg: $ty,)*
                wait_count: u32, wait_list: *const ClEvent, event: *mut ClEvent,
            ) -> Result<(), ClStatus> {
                let call = self.$name.ok_or(ClStatus::NOT_LOADED)?;
                self.enter(stringify!($symbol))?;
                // SAFETY: the caller keeps the C function's contract.
                ClStatus(unsafe { call($($arg,)* wait_count, wait_list, event) }).ok()?;
                self.count_event(event);
                Ok(())
            }
        }
    };
    (raw $of:ty, $name:ident, $symbol:ident, $args:tt) => {};
    (@doc $symbol:ident $($method:tt)*) => {
        #[doc = concat!("`", stringify!($symbol), "`.")]
        ///
        /// # Safety
        ///
        /// The contract of the C function.
        #[inline]
        $($method)*
    };
}

/// The sizes of a call's arguments, for comparison with the headers.
#[cfg(test)]
macro_rules! sizes {
    (create $of:ty, ($($ty:ty),*)) => { &[$(size_of::<$ty>(),)* table::PTR] };
    (info, ($($ty:ty),*)) => { &[$(size_of::<$ty>(),)* table::PTR, table::PTR, table::PTR] };
    (enqueue, ($($ty:ty),*)) => { &[$(size_of::<$ty>(),)* 4, table::PTR, table::PTR] };
    ($kind:ident $($of:ty)?, ($($ty:ty),*)) => { &[$(size_of::<$ty>(),)*] };
}

macro_rules! table {
    (
        $(#[$meta:meta])*
        pub struct $table:ident;
        $(
            $([$has:ident])? $name:ident = $symbol:ident($($arg:ident: $ty:ty),* $(,)?)
                -> $kind:ident $($of:ty)?;
        )*
    ) => {
        $(#[$meta])*
        pub struct $table {
            probe: Option<Arc<Probe>>,
            $($name: Option<raw!($kind $($of)?, ($($ty),*))>,)*
        }

        impl $table {
            /// Looks up all symbols.
            ///
            /// # Safety
            ///
            /// `find` returns the address of the named C function, which stays mapped forever.
            unsafe fn resolve(
                probe: Option<Arc<Probe>>,
                find: impl Fn(&'static CStr) -> Option<NonNull<c_void>>,
            ) -> Self {
                $(
                    // SAFETY: guaranteed by the caller; a test compares the prototype with the headers.
                    let $name = find(c_name!($symbol)).map(|at| unsafe { as_function(at) });
                )*
                Self { probe, $($name,)* }
            }

            /// The C names of required symbols that were not found.
            #[allow(dead_code)] // An extension table has no required symbols.
            fn lacking(&self) -> Vec<&'static str> {
                let mut lacking = Vec::new();
                $(if self.$name.is_none() && <[&str]>::is_empty(&[$(stringify!($has))?]) {
                    lacking.push(stringify!($symbol));
                })*
                lacking
            }

            $($(
                #[doc = concat!("Whether `", stringify!($symbol), "` was found.")]
                pub fn $has(&self) -> bool {
                    self.$name.is_some()
                }
            )?)*

            /// Asks the probe, if there is one, whether to fail this call. In a forked child all calls are refused.
            #[inline]
            fn enter(&self, call: &'static str) -> Result<(), ClStatus> {
                if crate::fork::is_child() {
                    return Err(ClStatus::FORKED);
                }
                match &self.probe {
                    None => Ok(()),
                    Some(probe) => probe.enter(call).map_err(ClStatus),
                }
            }

            #[inline]
            #[allow(dead_code)] // An extension table may create only events.
            fn count(&self, kind: &'static str, change: i64) {
                if let Some(probe) = &self.probe {
                    probe.count(kind, change);
                }
            }

            /// Counts the event of an enqueued command, if one was requested.
            #[inline]
            fn count_event(&self, event: *const ClEvent) {
                if !event.is_null() {
                    self.count(ClEvent::KIND, 1);
                }
            }

            #[cfg(test)]
            const SIZES: &[(&str, &[usize])] =
                &[$((stringify!($symbol), sizes!($kind $($of)?, ($($ty),*)))),*];
        }

        /// The C function pointers.
        #[allow(clippy::too_many_arguments)]
        impl $table {
            $(method! { $kind $($of)?, $name, $symbol, ($($arg: $ty),*) })*
        }
    };
}
