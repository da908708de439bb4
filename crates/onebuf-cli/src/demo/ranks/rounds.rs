//! Agreement on the next frame: the ranks tell each other, again and again, which frame they have, until it is the same one.
//!
//! ```text
//!   rank 0: 4 │        4 │ 6 ─► all ranks process frame 6. Frames 4 and 5 are left out everywhere.
//!   rank 1:   │ waits    │ 6
//!   rank 2: 6 │        6 │ 6
//! ```

use super::losses::At;
use std::fmt;

/// What a rank says in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It has no channels, and takes every frame.
    Any,
    /// It has no whole frame yet.
    Waits,
    /// The oldest frame that it has, and the number of its stream if the sender has given all ranks the same.
    Has(At, Option<u32>),
    /// Its stream has ended.
    Ended,
    /// It has failed.
    Failed,
}

/// What follows for all ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Every rank has this frame.
    Take(At),
    /// Not yet. No rank needs a frame before this one any more. While ranks have streams of two numbers, positions cannot be compared,
    /// and this is the first of all: each rank [drops](super::port::Port::align) the streams before the other one itself.
    Again(At),
    End,
    /// These ranks have failed.
    Failed(Vec<usize>),
}

/// Numbers in a message.
pub const NUMBERS: usize = 3;

/// Tells a stream's number from none.
const IS_COMMON: u64 = 1 << 32;

impl Said {
    pub fn encode(self) -> [u64; NUMBERS] {
        match self {
            Self::Any => [0, 0, 0],
            Self::Waits => [1, 0, 0],
            Self::Has(at, common) => {
                [2, at.raw(), common.map_or(0, |number| IS_COMMON | u64::from(number))]
            }
            Self::Ended => [3, 0, 0],
            Self::Failed => [4, 0, 0],
        }
    }

    /// What is not understood counts as a failure.
    pub fn decode([what, at, common]: [u64; NUMBERS]) -> Self {
        match what {
            0 => Self::Any,
            1 => Self::Waits,
            2 => Self::Has(At::of_raw(at), (common & IS_COMMON != 0).then_some(common as u32)),
            3 => Self::Ended,
            _ => Self::Failed,
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("takes any"),
            Self::Waits => f.write_str("has none"),
            Self::Has(at, _) => write!(f, "has frame {}", at.number()),
            Self::Ended => f.write_str("has ended"),
            Self::Failed => f.write_str("has failed"),
        }
    }
}

impl Outcome {
    /// The same on every rank, because all of them know what all have said.
    pub fn of(all: &[Said]) -> Self {
        let who = |what: Said| (0..all.len()).filter(move |&rank| all[rank] == what);
        let failed: Vec<usize> = who(Said::Failed).collect();
        let frames = || {
            all.iter().filter_map(|said| match said {
                Said::Has(at, common) => Some((*at, *common)),
                _ => None,
            })
        };
        let (newest, common) = frames().max().unwrap_or_default();
        let same = |said: &Said| matches!(said, Said::Any) || *said == Said::Has(newest, common);
        let mut numbers = frames().filter_map(|(_, common)| common);
        let one = numbers.next();
        let differ = numbers.any(|other| Some(other) != one);
        match () {
            () if !failed.is_empty() => Self::Failed(failed),
            () if who(Said::Ended).next().is_some() => Self::End,
            () if differ => Self::Again(At::default()),
            () if all.iter().all(same) => Self::Take(newest),
            () => Self::Again(newest),
        }
    }
}

/// What all ranks have said, for an error.
pub fn told(all: &[Said]) -> String {
    let each = all.iter().enumerate().map(|(rank, said)| format!("rank {rank} {said}"));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(number: u64) -> Said {
        Said::Has(At::new(0, number), None)
    }

    #[test]
    fn all_ranks_take_the_frame_that_all_have() {
        let at = |number| At::new(0, number);
        assert_eq!(Outcome::of(&[has(6), Said::Any, has(6)]), Outcome::Take(at(6)));
        assert_eq!(Outcome::of(&[has(6)]), Outcome::Take(at(6)));
        assert_eq!(Outcome::of(&[has(4), has(6)]), Outcome::Again(at(6)));
        assert_eq!(Outcome::of(&[has(4), Said::Waits]), Outcome::Again(at(4)));
        assert_eq!(Outcome::of(&[Said::Waits, Said::Waits]), Outcome::Again(at(0)));
        let later = Said::Has(At::new(1, 0), None);
        assert_eq!(Outcome::of(&[has(9), later]), Outcome::Again(At::new(1, 0)), "a new stream");
    }

    /// Two runs of a sender begin with the same numbers. One that has given all ranks one number is not mixed with another.
    #[test]
    fn streams_of_two_numbers_have_no_common_frame() {
        let of = |stream, number, common| Said::Has(At::new(stream, number), common);
        let first = of(0, 6, Some(1));
        assert_eq!(Outcome::of(&[first, first]), Outcome::Take(At::new(0, 6)));
        for other in [of(0, 6, Some(2)), of(0, 9, Some(2)), of(1, 0, Some(2))] {
            assert_eq!(Outcome::of(&[first, Said::Any, other]), Outcome::Again(At::default()));
            assert_eq!(Outcome::of(&[Said::Waits, other, first]), Outcome::Again(At::default()));
        }
        let unknown = Outcome::of(&[first, of(0, 6, None)]);
        assert_eq!(unknown, Outcome::Again(At::new(0, 6)), "a sender of its own");
        assert_eq!(Outcome::of(&[first, of(1, 6, Some(1))]), Outcome::Again(At::new(1, 6)));
    }

    #[test]
    fn one_end_ends_all_and_a_failure_is_named() {
        assert_eq!(Outcome::of(&[has(4), Said::Ended]), Outcome::End);
        let failed = Outcome::of(&[Said::Failed, Said::Ended, has(1), Said::Failed]);
        assert_eq!(failed, Outcome::Failed(vec![0, 3]));
    }

    #[test]
    fn messages_are_read_again() {
        let common = Said::Has(At::new(3, 7), Some(0));
        for said in [Said::Any, Said::Waits, has(7), common, Said::Ended, Said::Failed] {
            assert_eq!(Said::decode(said.encode()), said);
        }
        assert_eq!(Said::decode([99, 0, 0]), Said::Failed);
        assert_eq!(told(&[has(7), Said::Waits]), "rank 0 has frame 7, rank 1 has none");
    }
}
