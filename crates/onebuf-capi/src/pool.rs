//! Pools
//!
//! A pool reuses buffers: a freed buffer returns to the pool and serves a later request without an allocation. The
//! initial contents of a reused buffer are unspecified.

use crate::{
    buffer::{Asked, onebuf_buffer, onebuf_buffer_options},
    entry::{entry, free},
    fault::{Fault, Result},
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, give, options, out, timeout},
    status::onebuf_status,
};
use onebuf::{
    Buffer,
    pool::{FreeLists, Fresh, Limit, Log, MemoryResource, SizeClasses},
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

impl Pool {
    /// # Safety
    /// As for [`onebuf_pool_get`].
    unsafe fn got(&self, asked: Asked, bytes: usize, timeout_ms: u64) -> Result<Buffer<u8>> {
        // SAFETY: guaranteed by the caller.
        let builder = unsafe { asked.builder(&self.hub, bytes)? };
        Ok(match timeout(timeout_ms).unwrap_or(self.hub.timeout()) {
            now if now.is_zero() => self.pool.get(&builder)?,
            timeout => self.pool.get_within(&builder, timeout)?,
        })
    }
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
    /// Buffers allocated in total.
    pub made: u64,
    /// The limit of the bytes held; zero: none.
    pub limit_bytes: u64,
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

/// Options of a pool. Zero in every field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_pool_options {
    /// `sizeof(onebuf_pool_options)`.
    pub size: usize,
    /// Limits the bytes that it holds, including idle buffers; zero: no limit.
    pub limit_bytes: u64,
    /// Not zero: a buffer is reused for its own size only. Otherwise sizes are rounded up to classes.
    pub exact_sizes: u32,
    /// Not zero: logs each buffer that is handed out and returned: see onebuf_log_to().
    pub log: u32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_pool_options {}

/// A pool over the stack of memory resources that the options ask for.
fn over(hub: &onebuf::Hub, given: onebuf_pool_options) -> onebuf::Pool {
    match given.limit_bytes {
        0 => topped(hub, given, FreeLists::new(Fresh::default())),
        limit => topped(hub, given, FreeLists::new(Limit::new(Fresh::default(), limit))),
    }
}

fn topped(
    hub: &onebuf::Hub,
    given: onebuf_pool_options,
    lists: impl MemoryResource + 'static,
) -> onebuf::Pool {
    match (given.exact_sizes != 0, given.log != 0) {
        (false, false) => onebuf::Pool::over(hub, SizeClasses(lists)),
        (false, true) => onebuf::Pool::over(hub, Log(SizeClasses(lists))),
        (true, false) => onebuf::Pool::over(hub, lists),
        (true, true) => onebuf::Pool::over(hub, Log(lists)),
    }
}

/// Creates a pool with options. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pool_create_with(
    hub: onebuf_hub,
    options: *const onebuf_pool_options,
    pool: Slot<'_, onebuf_pool>,
) -> onebuf_status {
    entry(|| {
        let pool = out(pool, "pool")?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { self::options(options)? };
        let hub = hub.get()?.hub.clone();
        *pool = onebuf_pool::put(Pool { pool: over(&hub, given), hub })?;
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
        // SAFETY: as above.
        let got = unsafe { pool.get()?.got(asked, bytes, timeout_ms)? };
        *buffer = onebuf_buffer::put(got.into())?;
        Ok(())
    })
}

/// Gets a buffer like onebuf_pool_get(), all bytes of which are zero. The options must not have contents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_pool_get_cleared(
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
        if asked.brings_bytes() {
            return Err(Fault::invalid("`contents` or `host_memory` for a cleared buffer"));
        }
        // SAFETY: as above.
        let got = unsafe { pool.get()?.got(asked, bytes, timeout_ms)? };
        got.fill(0)?;
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
            made: found.made,
            limit_bytes: found.limit_bytes.unwrap_or(0),
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
