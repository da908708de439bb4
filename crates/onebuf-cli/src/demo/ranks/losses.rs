//! Which frames were not whole at every rank.

use crate::out::{Failure, Result};
use onebuf::bytemuck::{cast_slice, pod_read_unaligned};

/// The position of a frame: streams that took over from others come after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(u64);

/// Bits of the frame's number within its stream.
const NUMBER_BITS: u32 = 48;

impl At {
    pub fn new(streams_before: u16, number: u64) -> Self {
        Self(u64::from(streams_before) << NUMBER_BITS | number.min((1 << NUMBER_BITS) - 1))
    }

    pub fn raw(self) -> u64 {
        self.0
    }

    pub fn of_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub fn number(self) -> u64 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }

    pub fn stream(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    /// Its position when streams from the first one on come after so many more.
    pub fn shifted(self, first: u16, more: u16) -> Self {
        let later = self.stream() >= u64::from(first);
        if later { Self(self.0 + (u64::from(more) << NUMBER_BITS)) } else { self }
    }

    /// Frames between two of one stream.
    pub fn gap(self, next: Self) -> u64 {
        if self.stream() == next.stream() { (next.0 - self.0).saturating_sub(1) } else { 0 }
    }
}

/// A range of positions of one stream.
type Range = (u64, u64);

/// What a rank has seen of its streams.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// From the first frame to the end of the last one, for each stream.
    streams: Vec<Range>,
    /// Frames that were not whole.
    lost: Vec<Range>,
}

impl Seen {
    /// A whole frame has come. Frames that it skips are lost.
    pub fn whole(&mut self, at: At) {
        self.reaches(at);
        if let Some(stream) = self.streams.last_mut() {
            stream.1 = at.0 + 1;
        }
    }

    /// A frame has come that lacks packets.
    pub fn lost(&mut self, at: At) {
        self.whole(at);
        self.add(at.0, at.0 + 1);
    }

    /// Everything between the last frame and this one is lost.
    fn reaches(&mut self, at: At) {
        match self.streams.last().copied() {
            Some((first, end)) if At(first).stream() == at.stream() => self.add(end, at.0),
            _ => self.streams.push((at.0, at.0)),
        }
    }

    /// Streams from this one on come after so many more.
    pub fn shift(&mut self, first: u16, more: u16) {
        for (start, end) in self.streams.iter_mut().chain(&mut self.lost) {
            let shifted = At(*start).shifted(first, more).0;
            (*start, *end) = (shifted, *end + (shifted - *start));
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        match self.lost.last_mut() {
            _ if start >= end => {}
            Some(last) if last.1 == start => last.1 = end,
            _ => self.lost.push((start, end)),
        }
    }

    #[cfg(test)]
    pub fn lost_frames(&self) -> u64 {
        self.lost.iter().map(|(start, end)| end - start).sum()
    }

    /// As bytes, for rank 0.
    pub fn encode(&self) -> Vec<u8> {
        let numbers = [self.streams.len() as u64, self.lost.len() as u64];
        let ranges = self.streams.iter().chain(&self.lost).flat_map(|(start, end)| [*start, *end]);
        let all: Vec<u64> = numbers.into_iter().chain(ranges).collect();
        cast_slice(&all).to_vec()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || Failure::new("a rank told its losses in another format");
        if !bytes.len().is_multiple_of(8) {
            return Err(wrong());
        }
        let all: Vec<u64> = bytes.chunks_exact(8).map(pod_read_unaligned).collect();
        let (head, ranges) = all.split_first_chunk::<2>().ok_or_else(wrong)?;
        let streams = usize::try_from(head[0]).ok().and_then(|streams| streams.checked_mul(2));
        let (streams, lost) =
            streams.and_then(|streams| ranges.split_at_checked(streams)).ok_or_else(wrong)?;
        let pairs = |all: &[u64]| all.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        match lost.len().is_multiple_of(2) && lost.len() as u64 / 2 == head[1] {
            true => Ok(Self { streams: pairs(streams), lost: pairs(lost) }),
            false => Err(wrong()),
        }
    }
}

/// The frames that all ranks have taken, of each stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taken {
    /// The last one, and how many.
    streams: Vec<(At, u64)>,
}

