//! Pools
//!
//! A pool reuses buffers: a freed buffer returns to the pool and serves a later request without an allocation. The
//! initial contents of a reused buffer are unspecified.

use crate::{
    buffer::{Asked, onebuf_buffer, onebuf_buffer_options},
    entry::{entry, free},
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, give, out, timeout},
    status::onebuf_status,
};

/// A pool. Free it with onebuf_pool_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pool {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_pool, Pool, 12);

/// A pool, and the hub that its requests use.
#[doc(hidden)]
pub struct Pool {
    pool: onebuf::Pool,
    hub: onebuf::Hub,
}

/// Counters of a pool.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pool_statistics {
    /// `sizeof(onebuf_pool_statistics)`: set it before the call.
    pub size: usize,
    /// Requests served by a reused buffer.
    pub hits: u64,
    /// Requests that needed an allocation.
    pub misses: u64,
    /// Buffers whose memory was freed.
    pub freed: u64,
    /// Buffers that were returned but could not be reused.
    pub lost: u64,
    /// Buffers in use.
    pub live_buffers: u64,
    /// Bytes of the buffers in use, rounded up to size classes.
    pub live_bytes: u64,
    /// Idle buffers, ready for reuse.
    pub idle_buffers: u64,
    /// Bytes of the idle buffers.
    pub idle_bytes: u64,
    /// Maximum of the bytes in use.
    pub peak_live_bytes: u64,
    /// Maximum of the bytes held, including idle buffers.
    pub peak_held_bytes: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_pool_statistics {}

/// Creates a pool. `limit_bytes` limits the bytes that it holds, including idle buffers; zero: no limit.
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

/// Gets a buffer of `bytes` bytes, as onebuf_buffer_create() would create it; host memory is not allowed in the
/// options. At the limit it waits up to the timeout for buffers to be returned, then fails with ONEBUF_OUT_OF_MEMORY.
/// Freeing the buffer returns it to the pool. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pool_get(
    pool: onebuf_pool,
    bytes: usize,
    options: *const onebuf_buffer_options,
    timeout_ms: u64,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller, also for what the options point at.
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

/// Allocates buffers until `count` of this kind are idle in the pool. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pool_prepare(
    pool: onebuf_pool,
    bytes: usize,
    options: *const onebuf_buffer_options,
    count: usize,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let asked = unsafe { Asked::read(options)? };
        let Pool { pool, hub } = &*pool.get()?;
        // SAFETY: as above.
        let builder = unsafe { asked.builder(hub, bytes)? };
        Ok(pool.prepare(&builder, count)?)
    })
}

/// Frees idle buffers until at most `keep_bytes` bytes of them are left. `freed_bytes` may be NULL.
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

/// Reads the counters of the pool.
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
        // SAFETY: guaranteed by the caller.
        unsafe { give(known, statistics, "statistics") }
    })
}

/// Frees a pool and its idle buffers. Buffers in use stay usable.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_pool_free(pool: onebuf_pool) -> onebuf_status {
    free(pool)
}
