//! Numbers of streams. One sender that sends to several ranks gives all of its streams one number, which says so: ranks that receive
//! it compare it, and never mix frames of two runs.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// The upper half of every such number: "ob". The lower half is random.
const MARK: u32 = 0x6f62_0000;
const MARK_BITS: u32 = 0xffff_0000;

/// A number for the streams to all ranks.
pub fn for_all_ranks() -> u32 {
    MARK | any() & !MARK_BITS
}

/// A number for the stream of one of several senders, whose numbers differ.
pub fn for_one_rank() -> u32 {
    let number = any();
    if is_for_all_ranks(number) { !number } else { number }
}

/// Whether all ranks have a stream of this number. One in 65,536 of the numbers that other programs draw looks like it.
pub fn is_for_all_ranks(stream: u32) -> bool {
    stream & MARK_BITS == MARK
}

fn any() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_say_who_has_them() {
        let all: HashSet<u32> = (0..64).map(|_| for_all_ranks()).collect();
        assert!(all.len() > 32 && all.iter().all(|&number| is_for_all_ranks(number)));
        assert!((0..1000).all(|_| !is_for_all_ranks(for_one_rank())));
    }
}
