//! A checksum that detects damage, at the speed of memory. It does not protect against forgery.

/// An odd number with random bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes of one step: four words, whose sums do not depend on each other.
const STEP: usize = 32;

/// The checksum of some bytes. It depends on every bit, on the order, and on the length.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut sums = [1u64, 2, 3, 4].map(|n| n.wrapping_mul(FACTOR));
    let mut steps = bytes.chunks_exact(STEP);
    for step in &mut steps {
        mix(&mut sums, step);
    }
    let mut last = [0; STEP];
    last[..steps.remainder().len()].copy_from_slice(steps.remainder());
    mix(&mut sums, &last);
    let all = sums.into_iter().fold(bytes.len() as u64, fold);
    fold(all, all >> 29)
}

fn mix(sums: &mut [u64; 4], step: &[u8]) {
    for (sum, word) in sums.iter_mut().zip(step.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        *sum = fold(*sum, u64::from_le_bytes(bytes));
    }
}

/// A bijection of either argument, so that a single changed word always changes the result.
fn fold(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(FACTOR).rotate_left(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_length_count() {
        let bytes: Vec<u8> = (0..200u32).map(|i| (i * 7) as u8).collect();
        for len in [0, 1, 7, 31, 32, 33, 64, 200] {
            let whole = checksum(&bytes[..len]);
            for bit in 0..8 * len {
                let mut other = bytes[..len].to_vec();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum(&other), whole, "bit {bit} of {len} bytes");
            }
            assert_ne!(checksum(&[&bytes[..len], &[0]].concat()), whole);
        }
    }

    #[test]
    fn the_order_counts() {
        let (a, b) = ([1u8; 32], [2u8; 32]);
        assert_ne!(checksum(&[a, b].concat()), checksum(&[b, a].concat()));
        let words = [1u64, 2, 3, 4].map(u64::to_le_bytes);
        let [w, x, y, z] = words;
        assert_ne!(checksum(&words.concat()), checksum(&[x, w, y, z].concat()));
    }
}
