//! One buffer as several arguments of a launch: the launch takes one view of it, with all that the parameters do.
//!
//! # Safety
//! A kernel that gets a buffer twice is trusted with that, as it is trusted to stay inside of its buffers: see `kernel`.

use crate::{array::Piece, error::Result, param::Given};
use onebuf::{Access, Arg, IntoArg, Queue};

/// The views of buffers that are passed more than once, by the index of their first argument.
pub(crate) struct Repeated<'b> {
    views: Vec<(usize, Arg<'b>)>,
}

/// The index of the first argument that is the same memory.
fn first(all: &[Given], index: usize) -> Option<usize> {
    let Given::Buffer(piece, _) = &all[index] else { return None };
    let same = |given: &Given| match given {
        Given::Buffer(other, _) => {
            std::ptr::eq(&**piece.root(), &**other.root())
                && (piece.start(), piece.bytes()) == (other.start(), other.bytes())
        }
        _ => false,
    };
    all.iter().position(same)
}

impl<'b> Repeated<'b> {
    /// Takes a view of each buffer that is passed more than once.
    pub fn new(all: &'b [Given], queue: &'b Queue) -> Result<Self> {
        let mut views = Vec::new();
        for index in 1..all.len() {
            let Some(first) = first(all, index).filter(|first| *first != index) else { continue };
            if views.iter().any(|(known, _)| *known == first) {
                continue;
            }
            let writes = |given: &Given| matches!(given, Given::Buffer(_, access) if *access != Access::Read);
            let same = |at: &usize| self::first(all, *at) == Some(first);
            let writes = (0..all.len()).filter(same).any(|at| writes(&all[at]));
            if let Given::Buffer(piece, _) = &all[first] {
                let view = match writes {
                    true => piece.write_on(queue)?.into_arg(),
                    false => piece.read_on(queue)?.into_arg(),
                };
                views.push((first, view));
            }
        }
        Ok(Self { views })
    }

    /// The library's arguments.
    pub fn arguments<'h>(&'h self, all: &'h [Given]) -> Result<Vec<Arg<'h>>> {
        (0..all.len()).map(|index| self.argument(all, index)).collect()
    }

    fn argument<'h>(&'h self, all: &'h [Given], index: usize) -> Result<Arg<'h>> {
        if !self.views.is_empty()
            && let Some((_, view)) =
                self.views.iter().find(|(at, _)| first(all, index) == Some(*at))
        {
            // SAFETY: see the head of this file.
            return Ok(unsafe { view.again() }?);
        }
        Ok(match &all[index] {
            Given::Buffer(Piece::Whole(root), _) => (&*root.buffer).into_arg(),
            Given::Buffer(Piece::Part(region, _), _) => (&region.part).into_arg(),
            Given::Value(bytes, count) => Arg::bytes(&bytes[..*count]),
            Given::Long(bytes) => Arg::bytes(bytes),
            Given::Local(bytes) => Arg::local::<u8>(*bytes),
        })
    }
}
