//! Simulated network faults.

use super::sent::{SendCounters, add};
use std::ops::Range;

/// Faults to apply to packets. The same seed gives the same faults. Needs the cargo feature `testing`.
///
/// ```
/// use onebuf::pipeline::sink::Faults;
///
/// let bad = Faults { lose: 0.01, reorder: 8, ..Faults::default() };
/// # let _ = bad;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// The fraction of packets to drop, from 0 to 1.
    pub lose: f64,
    /// The fraction of packets to send twice, from 0 to 1.
    pub duplicate: f64,
    /// By how many packets of its frame a packet may be delayed; 0 keeps the order.
    pub reorder: usize,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Faults {
    fn default() -> Self {
        Self { lose: 0.0, duplicate: 0.0, reorder: 0, seed: 1 }
    }
}

/// The order in which a frame's packets are sent.
#[derive(Debug, Default)]
pub(super) struct Order {
    packets: Vec<u32>,
    /// The state of the random number generator; 0 before its first use.
    state: u64,
    /// Makes the orders of several lanes differ.
    lane: u64,
}

impl Order {
    pub fn of_lane(lane: usize) -> Self {
        Self { lane: lane as u64, ..Self::default() }
    }

    /// A range of the next frame's packets in sending order, with faults applied.
    pub fn of_range(
        &mut self,
        packets: Range<u32>,
        faults: &Faults,
        sent: &SendCounters,
    ) -> &[u32] {
        if self.state == 0 {
            self.state =
                faults.seed.wrapping_add(self.lane).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        }
        let mut all = std::mem::take(&mut self.packets);
        all.clear();
        for packet in packets {
            if self.happens(faults.lose) {
                add(&sent.lost_packets, 1);
                continue;
            }
            all.push(packet);
            if self.happens(faults.duplicate) {
                add(&sent.duplicate_packets, 1);
                all.push(packet);
            }
        }
        if faults.reorder > 0 {
            self.reorder(&mut all, faults.reorder);
        }
        self.packets = all;
        &self.packets
    }

    fn happens(&mut self, part: f64) -> bool {
        part > 0.0 && self.random() < part
    }

    /// Shuffles packets within groups of `most + 1`, so that none is delayed by more than `most`.
    fn reorder(&mut self, all: &mut [u32], most: usize) {
        let most = most.min(all.len());
        for at in (0..all.len()).step_by(most + 1) {
            let end = all.len().min(at + most + 1);
            for place in at..end {
                let other = place + (self.random() * (end - place) as f64) as usize;
                all.swap(place, other.min(end - 1));
            }
        }
    }

    /// A random number in [0, 1).
    fn random(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{super::UdpSent, *};

    #[test]
    fn without_faults_everything_goes_in_order() {
        let sent = SendCounters::default();
        let mut order = Order::default();
        assert_eq!(order.of_range(0..5, &Faults::default(), &sent), [0, 1, 2, 3, 4]);
        assert_eq!(sent.get(), UdpSent::default());
    }

    #[test]
    fn faults_are_as_many_as_asked_for_and_counted() {
        let sent = SendCounters::default();
        let faults = Faults { lose: 0.1, duplicate: 0.05, reorder: 7, seed: 3 };
        let (mut order, mut again) = (Order::default(), Order::default());
        let packets = order.of_range(0..10_000, &faults, &sent).to_vec();
        let counted = sent.get();
        assert_eq!(packets.len() as u64, 10_000 - counted.lost_packets + counted.duplicate_packets);
        assert!(
            (800..1200).contains(&counted.lost_packets)
                && (300..600).contains(&counted.duplicate_packets)
        );
        assert_eq!(packets, again.of_range(0..10_000, &faults, &sent));
        assert_ne!(packets, order.of_range(0..10_000, &faults, &sent));
        let late = packets.iter().zip(packets.iter().skip(8)).filter(|(now, later)| now > later);
        assert_eq!(late.count(), 0, "eight places on, nothing is earlier");
        assert!(!packets.is_sorted());
    }
}