impl Taken {
    /// Notes the next one. Returns how many were left out since the one before.
    pub fn note(&mut self, at: At) -> u64 {
        match self.streams.last_mut() {
            Some((last, frames)) if last.stream() == at.stream() => {
                let gap = last.gap(at);
                (*last, *frames) = (at, *frames + 1);
                gap
            }
            _ => {
                self.streams.push((at, 1));
                0
            }
        }
    }
}

/// Frames that are in no result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LeftOut {
    /// Not whole at every rank.
    pub incomplete: u64,
    /// Whole, but dropped by a rank because others, or the stages, were too late.
    pub dropped: u64,
}

impl LeftOut {
    /// Of what the ranks have seen up to the last frame that was taken.
    pub fn of(ranks: &[Seen], taken: &Taken) -> Self {
        let mut all = Self::default();
        for (last, frames) in &taken.streams {
            let own = |range: &&Range| At(range.0).stream() == last.stream();
            let starts = ranks.iter().filter_map(|seen| seen.streams.iter().find(own));
            let Some(first) = starts.map(|stream| stream.0).min() else { continue };
            let end = last.0 + 1;
            let lost = ranks.iter().flat_map(|seen| &seen.lost).filter(own);
            let lost: Vec<Range> = lost.map(|&(start, to)| (start, to.min(end))).collect();
            let incomplete = union(lost);
            all.incomplete += incomplete;
            // A rank may have seen only later frames of a stream that began again.
            all.dropped += end.saturating_sub(first).saturating_sub(frames + incomplete);
        }
        all
    }
}

/// How many positions are in at least one of the ranges.
fn union(mut ranges: Vec<Range>) -> u64 {
    ranges.sort_unstable();
    let (mut reached, mut sum) = (0, 0);
    for (start, end) in ranges {
        let start = start.max(reached);
        sum += end.saturating_sub(start);
        reached = reached.max(end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole frames of one stream, and lost ones.
    fn seen(stream: u16, whole: &[u64], lost: &[u64]) -> Seen {
        let mut seen = Seen::default();
        let mut all: Vec<u64> = whole.iter().chain(lost).copied().collect();
        all.sort_unstable();
        for number in all {
            let at = At::new(stream, number);
            if lost.contains(&number) { seen.lost(at) } else { seen.whole(at) }
        }
        seen
    }

    #[test]
    fn frames_that_never_came_are_lost() {
        let some = seen(0, &[3, 4, 7], &[5]);
        assert_eq!((some.lost.clone(), some.lost_frames()), (vec![(5, 7)], 2));
        assert_eq!(Seen::decode(&some.encode()).unwrap(), some);
        for wrong in [0, 7, 8, 15, 24] {
            assert!(Seen::decode(&some.encode()[..wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_frame_that_two_ranks_lack_counts_once() {
        // Frame 0 is lost at the first rank, 2 at both, 4 at the second, which dropped 5.
        let ranks = [seen(0, &[1, 3, 4, 5, 6, 7], &[0, 2]), seen(0, &[0, 1, 3, 5, 6, 8], &[2, 4])];
        let mut taken = Taken::default();
        let gaps = [1, 3, 6].map(|number| taken.note(At::new(0, number)));
        assert_eq!(gaps, [0, 1, 2]);
        assert_eq!(LeftOut::of(&ranks, &taken), LeftOut { incomplete: 3, dropped: 1 });
        assert_eq!(LeftOut::of(&ranks, &Taken::default()), LeftOut::default());
    }

    /// The only rank with channels heard the end of an earlier sender's stream before that of the one that was processed.
    #[test]
    fn frames_before_those_that_a_rank_has_seen_are_not_left_out() {
        let mut taken = Taken::default();
        for number in 0..100 {
            taken.note(At::new(0, number));
        }
        let left_out = LeftOut::of(&[seen(0, &[], &[1000])], &taken);
        assert_eq!(left_out, LeftOut::default());
    }

    #[test]
    fn streams_that_took_over_count_for_themselves() {
        let mut rank = seen(0, &[0, 1, 2], &[]);
        rank.whole(At::new(1, 100));
        rank.lost(At::new(1, 101));
        rank.whole(At::new(1, 102));
        let mut taken = Taken::default();
        for at in [At::new(0, 0), At::new(0, 1), At::new(1, 100), At::new(1, 102)] {
            taken.note(at);
        }
        let left_out = LeftOut::of(&[rank.clone(), rank], &taken);
        assert_eq!(left_out, LeftOut { incomplete: 1, dropped: 0 });
    }
}
