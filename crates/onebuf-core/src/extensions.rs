//! Data that modules and crates above store in a hub or a queue: one value of each type.
//!
//! # Safety
//! A value is used as the type that its entry was created with. The entry's `id` is that of this type.

#![allow(unsafe_code)]

use std::{
    any::{Any, TypeId},
    fmt,
    sync::OnceLock,
};

/// One value of each requested type. A value is created on first use, does not move, and is dropped with its holder, in
/// order of creation.
///
/// A lookup costs one atomic load for each type that was created earlier, without locks or allocation.
#[derive(Default)]
pub struct Extensions(OnceLock<Box<Extension>>);

struct Extension {
    /// The type of `value`. Never changed: [`Extensions::get`] relies on it, because asking the value costs a wrap more.
    id: TypeId,
    value: Box<dyn Any + Send + Sync>,
    next: Extensions,
}

impl Extensions {
    /// Returns the value of this type, and creates it if necessary.
    #[inline]
    pub fn get<T: Any + Default + Send + Sync>(&self) -> &T {
        let mut at = self;
        loop {
            let extension = match at.0.get() {
                Some(extension) => extension,
                None => at.0.get_or_init(Extension::of::<T>),
            };
            if extension.id == TypeId::of::<T>() {
                let value: *const (dyn Any + Send + Sync) = &*extension.value;
                // SAFETY: `Extension::of` created a value of the type with this id, and nothing replaces it by one of another
                // type. The value lives as long as `self`.
                return unsafe { &*value.cast::<T>() };
            }
            at = &extension.next;
        }
    }

    /// Returns the value of this type for modification, and creates it if necessary.
    pub fn get_mut<T: Any + Default + Send + Sync>(&mut self) -> &mut T {
        self.get::<T>();
        let mut at = self;
        loop {
            let extension = at.0.get_mut().expect("`get` has made it");
            if extension.id == TypeId::of::<T>() {
                return extension.value.downcast_mut().expect("its type was asked for");
            }
            at = &mut extension.next;
        }
    }
}

impl Extension {
    fn of<T: Any + Default + Send + Sync>() -> Box<Self> {
        let (id, value) = (TypeId::of::<T>(), Box::new(T::default()));
        Box::new(Self { id, value, next: Extensions::default() })
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Extensions")
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;
    use std::{
        ptr,
        sync::{Mutex, mpsc},
    };

    #[test]
    fn each_type_has_one_value_that_stays_where_it_is() {
        let mut extensions = Extensions::default();
        *extensions.get_mut::<u32>() = 7;
        *extensions.get::<Mutex<String>>().lock().unwrap() = "seven".into();
        let first: *const u32 = extensions.get();
        assert_eq!(extensions.get::<u64>(), &0);
        assert_eq!(extensions.get::<u32>(), &7);
        assert_eq!(*extensions.get::<Mutex<String>>().lock().unwrap(), "seven");
        assert!(ptr::eq(first, extensions.get::<u32>()));
        *extensions.get_mut::<u64>() += 1;
        assert_eq!(extensions.get::<u64>(), &1);
    }

    #[test]
    fn threads_that_ask_at_once_get_the_same_value() {
        let extensions = Extensions::default();
        let place = || ptr::from_ref(extensions.get::<Mutex<u32>>()).addr();
        let places = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..4).map(|_| scope.spawn(place)).collect();
            asking.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(places.iter().all(|place| *place == places[0]));
    }

    #[derive(Default)]
    struct Tells<const WHICH: u8>(Mutex<Option<mpsc::Sender<u8>>>);

    impl<const WHICH: u8> Drop for Tells<WHICH> {
        fn drop(&mut self) {
            self.0.lock().unwrap().take().unwrap().send(WHICH).unwrap();
        }
    }

    #[test]
    fn values_are_dropped_in_the_order_in_which_they_were_made() {
        let (sender, dropped) = mpsc::channel();
        let extensions = Extensions::default();
        *extensions.get::<Tells<1>>().0.lock().unwrap() = Some(sender.clone());
        *extensions.get::<Tells<2>>().0.lock().unwrap() = Some(sender);
        drop(extensions);
        assert_eq!(dropped.iter().collect::<Vec<_>>(), [1, 2]);
    }
}
