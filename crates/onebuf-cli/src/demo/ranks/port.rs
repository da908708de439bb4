//! A rank's own UDP port. A thread reads it all the time, because packets are lost while nothing reads them, and the frames
//! wait until all ranks agree on one.

use super::{
    super::{listen::UdpListen, wire::PATIENCE},
    losses::{At, Seen},
    rounds::Said,
};
use crate::{
    out::{Failure, Result},
    send::common::is_for_all_ranks,
};
use onebuf::{
    Complex32, Error,
    pipeline::source::{Arrival, Udp, UdpCounts, UdpMeter},
};
use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Whole frames that wait for those of other ranks: this many, or as many as fit in so many bytes, but never fewer than a few. Senders do
/// not start at the same time, and the ranks' frames must overlap.
const MOST_FRAMES: usize = 64;
const MOST_BYTES: usize = 256 << 20;
const FEWEST_FRAMES: usize = 4;

/// What a port has.
#[derive(Clone, Debug, PartialEq)]
pub enum Has {
    /// No whole frame yet.
    Nothing,
    /// The oldest of those that wait, and the number of its stream if the sender has given all ranks the same.
    Frame(At, Option<u32>),
    /// The stream has ended.
    End,
    /// It cannot receive any more.
    Failure(Error),
}

/// A port that is bound, and whose thread has begun when it [listens](Port::listen).
pub struct Port {
    udp: Option<Udp>,
    meter: UdpMeter,
    address: SocketAddr,
    queue: Arc<FrameQueue>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    /// Binds the port.
    pub fn open(listen: &UdpListen) -> Result<Self> {
        let about = |error: &dyn std::fmt::Display| {
            Failure::new(format!("udp:{}: {error}", listen.address()))
        };
        let udp = listen.open().map_err(|error| about(&error))?.timeout(PATIENCE);
        let address = udp.address().map_err(|error| about(&error))?;
        let (meter, queue) = (udp.meter(), Arc::default());
        Ok(Self { udp: Some(udp), meter, address, queue, thread: None })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn counts(&self) -> UdpCounts {
        self.meter.counts()
    }

    pub fn socket_counts(&self) -> Vec<UdpCounts> {
        self.meter.sockets()
    }

    /// Begins to receive frames of this many samples.
    pub fn listen(&mut self, samples: usize) -> Result<()> {
        let Some(udp) = self.udp.take() else { return Ok(()) };
        let most =
            (MOST_BYTES / (samples * size_of::<Complex32>())).clamp(FEWEST_FRAMES, MOST_FRAMES);
        let queue = self.queue.clone();
        let receive = move || queue.receive(udp, samples, most);
        self.thread = Some(thread::Builder::new().name("onebuf-port".into()).spawn(receive)?);
        Ok(())
    }

    /// Removes frames before that position, and offers the oldest of the others. Waits for a frame for at most this long.
    pub fn oldest(&self, from: At, most: Duration) -> Has {
        let nothing = |state: &mut State| {
            state.remove_before(from);
            state.offer();
            state.offered.is_none() && state.over.is_none()
        };
        let waited = self.queue.changed.wait_timeout_while(self.queue.lock(), most, nothing);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        match (&state.offered, &state.over) {
            (Some((at, _)), _) => Has::Frame(*at, state.common_of(*at)),
            (None, Some(Ok(()))) => Has::End,
            (None, Some(Err(error))) => Has::Failure(error.clone()),
            (None, None) => Has::Nothing,
        }
    }

    /// Takes the frame that was offered, which must be this one. Its memory comes [back](Port::give_back).
    pub fn take(&self, wanted: At) -> Result<Vec<Complex32>> {
        let mut state = self.queue.lock();
        let taken = state.offered.take_if(|(at, _)| *at == wanted);
        taken.map(|(_, samples)| samples).ok_or_else(|| {
            let has = state.offered.as_ref().map(|(at, _)| format!("frame {}", at.number()));
            let has = has.unwrap_or_else(|| "none".into());
            let wanted = wanted.number();
            Failure::new(format!("all ranks take frame {wanted}, but this one has {has}"))
        })
    }

    /// Learns of the other ranks' streams.
    pub fn align(&self, all: &[Said]) {
        let mut state = self.queue.lock();
        for said in all {
            if let Said::Has(at, Some(common)) = said {
                state.align(*common, at.stream());
            }
        }
    }

    pub fn give_back(&self, samples: Vec<Complex32>) {
        self.queue.lock().free.push(samples);
    }

    /// What has been seen of the streams so far.
    pub fn seen(&self) -> Seen {
        self.queue.lock().seen.clone()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.queue.lock().stop = true;
        // The thread looks every time it has listened for a moment. If it has panicked, it has said so itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Default)]
struct FrameQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The frame that the other ranks have been told of. It stays until this rank takes it, or no rank needs it any more.
    offered: Option<(At, Vec<Complex32>)>,
    waiting: VecDeque<(At, Vec<Complex32>)>,
    free: Vec<Vec<Complex32>>,
    seen: Seen,
    current: Current,
    /// Streams whose sender has given all ranks this number, and how many came before them. `None` if a number came again.
    common: HashMap<u32, Option<u16>>,
    /// How the stream has ended.
    over: Option<Result<(), Error>>,
    stop: bool,
}

impl State {
    fn remove_before(&mut self, from: At) {
        if let Some((_, samples)) = self.offered.take_if(|(at, _)| *at < from) {
            self.free.push(samples);
        }
        while let Some((at, _)) = self.waiting.front()
            && *at < from
            && let Some((_, samples)) = self.waiting.pop_front()
        {
            self.free.push(samples);
        }
    }

    /// Offers the oldest frame, unless one is offered already.
    fn offer(&mut self) {
        if self.offered.is_none() {
            self.offered = self.waiting.pop_front();
        }
    }

    /// Notes a whole frame, and returns its position.
    fn whole(&mut self, stream: Option<u32>, number: u64) -> At {
        self.forget(stream, number);
        let before = self.current.last.is_some().then_some(self.current.before);
        let at = self.current.whole(stream, number);
        self.seen.whole(at);
        if let Some(number) = stream.filter(|number| is_for_all_ranks(*number))
            && before != Some(self.current.before)
        {
            let again = self.common.contains_key(&number);
            self.common.insert(number, (!again).then_some(self.current.before));
        }
        at
    }

    /// Notes a frame that lacks packets.
    fn incomplete(&mut self, stream: Option<u32>, number: u64) {
        self.forget(stream, number);
        if let Some(at) = self.current.incomplete(stream, number) {
            self.seen.lost(at);
        }
    }

    /// A stream of which no frame was whole does not count: another one that follows is the first.
    fn forget(&mut self, stream: Option<u32>, number: u64) {
        if self.current.begins(stream, number) {
            self.seen = Seen::default();
        }
    }

    /// The number that all ranks have of a frame's stream.
    fn common_of(&self, at: At) -> Option<u32> {
        let mut all = self.common.iter();
        all.find(|(_, before)| before.map(u64::from) == Some(at.stream()))
            .map(|(number, _)| *number)
    }

    /// Another rank's oldest frame is of this stream, which is its stream number `theirs`. A rank that had no whole frame of an earlier
    /// stream has counted fewer: it takes over the larger count. No rank needs older streams any more.
    fn align(&mut self, common: u32, theirs: u64) {
        let Some(&Some(own)) = self.common.get(&common) else { return };
        let more = u16::try_from(theirs.saturating_sub(own.into())).unwrap_or(0);
        let last = self.current.before.checked_add(more);
        if let Some(last) = last.filter(|_| more > 0) {
            self.current.before = last;
            let frames = self.offered.iter_mut().chain(&mut self.waiting);
            frames.for_each(|(at, _)| *at = at.shifted(own, more));
            self.seen.shift(own, more);
            let later = self.common.values_mut().flatten().filter(|before| **before >= own);
            later.for_each(|before| *before += more);
        }
        if let Some(&Some(own)) = self.common.get(&common) {
            self.remove_before(At::new(own, 0));
        }
    }

    /// A whole frame. It replaces the oldest that waits, if there are as many as there may be.
    fn push(&mut self, at: At, samples: Vec<Complex32>, most: usize) {
        self.waiting.push_back((at, samples));
        if self.waiting.len() > most
            && let Some((_, samples)) = self.waiting.pop_front()
        {
            self.free.push(samples);
        }
    }
}

impl FrameQueue {
    /// Ignores poisoning: a thread that panicked has printed its message itself.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: receives until the stream ends.
    fn receive(&self, mut udp: Udp, samples: usize, most: usize) {
        let mut frame = vec![Complex32::ZERO; samples];
        while !self.lock().stop {
            let arrival = udp.receive(&mut frame);
            let stream = udp.current_stream();
            let mut state = self.lock();
            match arrival {
                Ok(Arrival::Whole { frame: number }) => {
                    let at = state.whole(stream, number);
                    let next = state.free.pop().unwrap_or_else(|| vec![Complex32::ZERO; samples]);
                    state.push(at, std::mem::replace(&mut frame, next), most);
                }
                Ok(Arrival::Holes { frame: number, .. }) => {
                    state.incomplete(stream, number);
                }
                Ok(Arrival::Silence) => continue,
                Ok(Arrival::End) => state.over = Some(Ok(())),
                Err(error) => state.over = Some(Err(error)),
            }
            let over = state.over.is_some();
            drop(state);
            self.changed.notify_all();
            if over {
                return;
            }
        }
    }
}

/// The stream of the last whole frame.
#[derive(Default)]
struct Current {
    /// The streams before it.
    before: u16,
    /// Before the first whole frame: the last one that lacked packets.
    early: Option<(Option<u32>, u64)>,
    last: Option<(Option<u32>, u64)>,
}

impl Current {
    /// Whether a frame is the first of its stream, and no frame before it was whole.
    fn begins(&mut self, stream: Option<u32>, number: u64) -> bool {
        let before = self.early.replace((stream, number));
        self.last.is_none() && !follows(before, stream, number)
    }

    /// The position of a whole frame. A frame of another stream, or one that is not newer than the last, begins a new stream.
    fn whole(&mut self, stream: Option<u32>, number: u64) -> At {
        if !self.goes_on(stream, number) {
            self.before = self.before.saturating_add(1);
        }
        self.last = Some((stream, number));
        At::new(self.before, number)
    }

    /// The position of a frame that lacks packets, if it is of the same stream. A stray packet looks like a stream of its own, which
    /// must not count.
    fn incomplete(&self, stream: Option<u32>, number: u64) -> Option<At> {
        self.goes_on(stream, number).then(|| At::new(self.before, number))
    }

    fn goes_on(&self, stream: Option<u32>, number: u64) -> bool {
        follows(self.last, stream, number)
    }
}

/// Whether a frame is a later one of the same stream, or the first of all.
fn follows(last: Option<(Option<u32>, u64)>, stream: Option<u32>, number: u64) -> bool {
    last.is_none_or(|(last, before)| last == stream && number > before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebuf::pipeline::sink::{self, Sink};

    const SOON: Duration = Duration::from_secs(20);

    fn samples(number: u64) -> Vec<Complex32> {
        vec![Complex32::new(number as f32, -1.0); 64]
    }

    fn open() -> (Port, sink::Udp) {
        let mut port = Port::open(&"127.0.0.1:0".parse().unwrap()).unwrap();
        port.listen(64).unwrap();
        let sender = sink::Udp::connect(port.address()).unwrap();
        (port, sender)
    }

    #[test]
    fn frames_wait_and_old_ones_are_removed() {
        let (port, mut sender) = open();
        assert_eq!(port.oldest(At::new(0, 0), Duration::ZERO), Has::Nothing);
        (0..5).for_each(|number| sender.take(&samples(number), number).unwrap());
        assert_eq!(port.oldest(At::new(0, 3), SOON), Has::Frame(At::new(0, 3), None));
        let why = port.take(At::new(0, 4)).err().unwrap().to_string();
        assert!(why.contains("take frame 4, but this one has frame 3"), "{why}");
        assert_eq!(port.take(At::new(0, 3)).unwrap(), samples(3));
        sender.finish().unwrap();
        assert_eq!(port.oldest(At::new(0, 4), SOON), Has::Frame(At::new(0, 4), None));
        assert_eq!(port.oldest(At::new(0, 5), SOON), Has::End);
        assert_eq!((port.counts().frames, port.seen().lost_frames()), (5, 0));
    }

    #[test]
    fn a_full_queue_drops_the_oldest() {
        let mut state = State::default();
        (0..6).for_each(|number| state.push(At::new(0, number), samples(number), 4));
        assert_eq!((state.waiting.len(), state.free.len()), (4, 2));
        assert_eq!(state.waiting[0], (At::new(0, 2), samples(2)));
    }

    /// A frame that the others know of is not replaced by newer ones, however many come before it is taken.
    #[test]
    fn an_offered_frame_stays() {
        let (port, _) = open();
        let push = |numbers: std::ops::Range<u64>| {
            let mut state = port.queue.lock();
            numbers.for_each(|number| state.push(At::new(0, number), samples(number), 4));
        };
        push(10..12);
        assert_eq!(port.oldest(At::new(0, 0), SOON), Has::Frame(At::new(0, 10), None));
        push(12..30);
        assert_eq!(port.oldest(At::new(0, 0), SOON), Has::Frame(At::new(0, 10), None));
        assert_eq!(port.take(At::new(0, 10)).unwrap(), samples(10));
        assert!(port.take(At::new(0, 10)).is_err(), "it is taken once");
        assert_eq!(port.oldest(At::new(0, 11), SOON), Has::Frame(At::new(0, 26), None));
        // Another rank's oldest frame is newer: this one is not needed.
        assert_eq!(port.oldest(At::new(0, 28), SOON), Has::Frame(At::new(0, 28), None));
        assert_eq!(port.take(At::new(0, 28)).unwrap(), samples(28));
    }

    /// A stream that took over has its own numbers; a stray packet between two frames begins no stream.
    #[test]
    fn streams_that_take_over_are_later() {
        let mut current = Current::default();
        assert_eq!(current.incomplete(Some(9), 4), Some(At::new(0, 4)));
        assert_eq!(current.whole(Some(9), 5), At::new(0, 5));
        assert_eq!(current.incomplete(Some(77), 0), None);
        assert_eq!(current.whole(Some(9), 6), At::new(0, 6));
        assert_eq!(current.whole(Some(10), 7), At::new(1, 7), "another sender");
        assert_eq!(current.whole(Some(10), 0), At::new(2, 0), "a sender that began again");
        assert!(At::new(1, 7) < At::new(2, 0));
    }

    /// A port that has heard only parts of an earlier sender's frames counts those of the next one alone.
    #[test]
    fn a_stream_without_a_whole_frame_does_not_count() {
        let heard = |early: &[(u32, u64)]| {
            let mut state = State::default();
            let early = early.iter();
            early.for_each(|&(stream, number)| {
                state.incomplete(Some(stream), number);
            });
            assert_eq!(state.whole(Some(9), 3), At::new(0, 3));
            state.incomplete(Some(9), 5);
            state.seen
        };
        let alone = heard(&[]);
        assert_eq!(alone.lost_frames(), 2);
        for early in [&[(7, 1000)][..], &[(7, 1), (7, 2)], &[(7, 2), (9, 2)], &[(9, 1000)]] {
            let lost = 2 + u64::from(early.contains(&(9, 2)));
            assert_eq!(heard(early).lost_frames(), lost, "{early:?}");
        }
        assert_eq!(heard(&[(7, 1000)]), alone);
        assert_eq!(heard(&[(9, 1)]).lost_frames(), 4, "the same stream: frames 1, 2, 4 and 5");
    }

    /// This rank had whole frames of the first run of a sender and of the second, the other one of the second alone.
    #[test]
    fn two_runs_of_a_sender_are_not_mixed() {
        let [first, second, third] = [0, 1, 2].map(|more| (0x6f62_0000 | more, 10));
        let rank = |runs: &[(u32, u64)]| {
            let mut state = State::default();
            for &(stream, frames) in runs {
                for number in 0..frames {
                    let at = state.whole(Some(stream), number);
                    state.push(at, samples(number), 64);
                }
            }
            state.offer();
            state
        };
        let said = |state: &State| {
            let at = state.offered.as_ref().unwrap().0;
            (at, state.common_of(at))
        };
        let (mut one, mut other) = (rank(&[first, second]), rank(&[second]));
        assert_eq!(said(&one), (At::new(0, 0), Some(first.0)));
        assert_eq!(said(&other), (At::new(0, 0), Some(second.0)), "the same position, another run");
        one.align(second.0, 0);
        one.offer();
        other.align(first.0, 0);
        assert_eq!(said(&one), (At::new(1, 0), Some(second.0)));
        other.align(second.0, 1);
        assert_eq!(said(&other), said(&one));
        assert_eq!(other.waiting.front().unwrap().0, At::new(1, 1));
        assert_eq!(other.whole(Some(second.0), 12), At::new(1, 12));
        assert_eq!(other.whole(Some(third.0), 0), At::new(2, 0));
        assert_eq!(other.seen.lost_frames(), 2);
        let mut wanted = Seen::default();
        (0..10).chain([12]).for_each(|number| wanted.whole(At::new(1, number)));
        wanted.whole(At::new(2, 0));
        assert_eq!(other.seen, wanted);
        // Streams of senders that have their own numbers stay where they are.
        let mut own = rank(&[(7, 4), (8, 4)]);
        own.align(8, 5);
        assert_eq!(said(&own), (At::new(0, 0), None));
    }

    #[test]
    fn a_port_that_is_in_use_is_named() {
        let (port, _) = open();
        let taken: UdpListen = port.address().to_string().parse().unwrap();
        let why = Port::open(&taken).err().unwrap().to_string();
        let name = format!("udp:{}", port.address());
        assert!(why.contains(&name) && why.contains("in use"), "{why}");
    }
}
