//! Pools
//!
//! A pool hands out buffers and gets them back when they are freed, so that the next comes without an
//! allocation. What a used buffer holds at first is unspecified.

use crate::{
    buffer::{Asked, onebuf_buffer, onebuf_buffer_options},
    entry::{entry, free},
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, give, out, timeout},
    status::onebuf_status,
};

/// A pool. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pool {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_pool, Pool, 12);

/// A pool and the hub that its wishes are made with.
#[doc(hidden)]
pub struct Pool {
    pool: onebuf::Pool,
    hub: onebuf::Hub,
}

/// What a pool has done and holds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pool_statistics {
    /// `sizeof(onebuf_pool_statistics)`: set it before the call.
    pub size: usize,
    /// Buffers handed out that were used before.
    pub hits: u64,
    /// Buffers handed out that had to be made.
    pub misses: u64,
    /// Buffers freed.
    pub freed: u64,
    /// Buffers that came back and could not be used again.
    pub lost: u64,
    /// Buffers in use.
    pub live_buffers: u64,
    /// Their bytes, rounded up to their size classes.
    pub live_bytes: u64,
    /// Buffers ready to be used again.
    pub idle_buffers: u64,
    /// Their bytes.
    pub idle_bytes: u64,
    /// The most bytes ever in use at one time.
    pub peak_live_bytes: u64,
    /// The most bytes ever held at one time, idle ones included.
    pub peak_held_bytes: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_pool_statistics {}

/// Makes a pool; `limit_bytes` is the most it holds, idle buffers included; zero: no limit.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pool_create(
    hub: onebuf_hub,
    limit_bytes: u64,
    pool: Slot<'_, onebuf_pool>,
) -> onebuf_status {
    entry(|| {
        let pool = out(pool, "pool")?;
        let hub = hub.get()?.hub.clone();
        let made = match limit_bytes {
            0 => onebuf::Pool::new(&hub),
            limit => onebuf::Pool::with_limit(&hub, limit),
        };
        *pool = onebuf_pool::put(Pool { pool: made, hub })?;
        Ok(())
    })
}

/// A buffer of so many bytes, as onebuf_buffer_create() would make it; without memory of the caller's. At
/// the limit it waits so long for buffers to come back, then it is ONEBUF_OUT_OF_MEMORY. Freed, the buffer
/// goes back. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pool_get(
    pool: onebuf_pool,
    bytes: usize,
    options: *const onebuf_buffer_options,
    timeout_ms: u64,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        // SAFETY: the caller's promise, also about what the options point at.
        let asked = unsafe { Asked::read(options)? };
        let buffer = out(buffer, "buffer")?;
        let Pool { pool, hub } = &*pool.get()?;
        // SAFETY: as above.
        let builder = unsafe { asked.builder(hub, bytes)? };
        let got = match timeout(timeout_ms).unwrap_or(hub.timeout()) {
            now if now.is_zero() => pool.get(&builder)?,
            timeout => pool.get_within(&builder, timeout)?,
        };
        *buffer = onebuf_buffer::put(got.into())?;
        Ok(())
    })
}

/// Frees what is idle, until no more than so many bytes of it are left. `freed_bytes` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pool_trim(
    pool: onebuf_pool,
    keep_bytes: u64,
    freed_bytes: Slot<'_, u64>,
) -> onebuf_status {
    entry(|| {
        let freed = pool.get()?.pool.trim(keep_bytes);
        freed_bytes.map(|bytes| bytes.write(freed));
        Ok(())
    })
}

/// What the pool has done and holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pool_get_statistics(
    pool: onebuf_pool,
    statistics: *mut onebuf_pool_statistics,
) -> onebuf_status {
    entry(|| {
        let found = pool.get()?.pool.statistics();
        let known = onebuf_pool_statistics {
            size: size_of::<onebuf_pool_statistics>(),
            hits: found.hits,
            misses: found.misses,
            freed: found.freed,
            lost: found.lost,
            live_buffers: found.live_buffers,
            live_bytes: found.live_bytes,
            idle_buffers: found.idle_buffers,
            idle_bytes: found.idle_bytes,
            peak_live_bytes: found.peak_live_bytes,
            peak_held_bytes: found.peak_held_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { give(known, statistics, "statistics") }
    })
}

/// Frees a pool, and what is idle in it. Buffers that are out stay usable.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pool_free(pool: onebuf_pool) -> onebuf_status {
    free(pool)
}
