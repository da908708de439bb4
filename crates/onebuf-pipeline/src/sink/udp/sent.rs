//! What a UDP sink counts.

pub(super) use crate::net::counters::add;
use crate::net::counters::counters;
use std::sync::Arc;

counters! {
    /// What a [`Udp`](super::Udp) sink has sent.
    UdpSent {
        /// Frames.
        frames,
        /// Packets.
        packets,
        /// Bytes of frames, without the packets' heads.
        bytes,
        /// Packets that were lost on purpose.
        lost_packets,
        /// Packets that were sent twice on purpose.
        duplicate_packets,
        /// How often the other end said that nobody listens there.
        refused,
    }
}

/// Reads what a sink has sent while a pipeline has the sink, and never waits for it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UdpSentMeter(pub(super) Arc<Counters>);

impl UdpSentMeter {
    /// What has been sent so far.
    pub fn sent(&self) -> UdpSent {
        self.0.get()
    }
}
