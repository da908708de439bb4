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
    /// The oldest frame that it has.
    Has(At),
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
    /// Not yet. No rank needs a frame before this one any more.
    Again(At),
    End,
    /// These ranks have failed.
    Failed(Vec<usize>),
}

/// Numbers in a message.
pub const NUMBERS: usize = 2;

impl Said {
    pub fn encode(self) -> [u64; NUMBERS] {
        match self {
            Self::Any => [0, 0],
            Self::Waits => [1, 0],
            Self::Has(at) => [2, at.raw()],
            Self::Ended => [3, 0],
            Self::Failed => [4, 0],
        }
    }

    /// What is not understood counts as a failure.
    pub fn decode([what, at]: [u64; NUMBERS]) -> Self {
        match what {
            0 => Self::Any,
            1 => Self::Waits,
            2 => Self::Has(At::of_raw(at)),
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
            Self::Has(at) => write!(f, "has frame {}", at.number()),
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
        let newest = all.iter().filter_map(|said| match said {
            Said::Has(at) => Some(*at),
            _ => None,
        });
        let newest = newest.max().unwrap_or_default();
        let has_it = |said: &Said| matches!(said, Said::Any | Said::Has(_));
        let same = |said: &Said| matches!(said, Said::Any) || *said == Said::Has(newest);
        match () {
            () if !failed.is_empty() => Self::Failed(failed),
            () if who(Said::Ended).next().is_some() => Self::End,
            () if all.iter().all(|said| has_it(said) && same(said)) => Self::Take(newest),
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
        Said::Has(At::new(0, number))
    }

    #[test]
    fn all_ranks_take_the_frame_that_all_have() {
        let at = |number| At::new(0, number);
        assert_eq!(Outcome::of(&[has(6), Said::Any, has(6)]), Outcome::Take(at(6)));
        assert_eq!(Outcome::of(&[has(6)]), Outcome::Take(at(6)));
        assert_eq!(Outcome::of(&[has(4), has(6)]), Outcome::Again(at(6)));
        assert_eq!(Outcome::of(&[has(4), Said::Waits]), Outcome::Again(at(4)));
        assert_eq!(Outcome::of(&[Said::Waits, Said::Waits]), Outcome::Again(at(0)));
        let later = Said::Has(At::new(1, 0));
        assert_eq!(Outcome::of(&[has(9), later]), Outcome::Again(At::new(1, 0)), "a new stream");
    }

    #[test]
    fn one_end_ends_all_and_a_failure_is_named() {
        assert_eq!(Outcome::of(&[has(4), Said::Ended]), Outcome::End);
        let failed = Outcome::of(&[Said::Failed, Said::Ended, has(1), Said::Failed]);
        assert_eq!(failed, Outcome::Failed(vec![0, 3]));
    }

    #[test]
    fn messages_are_read_again() {
        for said in [Said::Any, Said::Waits, has(7), Said::Ended, Said::Failed] {
            assert_eq!(Said::decode(said.encode()), said);
        }
        assert_eq!(Said::decode([99, 0]), Said::Failed);
        assert_eq!(told(&[has(7), Said::Waits]), "rank 0 has frame 7, rank 1 has none");
    }
}
