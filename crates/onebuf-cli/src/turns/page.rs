//! Pages, the unit in which contents are counted.

/// The page size of all supported machines.
pub const PAGE_BYTES: usize = 4096;
pub const PAGE_WORDS: usize = PAGE_BYTES / size_of::<u32>();

pub fn pages(words: usize) -> usize {
    words.div_ceil(PAGE_WORDS)
}
