//! Where the bytes of a message are.

use std::ops::Range;

/// Blocks of equal length at equal distances, relative to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    blocks: usize,
    /// The bytes of a block.
    length: usize,
    /// From the beginning of a block to that of the next one, in bytes.
    stride: usize,
}

impl Layout {
    /// One block.
    pub fn contiguous(bytes: usize) -> Self {
        Self { blocks: 1, length: bytes, stride: bytes }
    }

    /// Several blocks, which must not overlap. Those that follow each other without a gap are one.
    pub fn blocks(blocks: usize, length: usize, stride: usize) -> Self {
        if blocks <= 1 || length == 0 || stride <= length {
            return Self::contiguous(blocks * length);
        }
        Self { blocks, length, stride }
    }

    /// The number of bytes, without gaps.
    pub fn bytes(&self) -> usize {
        self.blocks * self.length
    }

    pub fn is_contiguous(&self) -> bool {
        self.blocks == 1
    }

    /// How many blocks, of how many bytes, how far apart.
    pub fn parts(&self) -> (usize, usize, usize) {
        (self.blocks, self.length, self.stride)
    }

    /// The ranges of bytes, in their order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let Self { blocks, length, stride } = *self;
        (0..blocks).map(move |block| block * stride..block * stride + length)
    }
}

/// Pairs of ranges with equal lengths that copy one layout to another, up to the end of the shorter one.
pub(crate) fn pairs(from: Layout, to: Layout) -> Vec<(usize, usize, usize)> {
    let (mut all, mut targets) = (Vec::new(), to.ranges());
    let mut target = targets.next();
    for mut source in from.ranges() {
        while let Some(room) = target.as_mut().filter(|_| source.start < source.end) {
            let many = room.len().min(source.len());
            if many > 0 {
                all.push((source.start, room.start, many));
            }
            source.start += many;
            room.start += many;
            if room.start == room.end {
                target = targets.next();
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_without_gaps_are_one() {
        assert_eq!(Layout::blocks(4, 8, 8), Layout::contiguous(32));
        assert_eq!(Layout::blocks(1, 8, 100), Layout::contiguous(8));
        assert_eq!(Layout::blocks(0, 8, 100).bytes(), 0);
        let strided = Layout::blocks(3, 8, 20);
        assert!(!strided.is_contiguous());
        assert_eq!(strided.ranges().collect::<Vec<_>>(), [0..8, 20..28, 40..48]);
        assert_eq!((strided.bytes(), strided.parts()), (24, (3, 8, 20)));
    }

    #[test]
    fn two_layouts_are_walked_together() {
        let (a, b) = (Layout::blocks(3, 4, 10), Layout::blocks(2, 6, 8));
        assert_eq!(pairs(a, b), [(0, 0, 4), (10, 4, 2), (12, 8, 2), (20, 10, 4)]);
        assert_eq!(pairs(Layout::contiguous(9), b), [(0, 0, 6), (6, 8, 3)]);
        assert_eq!(pairs(a, Layout::contiguous(5)), [(0, 0, 4), (10, 4, 1)]);
        assert_eq!(pairs(a, Layout::contiguous(0)), []);
    }
}
