//! Counters of a UDP sink.

pub(super) use crate::net::counters::add_shared as add;
use crate::net::counters::counters;
use std::sync::Arc;

counters! {
    /// What a [`Udp`](super::Udp) sink has sent.
    UdpSent, SendCounters {
        /// Frames sent.
        frames,
        /// Packets sent.
        packets,
        /// Bytes of frame data, without packet headers.
        bytes,
        /// Packets dropped by simulated faults.
        lost_packets,
        /// Packets sent twice by simulated faults.
        duplicate_packets,
        /// How many times the receiver's host reported that no process listens on the port.
        refused,
    }
}

/// Reads a sink's counters while a pipeline owns the sink. Reading never waits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UdpSentMeter(pub(super) Arc<SendCounters>);

impl UdpSentMeter {
    /// The counters so far.
    pub fn sent(&self) -> UdpSent {
        self.0.get()
    }
}
