//! Where time went: work on devices, and the causes of idle time.

use super::{Clock, Event, Trace, What};
use onebuf_core::topology::DeviceIx;
use onebuf_hal::SyncMethod;
use std::{collections::BTreeMap, fmt, ops::Range, time::Duration};

/// Why no device worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Idle {
    /// The next work was enqueued and followed work of another device: the chip switched between two of its APIs, or a fence
    /// joined two chips.
    Switch,
    /// The next work was enqueued and followed work of the same device: the device's gap between two pieces of work.
    Begin,
    /// The host was enqueueing the next work.
    Enqueue,
    /// The host was handing a buffer over: release, fence, acquire.
    HandOver,
    /// A thread was waiting for work that had finished, and had not noticed yet.
    Learn,
    /// The host did something else.
    Elsewhere,
}

impl Idle {
    /// All causes, in the order of listings.
    pub const ALL: [Idle; 6] =
        [Idle::Switch, Idle::Begin, Idle::Enqueue, Idle::HandOver, Idle::Learn, Idle::Elsewhere];
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Idle::Switch => "change of API",
            Idle::Begin => "from one work to the next",
            Idle::Enqueue => "host enqueues",
            Idle::HandOver => "host hands over",
            Idle::Learn => "host learns of the end",
            Idle::Elsewhere => "host elsewhere",
        })
    }
}

/// Where the time of some intervals went. The parts add up to the total: work of two devices at the same time counts once,
/// for the one that began first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The total duration of the intervals.
    pub total: Duration,
    /// Work by the devices' own clocks, by device and name.
    pub work: BTreeMap<(DeviceIx, String), Duration>,
    /// Idle time, by its cause.
    pub idle: BTreeMap<Idle, Duration>,
}

impl Trace {
    /// The current time on the clock of this trace's events.
    pub fn now(&self) -> Duration {
        self.hub.tracer().now()
    }

    /// Queries the device times of completed work. The recorder does so occasionally, which takes time; after this call it
    /// does not for the next few dozen launches.
    pub fn catch_up(&self) {
        self.recorder.catch_up();
    }

    /// Accounts for the time of these intervals, if device times were recorded
    /// ([`HubBuilder::trace_devices`](super::HubBuilderTraceExt::trace_devices)). Work counts for the interval in which its
    /// launch began.
    ///
    /// Device and host clocks are aligned as well as possible (see the [module](super)). Idle time before the first and after
    /// the last work may be off by a launch's latency to the device; the sum is right.
    ///
    /// ```
    /// # use onebuf::prelude::*;
    /// # fn main() -> onebuf::Result<()> {
    /// let hub = onebuf::builder().trace(1 << 12).trace_devices().build()?;
    /// let trace = hub.trace().expect("tracing is on");
    /// let start = trace.now();
    /// // … launches, and a wait for them …
    /// let account = trace.account([start..trace.now()]);
    /// assert_eq!(account.total, account.work.values().sum::<std::time::Duration>() + account.idle.values().sum());
    /// # Ok(())
    /// # }
    /// ```
    pub fn account(&self, stretches: impl IntoIterator<Item = Range<Duration>>) -> Account {
        let (events, mut account) = (self.events(), Account::default());
        stretches.into_iter().for_each(|stretch| account.add(&events, stretch));
        account
    }
}

/// A piece of work on a device.
struct Work<'e> {
    event: &'e Event,
    /// When the call that enqueued it returned.
    enqueued: Duration,
}

impl Account {
    fn add(&mut self, events: &[Event], stretch: Range<Duration>) {
        let began = |event: &&Event| stretch.contains(&event.start) && event.clock == Clock::Host;
        let calls: Vec<&Event> = events.iter().filter(began).collect();
        let earlier = works(events, &(Duration::ZERO..stretch.start));
        let mut before = earlier.last().map(|work| work.event.device);
        let mut at = stretch.start;
        for Work { event, enqueued } in works(events, &stretch) {
            let start = event.start.clamp(at, stretch.end);
            let changes = before.is_some_and(|device| device != event.device);
            let ready = if changes { Idle::Switch } else { Idle::Begin };
            self.explain(&calls, at..start.min(enqueued.max(at)));
            self.note(ready, start.saturating_sub(enqueued.max(at)));
            at = event.end.clamp(start, stretch.end);
            let key = (event.device, event.name.clone());
            *self.work.entry(key).or_default() += at - start;
            before = Some(event.device);
        }
        self.explain(&calls, at..stretch.end);
        self.total += stretch.end.saturating_sub(stretch.start);
    }

