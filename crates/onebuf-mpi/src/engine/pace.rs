//! How the communication thread waits: it neither burns a processor nor adds to a message's time.

use std::time::{Duration, Instant};

/// How long it polls without a pause after something has happened.
const BRISK: Duration = Duration::from_micros(200);
/// The pauses grow from the first to the last.
const FIRST_NAP: Duration = Duration::from_micros(20);
const LAST_NAP: Duration = Duration::from_millis(1);
/// The slowest network on which bytes that are on their way are waited for without a pause.
const SLOWEST_BYTES_PER_S: f64 = 5e8;

pub(super) struct Pace {
    /// No pauses until then.
    brisk_until: Instant,
    nap: Duration,
}

impl Pace {
    pub fn new() -> Self {
        Self { brisk_until: Instant::now(), nap: FIRST_NAP }
    }

    /// Notes that a poll has found something.
    pub fn progress(&mut self) {
        self.brisk_for(BRISK);
    }

    /// Notes that bytes are on their way: MPI needs the thread's time for them.
    pub fn expect(&mut self, bytes: usize) {
        self.brisk_for(BRISK + Duration::from_secs_f64(bytes as f64 / SLOWEST_BYTES_PER_S));
    }

    fn brisk_for(&mut self, time: Duration) {
        self.brisk_until = self.brisk_until.max(Instant::now() + time);
        self.nap = FIRST_NAP;
    }

    /// How long to sleep before the next poll; `None` for not at all.
    pub fn nap(&mut self) -> Option<Duration> {
        if Instant::now() < self.brisk_until {
            return None;
        }
        let nap = self.nap;
        self.nap = (nap * 2).min(LAST_NAP);
        Some(nap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_until_something_happens() {
        let mut pace = Pace::new();
        let naps: Vec<Duration> = (0..10).filter_map(|_| pace.nap()).collect();
        assert_eq!((naps[0], naps[1], naps[9]), (FIRST_NAP, 2 * FIRST_NAP, LAST_NAP));
        assert_eq!(pace.nap(), Some(LAST_NAP));
        pace.expect(1 << 40);
        assert_eq!(pace.nap(), None);
        pace.progress();
        assert_eq!(pace.nap(), None, "still on their way");
    }
}
