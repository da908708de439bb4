//! Polling a driver from a waiting thread: without pauses at first, then with sleeps in between.

use crate::locks::thread;
use std::{hint, time::Duration};

/// How long a waiting thread polls the driver without yielding. Yielding the core takes as long as two polls, and most waits for work that a
/// GPU just received end within this time.
pub const AT_ONCE: Duration = Duration::from_micros(50);
/// A sleep is at most this fraction of the time waited so far, which bounds the added latency.
const LATE_SHARE: u32 = 16;
/// Minimum sleep: by default the kernel's timers fire 50 µs late.
pub const SHORTEST_SLEEP: Duration = Duration::from_micros(100);
/// Maximum time between two polls.
const LONGEST_SLEEP: Duration = Duration::from_millis(2);

/// How long to sleep after waiting for `waited`. `None` in the first 1.6 ms, where any sleep would be too long.
pub fn pause(waited: Duration) -> Option<Duration> {
    let pause = waited / LATE_SHARE;
    (pause >= SHORTEST_SLEEP).then(|| pause.min(LONGEST_SLEEP))
}

/// Pauses between two polls without sleeping; for devices that do not compute on the host's cores.
pub fn breathe(waited: Duration) {
    if waited < AT_ONCE { hint::spin_loop() } else { thread::yield_now() }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_a_small_part_of_the_wait() {
        let micros = Duration::from_micros;
        assert_eq!([0, 50, 1599].map(|waited| pause(micros(waited))), [None; 3]);
        assert_eq!(pause(micros(1600)), Some(SHORTEST_SLEEP));
        assert_eq!(pause(micros(16_000)), Some(micros(1000)));
        assert_eq!(pause(Duration::from_secs(9)), Some(LONGEST_SLEEP));
    }
}