    /// Attributes an interval in which the devices waited for the host to what the host did.
    fn explain(&mut self, calls: &[&Event], stretch: Range<Duration>) {
        let inside = |at: &Duration| stretch.start < *at && *at < stretch.end;
        let edges = calls.iter().flat_map(|call| [call.start, call.end]).filter(inside);
        let mut edges: Vec<Duration> = edges.chain([stretch.start, stretch.end]).collect();
        edges.sort_unstable();
        for two in edges.windows(2) {
            let during = calls.iter().filter(|call| call.start <= two[0] && two[1] <= call.end);
            let cause = during.filter_map(|call| cause(call)).max();
            self.note(cause.unwrap_or(Idle::Elsewhere), two[1] - two[0]);
        }
    }

    fn note(&mut self, cause: Idle, time: Duration) {
        if !time.is_zero() {
            *self.idle.entry(cause).or_default() += time;
        }
    }
}

/// The cause of a host call. Of nested calls the greatest cause is the innermost: a thread waits within a hand-over, which
/// may be part of an enqueue.
fn cause(call: &Event) -> Option<Idle> {
    match call.what {
        What::Launch => Some(Idle::Enqueue),
        What::HandOver => Some(Idle::HandOver),
        What::Wait if call.sync_method == Some(SyncMethod::HostWait) => Some(Idle::Learn),
        What::Wait => Some(Idle::HandOver),
        What::Copy | What::Stage | What::Graft => None,
    }
}

