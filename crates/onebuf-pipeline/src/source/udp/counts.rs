//! Counters of a UDP source.

pub(super) use crate::net::counters::add;
use crate::net::counters::counters;
use std::sync::Arc;

counters! {
    /// What a [`Udp`](super::Udp) source has received and lost.
    UdpCounts, ReceiveCounters {
        /// Complete frames.
        frames,
        /// Incomplete frames.
        incomplete_frames,
        /// Useful packets.
        packets,
        /// Packets that never arrived, or too late.
        lost_packets,
        /// Packets that arrived after their frame was closed.
        late_packets,
        /// Packets that had arrived before.
        duplicate_packets,
        /// Packets of other streams or other senders than the current one.
        stray_packets,
        /// Packets of another format, or with another frame size.
        malformed_packets,
        /// Packets that were copied once because they arrived out of order or before their frame had a slot.
        moved_packets,
        /// Packets that the kernel dropped because the receive buffer was full. Joined packets count as one.
        kernel_drops,
        /// Streams that took over from one that had gone quiet.
        takeovers,
        /// The size of the receive buffers in bytes, of all sockets together.
        receive_buffer_bytes,
        /// Bytes of all packets that a stream's sockets received, headers and useless packets included.
        bytes,
        /// Calls that received them: one for each message of joined packets, or for up to 64 packets.
        batches,
    }
}

/// Reads a source's counters while a pipeline owns the source. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UdpMeter {
    /// What no socket counts: frames, and packets that came before a stream was chosen.
    pub(super) all: Arc<ReceiveCounters>,
    pub(super) sockets: Arc<[Arc<ReceiveCounters>]>,
}

impl UdpMeter {
    /// The counters so far.
    pub fn counts(&self) -> UdpCounts {
        self.sockets().into_iter().fold(self.all.get(), UdpCounts::plus)
    }

    /// The counters of each socket, in the order of the parts of a frame that they receive. Frames, and packets that
    /// arrived before a stream was chosen, are counted by [`UdpMeter::counts`] alone.
    pub fn sockets(&self) -> Vec<UdpCounts> {
        self.sockets.iter().map(|socket| socket.get()).collect()
    }
}
