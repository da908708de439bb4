//! How channels and frequencies are divided among the ranks, and which bytes go where.

use crate::layout::Layout;
use onebuf_hal::{Error, Result};
use std::ops::Range;

/// The part of `total` things that a rank has, if they are divided as evenly as possible: the first ranks have one more.
pub fn share(total: usize, ranks: usize, rank: usize) -> Range<usize> {
    let (each, more) = (total / ranks, total % ranks);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

/// Blocks shorter than this are sent as one message with gaps; longer ones each as a message of its own.
pub(super) const SHORT: usize = 32 << 10;

/// Which rank has how many of something, one rank after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// Where each rank's part begins, and the end of the last.
    starts: Vec<usize>,
}

impl Division {
    pub fn even(total: usize, ranks: usize) -> Self {
        let starts =
            (0..ranks).map(|rank| share(total, ranks, rank).start).chain([total]).collect();
        Self { starts }
    }

    pub fn of(counts: &[usize], ranks: usize) -> Result<Self> {
        if counts.len() != ranks {
            return Err(Error::invalid(format!("{} counts for {ranks} ranks", counts.len())));
        }
        let mut starts = vec![0usize];
        for count in counts {
            let end = starts[starts.len() - 1].checked_add(*count);
            starts
                .push(end.ok_or_else(|| Error::invalid("the sum of the counts overflows usize"))?);
        }
        Ok(Self { starts })
    }

    pub fn total(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    pub fn part(&self, rank: usize) -> Range<usize> {
        self.starts[rank]..self.starts[rank + 1]
    }

    pub fn starts(&self) -> &[usize] {
        &self.starts
    }
}

/// The blocks of a turn: from `[own channels][all frequencies]` to `[all channels][own frequencies]`.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub channels: Division,
    pub frequencies: Division,
    pub rank: usize,
    /// The bytes of an element.
    pub element: usize,
}

/// One message: where it begins, in bytes, and its layout.
pub(super) type Piece = (usize, Layout);

impl Shape {
    /// Elements of this rank's input.
    pub fn input(&self) -> usize {
        self.channels.part(self.rank).len() * self.frequencies.total()
    }

    /// Elements of this rank's output.
    pub fn output(&self) -> usize {
        self.channels.total() * self.frequencies.part(self.rank).len()
    }

    /// The bytes that other ranks send for a frame.
    pub fn received(&self) -> usize {
        let others = self.channels.total() - self.channels.part(self.rank).len();
        others * self.frequencies.part(self.rank).len() * self.element
    }

    /// The messages that this rank sends to a peer: its channels, and the peer's frequencies.
    pub fn sends(&self, peer: usize) -> Vec<Piece> {
        let (rows, columns) = (self.channels.part(self.rank).len(), self.frequencies.part(peer));
        let (length, stride) =
            (columns.len() * self.element, self.frequencies.total() * self.element);
        let start = columns.start * self.element;
        pieces(rows, length, |row| start + row * stride, Layout::blocks(rows, length, stride))
    }

    /// The messages that it receives from a peer: the peer's channels, and its own frequencies.
    pub fn receives(&self, peer: usize) -> Vec<Piece> {
        let (rows, columns) = (self.channels.part(peer), self.frequencies.part(self.rank).len());
        let (length, start) = (columns * self.element, rows.start * columns * self.element);
        pieces(
            rows.len(),
            length,
            |row| start + row * length,
            Layout::contiguous(rows.len() * length),
        )
    }

    /// The rows of this rank's own block: where each is in the input and in the output, and how many elements.
    pub fn own(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (rows, columns) = (self.channels.part(self.rank), self.frequencies.part(self.rank));
        let (all, many, first) = (self.frequencies.total(), columns.len(), columns.start);
        let rows = rows.enumerate().filter(move |_| many > 0);
        rows.map(move |(row, channel)| (row * all + first, channel * many, many))
    }
}

/// Long rows as messages of their own, short ones as one message. Both ranks divide alike.
fn pieces(rows: usize, length: usize, start: impl Fn(usize) -> usize, whole: Layout) -> Vec<Piece> {
    if rows * length == 0 {
        return Vec::new();
    }
    if length < SHORT {
        return vec![(start(0), whole)];
    }
    (0..rows).map(|row| (start(row), Layout::contiguous(length))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_cover_everything() {
        for (total, ranks) in [(10, 3), (3, 5), (0, 2), (7, 7), (100, 1)] {
            let all: Vec<Range<usize>> = (0..ranks).map(|rank| share(total, ranks, rank)).collect();
            assert_eq!((all[0].start, all[ranks - 1].end), (0, total));
            assert!(all.windows(2).all(|two| two[0].end == two[1].start));
            let lengths = all.iter().map(Range::len);
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
            let even = Division::even(total, ranks);
            assert_eq!((0..ranks).map(|rank| even.part(rank)).collect::<Vec<_>>(), all);
        }
        assert_eq!(Division::of(&[2, 0, 3], 3).unwrap().part(2), 2..5);
        assert!(Division::of(&[2, 0], 3).is_err());
        assert!(Division::of(&[usize::MAX, 1], 2).is_err());
    }

    /// Turns a matrix by the pieces alone, and compares with the definition.
    #[test]
    fn the_pieces_of_all_ranks_turn_the_matrix() {
        for (channels, frequencies, ranks, element) in [
            (5, 7, 3, 4),
            (4, 4, 4, 1),
            (2, 9, 4, 8),
            (9, 2, 4, 2),
            (6, 40_000, 2, 4),
            (1, 3, 1, 4),
        ] {
            let shapes: Vec<Shape> = (0..ranks)
                .map(|rank| Shape {
                    channels: Division::even(channels, ranks),
                    frequencies: Division::even(frequencies, ranks),
                    rank,
                    element,
                })
                .collect();
            let value =
                |channel: usize, frequency: usize| (channel * frequencies + frequency) as u64;
            // Elements as indices: the input of each rank, by bytes.
            let inputs: Vec<Vec<u64>> = shapes
                .iter()
                .map(|shape| {
                    let own = shape.channels.part(shape.rank);
                    own.flat_map(|channel| (0..frequencies).map(move |f| value(channel, f)))
                        .collect()
                })
                .collect();
            for to in &shapes {
                let mut output = vec![u64::MAX; to.output()];
                for from in &shapes {
                    if from.rank == to.rank {
                        for (at, into, many) in to.own() {
                            output[into..into + many]
                                .copy_from_slice(&inputs[to.rank][at..at + many]);
                        }
                        continue;
                    }
                    let (sends, receives) = (from.sends(to.rank), to.receives(from.rank));
                    assert_eq!(sends.len(), receives.len());
                    for ((start, sent), (into, received)) in sends.into_iter().zip(receives) {
                        assert_eq!(sent.bytes(), received.bytes());
                        for (a, b, many) in crate::layout::pairs(sent, received) {
                            let (a, b, many) =
                                ((start + a) / element, (into + b) / element, many / element);
                            output[b..b + many].copy_from_slice(&inputs[from.rank][a..a + many]);
                        }
                    }
                }
                let own = to.frequencies.part(to.rank);
                let expected: Vec<u64> =
                    (0..channels).flat_map(|c| own.clone().map(move |f| value(c, f))).collect();
                assert_eq!(output, expected, "{channels} x {frequencies} on {ranks}");
            }
        }
    }
}
