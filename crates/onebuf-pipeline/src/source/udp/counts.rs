//! What a UDP source counts.

pub(super) use crate::net::counters::add;
use crate::net::counters::counters;
use std::sync::Arc;

counters! {
    /// What has come over the network, and what has not.
    UdpCounts {
        /// Frames that came whole.
        frames,
        /// Frames of which something is missing.
        incomplete_frames,
        /// Packets that came and were of use.
        packets,
        /// Packets that never came, or too late.
        lost_packets,
        /// Packets that came when their frame was over.
        late_packets,
        /// Packets that had come before.
        duplicate_packets,
        /// Packets of other streams or other senders than the one that is received.
        stray_packets,
        /// Packets that are not ours, or do not fit the frames.
        malformed_packets,
        /// Packets that did not come where they were expected, or before their frame had a slot, and so were copied once.
        moved_packets,
        /// Packets that the kernel had no room for. It counts those that came together once.
        kernel_drops,
        /// Streams that took over from one whose sender had gone quiet.
        takeovers,
        /// The room that the kernel gives to packets that wait, in bytes.
        receive_buffer_bytes,
    }
}

/// Reads a source's counts while a pipeline has the source. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UdpMeter(pub(super) Arc<Counters>);

impl UdpMeter {
    /// What has been counted so far.
    pub fn counts(&self) -> UdpCounts {
        self.0.get()
    }
}
