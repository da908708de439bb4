//! Which usages a shared buffer can have.

use onebuf::{Error, Result};
use wgpu::BufferUsages;

/// What every buffer of onebuf can be used for.
const POSSIBLE: BufferUsages = BufferUsages::COPY_SRC
    .union(BufferUsages::COPY_DST)
    .union(BufferUsages::INDEX)
    .union(BufferUsages::VERTEX)
    .union(BufferUsages::UNIFORM)
    .union(BufferUsages::STORAGE)
    .union(BufferUsages::INDIRECT);

/// What onebuf's own commands do with a buffer of wgpu.
const NEEDED: BufferUsages =
    BufferUsages::COPY_SRC.union(BufferUsages::COPY_DST).union(BufferUsages::STORAGE);

/// Checks the usages of a buffer that is made for wgpu.
pub(crate) fn check_made(usage: BufferUsages) -> Result<()> {
    let other = usage.difference(POSSIBLE);
    match usage.is_empty() || !other.is_empty() {
        true => Err(Error::invalid(format!(
            "a shared wgpu::Buffer for {usage:?}: possible are {POSSIBLE:?}; map the onebuf buffer instead of wgpu's"
        ))),
        false => Ok(()),
    }
}

/// Checks the usages of a buffer that wgpu made.
pub(crate) fn check_wrapped(usage: BufferUsages) -> Result<()> {
    let lacks = NEEDED.difference(usage);
    match lacks.is_empty() {
        true => Ok(()),
        false => Err(Error::invalid(format!("the wgpu::Buffer was created without {lacks:?}"))),
    }
}

/// Checks where a buffer begins, for the bindings that it is meant for.
pub(crate) fn check_offset(offset: u64, usage: BufferUsages, limits: &wgpu::Limits) -> Result<()> {
    let storage = (BufferUsages::STORAGE, limits.min_storage_buffer_offset_alignment);
    let uniform = (BufferUsages::UNIFORM, limits.min_uniform_buffer_offset_alignment);
    let bound = [storage, uniform].into_iter().filter(|(kind, _)| usage.contains(*kind));
    let align = bound.map(|(_, align)| align).max().unwrap_or(4);
    match offset.is_multiple_of(align.into()) {
        true => Ok(()),
        false => Err(Error::unsupported(
            format!("a wgpu::Buffer whose bytes begin at {offset} of its memory"),
            format!(
                "memory that is aligned to {align}: build the buffer with \
                 `memory_kind(MemoryKind::HostPages)`, or on the wgpu device"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usages_are_checked() {
        assert!(check_made(BufferUsages::STORAGE | BufferUsages::VERTEX).is_ok());
        for wrong in [BufferUsages::empty(), BufferUsages::MAP_READ, BufferUsages::QUERY_RESOLVE] {
            assert!(check_made(wrong | BufferUsages::empty()).is_err(), "{wrong:?}");
        }
        assert!(check_wrapped(NEEDED | BufferUsages::VERTEX).is_ok());
        let lacks = check_wrapped(BufferUsages::STORAGE).unwrap_err().to_string();
        assert!(lacks.contains("COPY_SRC | COPY_DST"), "{lacks}");
    }

    #[test]
    fn offsets_suit_the_bindings() {
        let limits = wgpu::Limits::default();
        let at = |offset, usage| check_offset(offset, usage, &limits).is_ok();
        assert!(at(0, BufferUsages::STORAGE) && at(256, BufferUsages::STORAGE));
        assert!(!at(128, BufferUsages::STORAGE) && at(128, BufferUsages::VERTEX));
        assert!(!at(2, BufferUsages::VERTEX));
    }
}
