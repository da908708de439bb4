//! Test data that differs in every element, and comparisons that report the page.

use std::fmt::Debug;

const PAGE: usize = 4096;

/// A small generator; the same seed gives the same sequence.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 32 bits (splitmix64).
    pub fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x >> 32) as u32
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.word() as usize % n
    }
}

/// Returns `n` pseudo-random words, so that a misplaced page is detected.
pub fn random_words(seed: u64, n: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..n).map(|_| random.word()).collect()
}

/// Returns the pages that differ in any element.
pub fn pages_apart<T: PartialEq>(seen: &[T], model: &[T]) -> Vec<usize> {
    let per_page = (PAGE / size_of::<T>().max(1)).max(1);
    let pages = seen.chunks(per_page).zip(model.chunks(per_page)).enumerate();
    pages.filter(|(_, (a, b))| a != b).map(|(page, _)| page).collect()
}

/// Compares every element.
///
/// # Panics
/// If an element differs. The message has the first page that differs and the number of such pages.
#[track_caller]
pub fn assert_same<T: PartialEq + Debug>(seen: &[T], model: &[T], what: &str) {
    assert_eq!(seen.len(), model.len(), "{what}: another length");
    let per_page = (PAGE / size_of::<T>().max(1)).max(1);
    let bad = pages_apart(seen, model);
    let Some(page) = bad.first() else { return };
    let at = (page * per_page..seen.len()).find(|&i| seen[i] != model[i]).unwrap_or(0);
    panic!(
        "{what}: {} of {} pages differ, first page {page}: element {at} is {:?} instead of {:?}",
        bad.len(),
        seen.len().div_ceil(per_page),
        seen[at],
        model[at]
    );
}
