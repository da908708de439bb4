//! What both ends of a stream are made with.

use super::{MOST_STREAM, Spec};
use crate::{
    counts::Counters,
    world::{Claimed, World},
};
use bytemuck::Pod;
use onebuf::Buffer;
use onebuf_hal::{Error, Result};
use std::{fmt, sync::Arc, time::Duration};

/// The settings of an end.
pub(crate) struct End {
    pub world: World,
    pub peer: usize,
    pub stream: u32,
    pub checksum: bool,
    pub timeout: Duration,
    pub counters: Arc<Counters>,
    runs: u64,
    what: &'static str,
}

impl End {
    pub fn new(world: &World, peer: usize, what: &'static str) -> Result<Self> {
        world.check_rank(peer)?;
        Ok(Self {
            world: world.clone(),
            peer,
            stream: 0,
            checksum: false,
            timeout: world.timeout(),
            counters: Arc::default(),
            runs: 0,
            what,
        })
    }

    pub fn set_stream(&mut self, stream: u32) -> Result<()> {
        if stream > MOST_STREAM {
            return Err(Error::invalid(format!(
                "stream {stream}: the numbers are 0 to {MOST_STREAM}"
            )));
        }
        self.stream = stream;
        Ok(())
    }

    /// Begins a run with slots of these buffers, which must be equally long.
    pub fn open<T: Pod>(&mut self, buffers: &[&Buffer<T>]) -> Result<(Spec, Claimed)> {
        let lengths = buffers.iter().map(|buffer| buffer.len());
        let (Some(least), Some(most)) = (lengths.clone().min(), lengths.max()) else {
            return Err(Error::invalid("a stream without slots"));
        };
        if least != most {
            return Err(Error::invalid(format!(
                "slots of {least} and of {most} elements in one stream"
            )));
        }
        let claimed = self.world.claim((self.what, self.stream, self.peer))?;
        self.runs += 1;
        let spec = Spec {
            stream: self.stream,
            peer: self.peer,
            bytes: most * size_of::<T>(),
            element: size_of::<T>() as u32,
            checksum: self.checksum,
            run: self.runs,
            timeout: self.timeout,
            ranks: self.world.ranks(),
        };
        Ok((spec, claimed))
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} with rank {} of {:?}", self.what, self.stream, self.peer, self.world)
    }
}
