//! The source of frames: its first frame, and the stream.

use super::{
    Shape,
    signal::{Frames, Source, synthetic},
    stream::Feed,
    wire::Wire,
};
use crate::out::Result;
use onebuf::Complex32;
use onebuf_demo::Setup;

/// A source that has not started yet.
pub struct Supply<'s> {
    source: &'s Source,
    /// A network source whose first frame has been received.
    wire: Option<Wire>,
}

impl<'s> Supply<'s> {
    /// Checks a file source at once, so that problems are reported before anything is tested.
    pub fn of(source: &'s Source, setup: &Setup) -> Result<Self> {
        if let Source::File(path) = source {
            Frames::file(path, setup)?;
        }
        Ok(Self { source, wire: None })
    }

    /// The first frame, before the stream starts.
    pub fn first(&mut self, setup: &Setup) -> Result<Vec<Complex32>> {
        match self.source {
            Source::Synthetic => synthetic(0, setup),
            Source::File(path) => Ok(Frames::file(path, setup)?.samples(0, 1)?.to_vec()),
            Source::Network(listen) => {
                let wire = self.wire.insert(Wire::open(listen, &hint(setup))?);
                wire.first(setup.shape.samples())
            }
        }
    }

    /// The source for the streaming run.
    pub fn start(self, setup: &Setup) -> Result<Feed> {
        Ok(match (self.source, self.wire) {
            (_, Some(wire)) => Feed::Wire(wire),
            (Source::Synthetic, _) => Feed::Frames(Frames::synthetic(setup)?),
            (Source::File(path), _) => Feed::Frames(Frames::file(path, setup)?),
            (Source::Network(listen), _) => Feed::Wire(Wire::open(listen, &hint(setup))?),
        })
    }
}

fn hint(setup: &Setup) -> String {
    let Shape { length, channels, .. } = setup.shape;
    format!("frames of {channels} channels of {length} samples")
}
