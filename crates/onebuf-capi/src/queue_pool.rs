//! Queue pools
//!
//! Several queues of one device that many threads or jobs share. Buffers order the work on different queues where
//! necessary.

use crate::{
    device::onebuf_device,
    entry::{entry, free},
    fault::Fault,
    handle::{Noun, noun},
    input::{Slot, options, out},
    queue::{onebuf_queue, onebuf_queue_options, spec},
    status::onebuf_status,
};
use onebuf::QueuePool;

/// A queue pool. Free it with onebuf_queue_pool_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_queue_pool {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_queue_pool, QueuePool, 23);

/// Opens `count` queues with the same options. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_queue_pool_create(
    device: onebuf_device,
    count: usize,
    options: *const onebuf_queue_options,
    pool: Slot<'_, onebuf_queue_pool>,
) -> onebuf_status {
    entry(|| {
        let pool = out(pool, "pool")?;
        // SAFETY: guaranteed by the caller.
        let spec = spec(unsafe { self::options(options)? })?;
        *pool = onebuf_queue_pool::put(device.get()?.queues(count, spec)?)?;
        Ok(())
    })
}

/// The next queue in rotation, as a handle of its own. Free it with onebuf_queue_free(); the queue itself stays in the
/// pool.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_pool_next(
    pool: onebuf_queue_pool,
    queue: Slot<'_, onebuf_queue>,
) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        *queue = onebuf_queue::put(pool.get()?.round_robin())?;
        Ok(())
    })
}

/// The queue with the least unfinished work, as a handle of its own; among equals, the next in rotation. Free it with
/// onebuf_queue_free().
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_pool_least_busy(
    pool: onebuf_queue_pool,
    queue: Slot<'_, onebuf_queue>,
) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        *queue = onebuf_queue::put(pool.get()?.least_busy())?;
        Ok(())
    })
}

/// Number of queues.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_pool_size(
    pool: onebuf_queue_pool,
    count: Slot<'_, usize>,
) -> onebuf_status {
    entry(|| {
        *out(count, "count")? = pool.get()?.all().len();
        Ok(())
    })
}

/// The queue at an index, as a handle of its own. Free it with onebuf_queue_free().
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_pool_at(
    pool: onebuf_queue_pool,
    index: usize,
    queue: Slot<'_, onebuf_queue>,
) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        let pool = pool.get()?;
        let all = pool.all();
        let found = all.get(index).ok_or_else(|| {
            Fault::invalid(format!("queue {index} of a pool that has {}", all.len()))
        })?;
        *queue = onebuf_queue::put(found.clone())?;
        Ok(())
    })
}

/// Waits until everything enqueued so far on any of the queues is done, up to the hub's timeout.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_pool_finish(pool: onebuf_queue_pool) -> onebuf_status {
    entry(|| Ok(pool.get()?.finish()?))
}

/// Frees a queue pool. Enqueued work still completes, and handles of its queues stay usable.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_pool_free(pool: onebuf_queue_pool) -> onebuf_status {
    free(pool)
}
