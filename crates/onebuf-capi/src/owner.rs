//! Owners
//!
//! For languages whose variables are copied and destroyed implicitly, such as Fortran. An object may have owners,
//! identified by addresses, and is freed with its last owner. An address owns at most one object, whatever bits are
//! stored there: a copy that was not announced owns nothing and frees nothing.

use crate::{
    buffer::{onebuf_buffer, onebuf_buffer_free},
    entry::entry,
    fault::{Fault, Result},
    fence::{onebuf_fence, onebuf_fence_free},
    handle::Noun,
    kernel::{onebuf_kernel, onebuf_kernel_free},
    libs::{onebuf_lu, onebuf_lu_free},
    pool::{onebuf_pool, onebuf_pool_free},
    program::{onebuf_program, onebuf_program_free},
    status::onebuf_status,
};
use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::c_void,
    sync::{Mutex, MutexGuard, PoisonError},
};

static OWNERS: Mutex<Owners> = Mutex::new(Owners { of: BTreeMap::new(), count: BTreeMap::new() });

struct Owners {
    /// The object that an address owns.
    of: BTreeMap<usize, u64>,
    /// Number of owners of each object.
    count: BTreeMap<u64, usize>,
}

impl Owners {
    fn locked() -> MutexGuard<'static, Self> {
        OWNERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the address own this object, or nothing for zero. Returns the object whose last owner it was.
    fn set(&mut self, owner: usize, id: u64) -> Option<u64> {
        // Counted first, so that an object that is owned again never has zero owners in between.
        let before = if id == 0 {
            self.of.remove(&owner)
        } else {
            *self.count.entry(id).or_default() += 1;
            self.of.insert(owner, id)
        }?;
        let count = self.count.get_mut(&before)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.count.remove(&before);
        Some(before)
    }
}

/// An object without owners that this thread may be about to own again.
struct Leaving(Cell<u64>);

impl Drop for Leaving {
    fn drop(&mut self) {
        free(self.0.get());
    }
}

thread_local! {
    static LEAVING: Leaving = const { Leaving(Cell::new(0)) };
}

/// Stores this object as pending, and returns the one that was pending before.
fn leave(id: u64) -> u64 {
    // A thread that is ending makes no further call: its object is freed at once.
    LEAVING.try_with(|leaving| leaving.0.replace(id)).unwrap_or(id)
}

const fn kind(id: u64) -> u8 {
    (id >> 56) as u8
}

/// Frees an object that was owned. If it was freed before, there is nothing to do.
fn free(id: u64) {
    match kind(id) {
        onebuf_buffer::KIND => onebuf_buffer_free(onebuf_buffer { id }),
        onebuf_fence::KIND => onebuf_fence_free(onebuf_fence { id }),
        onebuf_program::KIND => onebuf_program_free(onebuf_program { id }),
        onebuf_kernel::KIND => onebuf_kernel_free(onebuf_kernel { id }),
        onebuf_pool::KIND => onebuf_pool_free(onebuf_pool { id }),
        onebuf_lu::KIND => onebuf_lu_free(onebuf_lu { id }),
        _ => return,
    };
}

/// Only objects that can be freed can be owned.
fn check(id: u64) -> Result<()> {
    match kind(id) {
        onebuf_buffer::KIND => onebuf_buffer { id }.get().map(drop),
        onebuf_fence::KIND => onebuf_fence { id }.get().map(drop),
        onebuf_program::KIND => onebuf_program { id }.get().map(drop),
        onebuf_kernel::KIND => onebuf_kernel { id }.get().map(drop),
        onebuf_pool::KIND => onebuf_pool { id }.get().map(drop),
        onebuf_lu::KIND => onebuf_lu { id }.get().map(drop),
        _ => Err(Fault::Handle(format!(
            "{id:#x} cannot be owned: buffers, fences, programs, kernels, pools and factored matrices can"
        ))),
    }
}

fn address(owner: *const c_void) -> Result<usize> {
    if owner.is_null() { Err(Fault::Null("owner")) } else { Ok(owner.addr()) }
}

/// Makes an address the owner of an object, given the `id` of the handle of a buffer, fence, program, kernel, pool or
/// factored matrix; zero means nothing. The object that the address owned before loses an owner, and is freed if that was the last. The address is
/// never dereferenced. An object that never had an owner must be freed by the caller.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_own(owner: *const c_void, id: u64) -> onebuf_status {
    entry(|| {
        let owner = address(owner)?;
        if id != 0 {
            check(id)?;
        }
        let ended = Owners::locked().set(owner, id);
        let left = leave(0);
        ended.into_iter().chain((left != id).then_some(left)).for_each(free);
        Ok(())
    })
}

/// Ends the ownership of an address, because the variable there ends or is about to be assigned. If it was the last
/// owner, the object is freed at the thread's next call of one of these two functions: the right side of `b = b` is
/// still needed.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_disown(owner: *const c_void) -> onebuf_status {
    entry(|| {
        let ended = Owners::locked().set(address(owner)?, 0);
        free(leave(ended.unwrap_or(0)));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners() -> Owners {
        Owners { of: BTreeMap::new(), count: BTreeMap::new() }
    }

    #[test]
    fn the_last_owner_ends_it() {
        let mut all = owners();
        assert_eq!(all.set(1, 50), None);
        assert_eq!(all.set(2, 50), None);
        assert_eq!(all.set(1, 0), None);
        assert_eq!(all.set(1, 0), None, "it owned nothing any more");
        assert_eq!(all.set(3, 0), None, "it never did");
        assert_eq!(all.set(2, 60), Some(50));
        assert_eq!(all.set(2, 60), None, "assigned to itself");
        assert_eq!(all.set(2, 0), Some(60));
        assert!(all.of.is_empty() && all.count.is_empty());
    }

    #[test]
    fn only_living_objects_are_owned() {
        let owner = std::ptr::from_ref(&OWNERS).cast();
        for id in [1, 5 << 56 | 1 << 32 | 12345, u64::MAX, 2 << 56] {
            assert_ne!(onebuf_own(owner, id), 0, "{id:#x}");
        }
        assert_ne!(onebuf_own(std::ptr::null(), 0), 0);
        assert_ne!(onebuf_disown(std::ptr::null()), 0);
        assert_eq!(onebuf_own(owner, 0), 0);
        assert_eq!(onebuf_disown(owner), 0);
    }
}
