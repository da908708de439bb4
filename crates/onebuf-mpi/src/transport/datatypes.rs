//! Layouts as MPI describes them: counts are 32-bit numbers there.
//!
//! # Safety
//! Calls MPI on the communication thread. Arrays for a call outlive it.

#![allow(unsafe_code)]

use crate::{error::refused, layout::Layout};
use onebuf_hal::{Error, Result};
use onebuf_sys::mpi::{Datatype, Mpi};
use std::collections::HashMap;

/// The largest count that MPI's calls take.
pub(crate) const MOST_COUNT: usize = i32::MAX as usize;

/// What a layout is for MPI: so many of a type, or one of a new type.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Plan {
    Bytes(i32),
    /// Blocks of `length` bytes, `stride` bytes apart.
    Vector {
        blocks: i32,
        length: i32,
        stride: isize,
    },
    /// One after another, each as long as a count can say.
    Parts {
        lengths: Vec<i32>,
        offsets: Vec<isize>,
    },
}

/// Plans a layout with counts of at most `most`.
fn plan(layout: Layout, most: usize) -> Result<Plan> {
    let count = |n: usize| i32::try_from(n).ok().filter(|_| n <= most);
    let (blocks, length, stride) = layout.parts();
    if layout.is_contiguous() {
        return Ok(match count(length) {
            Some(bytes) => Plan::Bytes(bytes),
            None => parts(length, most),
        });
    }
    match (count(blocks), count(length), isize::try_from(stride)) {
        (Some(blocks), Some(length), Ok(stride)) => Ok(Plan::Vector { blocks, length, stride }),
        _ => Err(Error::unsupported(
            format!("a message of {blocks} blocks of {length} bytes"),
            format!("at most {most} blocks of at most {most} bytes"),
        )),
    }
}

fn parts(bytes: usize, most: usize) -> Plan {
    let starts = (0..bytes).step_by(most);
    let length = |start: usize| (bytes - start).min(most) as i32;
    Plan::Parts {
        lengths: starts.clone().map(length).collect(),
        offsets: starts.map(|start| start as isize).collect(),
    }
}

/// The types that were made, by their layout.
pub(crate) struct Datatypes {
    made: HashMap<Layout, Datatype>,
    most: usize,
}

impl Datatypes {
    /// `most` is the largest count to use; tests use small ones.
    pub fn new(most: usize) -> Self {
        Self { made: HashMap::new(), most: most.clamp(1, MOST_COUNT) }
    }

    /// The count and the type by which a call describes the layout.
    pub fn of(&mut self, mpi: &Mpi, layout: Layout) -> Result<(i32, Datatype)> {
        if let Some(known) = self.made.get(&layout) {
            return Ok((1, *known));
        }
        let byte = mpi.constants().byte;
        let made = match plan(layout, self.most)? {
            Plan::Bytes(bytes) => return Ok((bytes, byte)),
            Plan::Vector { blocks, length, stride } => {
                // SAFETY: plain numbers.
                unsafe { mpi.type_hvector(blocks, length, stride, byte) }
            }
            Plan::Parts { lengths, offsets } => {
                let many = lengths.len() as i32;
                // SAFETY: arrays of this many numbers.
                unsafe { mpi.type_hindexed(many, lengths.as_ptr(), offsets.as_ptr(), byte) }
            }
        };
        let made = made.map_err(|why| refused(mpi, why))?;
        // SAFETY: the type was just made.
        if let Err(why) = unsafe { mpi.type_commit(made) } {
            // SAFETY: as above; no message uses it.
            unsafe { mpi.type_free(made) }.unwrap_or_default();
            return Err(refused(mpi, why));
        }
        self.made.insert(layout, made);
        Ok((1, made))
    }

    /// Frees all types. Messages under way keep theirs.
    pub fn free(&mut self, mpi: &Mpi) {
        for (_, made) in self.made.drain() {
            // SAFETY: made here, and freed once.
            if let Err(why) = unsafe { mpi.type_free(made) } {
                tracing::debug!(%why, "a datatype could not be freed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_divided() {
        assert_eq!(plan(Layout::contiguous(100), MOST_COUNT), Ok(Plan::Bytes(100)));
        let large = plan(Layout::contiguous(MOST_COUNT + 7), MOST_COUNT).unwrap();
        let Plan::Parts { lengths, offsets } = large else { panic!("{large:?}") };
        assert_eq!((lengths, offsets), (vec![i32::MAX, 7], vec![0, MOST_COUNT as isize]));
        let small = plan(Layout::contiguous(10), 4).unwrap();
        assert_eq!(small, Plan::Parts { lengths: vec![4, 4, 2], offsets: vec![0, 4, 8] });
    }

    #[test]
    fn blocks_are_one_vector() {
        let layout = Layout::blocks(3, 8, 20);
        let vector = Plan::Vector { blocks: 3, length: 8, stride: 20 };
        assert_eq!(plan(layout, MOST_COUNT), Ok(vector));
        let far = Layout::blocks(2, 8, 5 << 30);
        assert!(
            matches!(plan(far, MOST_COUNT), Ok(Plan::Vector { stride, .. }) if stride == 5 << 30)
        );
        let refused = plan(Layout::blocks(9, 8, 20), 8).unwrap_err().to_string();
        assert!(refused.contains("9 blocks of 8 bytes"), "{refused}");
    }
}