/// The work that was enqueued in an interval and executed by a device, in order of execution. The event by the host's clock
/// precedes its twin by the device's clock. On the host's own queues the call is the work.
fn works<'e>(events: &'e [Event], stretch: &Range<Duration>) -> Vec<Work<'e>> {
    let mut works = Vec::new();
    for (at, call) in events.iter().enumerate() {
        if call.what != What::Launch
            || call.clock == Clock::Device
            || !stretch.contains(&call.start)
        {
            continue;
        }
        match events.get(at + 1).filter(|twin| twin.clock == Clock::Device) {
            Some(event) => works.push(Work { event, enqueued: call.end }),
            None if call.device == DeviceIx::HOST => {
                works.push(Work { event: call, enqueued: call.start })
            }
            None => {}
        }
    }
    works.sort_by_key(|work| work.event.start);
    works
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn call(what: What, device: u16, [start, end]: [u64; 2]) -> Event {
        let mut event = Event::new(what, DeviceIx(device), Some(device.into()));
        (event.start, event.end) = (us(start), us(end));
        event
    }

    fn wait(device: u16, times: [u64; 2]) -> Event {
        let mut event = call(What::Wait, device, times);
        event.sync_method = Some(SyncMethod::HostWait);
        event
    }

    fn named(name: &str, device: u16, times: [u64; 2]) -> Event {
        let mut event = call(What::Launch, device, times);
        event.name = name.into();
        event
    }

    /// A launch, and when it ran.
    fn launch(name: &str, device: u16, called: [u64; 2], [start, end]: [u64; 2]) -> [Event; 2] {
        let host = named(name, device, called);
        let mut ran = host.clone();
        (ran.start, ran.end, ran.clock) = (us(start), us(end), Clock::Device);
        [host, ran]
    }

    #[track_caller]
    fn check(events: &[Event], work: &[(u16, &str, u64)], idle: &[(Idle, u64)]) {
        let mut account = Account::default();
        account.add(events, us(100)..us(400));
        let named =
            |&(device, name, n): &(u16, &str, u64)| ((DeviceIx(device), String::from(name)), us(n));
        assert_eq!(account.work, work.iter().map(named).collect());
        assert_eq!(account.idle, idle.iter().map(|&(cause, n)| (cause, us(n))).collect());
        assert_eq!(account.total, us(300));
        let parts = account.work.values().chain(account.idle.values());
        assert_eq!(parts.sum::<Duration>(), us(300), "nothing is left out, nothing counts twice");
    }

    #[test]
    fn one_stream_that_is_kept_busy() {
        let mut events = launch("fft", 1, [100, 106], [110, 150]).to_vec();
        events.extend(launch("gemm", 1, [108, 120], [152, 380]));
        events.push(wait(1, [121, 390]));
        let idle =
            [(Idle::Enqueue, 6), (Idle::Begin, 4 + 2), (Idle::Learn, 10), (Idle::Elsewhere, 10)];
        check(&events, &[(1, "fft", 40), (1, "gemm", 228)], &idle);
    }

    #[test]
    fn two_apis_of_one_chip_change() {
        let mut events = launch("fft", 1, [100, 106], [106, 150]).to_vec();
        events.push(call(What::HandOver, 2, [107, 115]));
        events.extend(launch("gemm", 2, [116, 120], [290, 330]));
        events.push(wait(2, [120, 400]));
        let idle = [(Idle::Enqueue, 6), (Idle::Switch, 140), (Idle::Learn, 70)];
        check(&events, &[(1, "fft", 44), (2, "gemm", 40)], &idle);
    }

    #[test]
    fn a_host_between_two_devices() {
        let mut events = launch("fft", 1, [100, 104], [104, 150]).to_vec();
        // A hand-over in which a thread waits for the first device, and notices its end 30 µs late.
        events.push(wait(1, [110, 180]));
        events.push(call(What::HandOver, 2, [108, 190]));
        events.extend(launch("gemm", 2, [200, 220], [230, 400]));
        let idle = [
            (Idle::Enqueue, 4 + 20),
            (Idle::Learn, 30),
            (Idle::HandOver, 10),
            (Idle::Elsewhere, 10),
            (Idle::Switch, 10),
        ];
        check(&events, &[(1, "fft", 46), (2, "gemm", 170)], &idle);
    }

    #[test]
    fn what_overlaps_or_leaves_the_stretch_counts_once() {
        let mut events = launch("early", 1, [10, 20], [30, 300]).to_vec();
        events.extend(launch("one", 1, [100, 100], [90, 200]));
        events.extend(launch("two", 2, [100, 100], [150, 260]));
        events.extend(launch("one", 1, [120, 130], [280, 900]));
        check(&events, &[(1, "one", 100 + 120), (2, "two", 60)], &[(Idle::Switch, 20)]);
    }

    #[test]
    fn a_stretch_begins_where_the_last_one_ended() {
        let mut events = launch("gemm", 2, [10, 20], [30, 90]).to_vec();
        events.extend(launch("fft", 1, [100, 105], [245, 400]));
        check(&events, &[(1, "fft", 155)], &[(Idle::Enqueue, 5), (Idle::Switch, 140)]);
    }

    #[test]
    fn a_call_on_the_host_is_its_work() {
        let mut events = launch("fft", 1, [100, 110], [110, 150]).to_vec();
        events.push(wait(1, [115, 155]));
        events.push(named("gemm", 0, [160, 400]));
        let idle = [(Idle::Enqueue, 10), (Idle::Learn, 5), (Idle::Elsewhere, 5)];
        check(&events, &[(1, "fft", 40), (0, "gemm", 240)], &idle);
    }

    #[test]
    fn without_the_devices_times_everything_is_the_hosts() {
        let events = [call(What::Launch, 1, [110, 120]), wait(1, [120, 390]), wait(1, [401, 420])];
        let idle = [(Idle::Enqueue, 10), (Idle::Learn, 270), (Idle::Elsewhere, 20)];
        check(&events, &[], &idle);
    }
}
