//! Overlapped parts at every place of a pipeline: order, several frames at a time, ends, stops and failures.

use super::*;
use onebuf_core::{
    Buffer, Hub,
    fake::{Delay, FakeConfig},
};
use onebuf_hal::MemoryKind;
use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering as Order},
        mpsc,
    },
    task::Waker,
    thread,
    time::Duration,
};

const N: usize = 64;

fn hub() -> Hub {
    onebuf::builder().only(["host"]).verdicts(Default::default()).build().unwrap()
}

fn ring<'f>(hub: &'f Hub, depth: usize) -> Builder<'f, Buffer<u64>> {
    Pipeline::builder(depth, move |_| hub.buffer(N).build())
}

type WorkFn<'c> = dyn FnMut(&Buffer<u64>, u64) -> Result<Option<Filled>> + Send + 'c;

/// A part whose frames end on another thread, some time after they were begun.
struct Later<'c> {
    /// What to do with a slot when it is begun: `None` ends the stream.
    work: Box<WorkFn<'c>>,
    /// The most slots that were under way at a time.
    most: &'c AtomicUsize,
    ends: &'c Mutex<Vec<bool>>,
    /// Frames end only when so many are under way, as long as more come.
    at_least: usize,
}

struct LaterFlight<'r, 'c> {
    part: &'r mut Later<'c>,
    slots: &'r [Buffer<u64>],
    begun: VecDeque<Filled>,
    done: mpsc::Receiver<()>,
    waker: mpsc::Sender<()>,
    ready: usize,
}

impl Overlapped<Buffer<u64>> for Later<'_> {
    fn open<'r>(
        &'r mut self,
        slots: &'r [Buffer<u64>],
        waker: &Waker,
    ) -> Result<Box<dyn Flight + 'r>> {
        let (begin, begun) = mpsc::channel();
        let (end, done) = mpsc::channel();
        let (waker, at_least) = (waker.clone(), self.at_least);
        // Ends frames one by one, a moment after they have begun.
        thread::spawn(move || {
            let mut open = 0;
            loop {
                match begun.recv_timeout(Duration::from_millis(3)) {
                    Ok(()) => open += 1,
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                    Err(mpsc::RecvTimeoutError::Timeout) if open == 0 => continue,
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                }
                if open >= at_least || open > 0 && begun.try_recv().map(|()| open += 1).is_err() {
                    open -= 1;
                    let _ = end.send(());
                    waker.wake_by_ref();
                }
            }
        });
        Ok(Box::new(LaterFlight {
            part: self,
            slots,
            begun: VecDeque::new(),
            done,
            waker: begin,
            ready: 0,
        }))
    }

    fn explain(&self, _slot: &Buffer<u64>) -> Option<String> {
        Some("frames end later".into())
    }
}

impl Flight for LaterFlight<'_, '_> {
    fn begin(&mut self, slot: usize, frame: u64) -> Result<()> {
        let filled = (self.part.work)(&self.slots[slot], frame)?;
        self.begun.push_back(filled.unwrap_or(Filled::End));
        self.part.most.fetch_max(self.begun.len(), Order::Relaxed);
        let _ = self.waker.send(());
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Filled>> {
        self.ready += self.done.try_iter().count();
        if self.ready == 0 {
            return Ok(None);
        }
        self.ready -= 1;
        Ok(self.begun.pop_front())
    }

    fn end(&mut self, stopped: bool) -> Result<()> {
        self.part.ends.lock().unwrap().push(stopped);
        Ok(())
    }
}

/// Counters of a run: for the source, a stage and the sink.
#[derive(Default)]
struct Watch {
    most: [AtomicUsize; 3],
    ends: [Mutex<Vec<bool>>; 3],
    seen: Mutex<Vec<u64>>,
}

impl Watch {
    fn part<'c>(
        &'c self,
        at: usize,
        work: impl FnMut(&Buffer<u64>, u64) -> Result<Option<Filled>> + Send + 'c,
    ) -> Later<'c> {
        Later { work: Box::new(work), most: &self.most[at], ends: &self.ends[at], at_least: 2 }
    }

    /// A source of so many frames.
    fn source(&self, count: u64) -> Later<'_> {
        self.part(0, move |slot, frame| {
            if frame >= count {
                return Ok(None);
            }
            slot.fill(frame)?;
            Ok(Some(Filled::Frame))
        })
    }

    fn stage(&self) -> Later<'_> {
        self.part(1, |slot, _| {
            slot.map_mut()?.iter_mut().for_each(|x| *x = 3 * *x + 1);
            Ok(Some(Filled::Frame))
        })
    }

    fn sink(&self) -> Later<'_> {
        self.part(2, |slot, frame| {
            assert!(slot.to_vec()?.iter().all(|&x| x == 3 * frame + 1), "frame {frame}");
            self.seen.lock().unwrap().push(frame);
            Ok(Some(Filled::Frame))
        })
    }

    fn ends(&self) -> Vec<Vec<bool>> {
        self.ends.iter().map(|ends| ends.lock().unwrap().clone()).collect()
    }
}

#[test]
fn every_frame_in_its_order_with_several_under_way() {
    let hub = hub();
    for (depth, one_thread) in [(1, false), (2, false), (6, false), (1, true), (4, true)] {
        let watch = Watch::default();
        let builder = ring(&hub, depth).source_overlapped(watch.source(60));
        let builder = builder.stage_overlapped("later", &hub.host(), watch.stage());
        let builder = builder.sink_overlapped(watch.sink());
        let builder = if one_thread { builder.one_thread() } else { builder };
        let mut pipeline = builder.build().unwrap();
        assert_eq!(pipeline.explain().matches("frames end later").count(), 2);
        for run in 1..=2 {
            let report = pipeline.run().unwrap();
            assert_eq!((report.frames, report.on_the_way, report.stages[0].frames), (60, 0, 60));
            let seen: Vec<u64> = watch.seen.lock().unwrap().drain(..).collect();
            assert_eq!(seen, Vec::from_iter(0..60), "{depth} slots");
            assert_eq!(watch.ends(), vec![vec![false; run]; 3]);
            // The slots are free again.
            assert!(pipeline.slots().iter().all(|slot| slot.map_mut().is_ok()));
        }
        drop(pipeline);
        let most = watch.most.each_ref().map(|most| most.load(Order::Relaxed));
        if depth == 6 {
            assert!(most.iter().all(|&most| most >= 2), "{most:?}");
        }
        assert!(most.iter().all(|&most| most <= depth), "{most:?}");
    }
}

#[test]
fn functions_and_overlapped_parts_mix() {
    let hub = hub();
    for one_thread in [false, true] {
        let watch = Watch::default();
        let builder = ring(&hub, 4).source_overlapped(watch.source(40));
        let builder = builder.stage("function", &hub.host(), |work| {
            work.slot.map_mut()?.iter_mut().for_each(|x| *x = 3 * *x + 1);
            Ok(())
        });
        let mut seen = 0;
        let builder = builder.sink(|slot, frame| {
            assert!(slot.to_vec()?.iter().all(|&x| x == 3 * frame + 1));
            seen += 1;
            Ok(())
        });
        let builder = if one_thread { builder.one_thread() } else { builder };
        assert_eq!(builder.build().unwrap().run().unwrap().frames, 40);
        assert_eq!(seen, 40);
    }
}

#[test]
fn incomplete_frames_are_dropped_by_any_part() {
    let hub = hub();
    for one_thread in [false, true] {
        let watch = Watch::default();
        let drops = |n: u64, at: usize| {
            watch.part(at, move |slot, frame| {
                if at == 0 {
                    slot.fill(frame)?;
                }
                let filled = if frame % n == 1 { Filled::Incomplete } else { Filled::Frame };
                Ok((frame < 30 || at > 0).then_some(filled))
            })
        };
        let builder = ring(&hub, 3).source_overlapped(drops(3, 0));
        let builder = builder.stage_overlapped("drops", &hub.host(), drops(5, 1));
        let builder = builder.sink_overlapped(watch.part(2, |slot, frame| {
            assert_eq!(slot.map()?[0], frame);
            watch.seen.lock().unwrap().push(frame);
            Ok(Some(Filled::Frame))
        }));
        let builder = if one_thread { builder.one_thread() } else { builder };
        let report = builder.build().unwrap().run().unwrap();
        let left: Vec<u64> = (0..30).filter(|frame| frame % 3 != 1 && frame % 5 != 1).collect();
        assert_eq!(*watch.seen.lock().unwrap(), left);
        assert_eq!(report.frames + report.incomplete, 30, "{report:?}");
    }
}

#[test]
fn a_stop_tells_the_source_and_frames_in_flight_are_finished() {
    let hub = hub();
    for one_thread in [false, true] {
        let watch = Watch::default();
        let builder = ring(&hub, 4).source_overlapped(watch.source(u64::MAX));
        let builder = builder.stage_overlapped("later", &hub.host(), watch.stage());
        let builder = builder.sink_overlapped(watch.sink());
        let builder = if one_thread { builder.one_thread() } else { builder };
        let mut pipeline = builder.build().unwrap();
        let handle = pipeline.handle();
        let report = thread::scope(|threads| {
            threads.spawn(|| {
                while handle.report().frames < 10 {
                    thread::yield_now();
                }
                handle.stop();
            });
            pipeline.run().unwrap()
        });
        assert_eq!(
            (report.on_the_way, watch.ends()),
            (0, vec![vec![true], vec![false], vec![false]])
        );
        assert_eq!(*watch.seen.lock().unwrap(), Vec::from_iter(0..report.frames));
        assert!(pipeline.slots().iter().all(|slot| slot.map_mut().is_ok()));
    }
}

#[test]
fn a_failure_at_any_place_drops_all_flights() {
    let hub = hub();
    for (at, one_thread) in (0..3).flat_map(|at| [(at, false), (at, true)]) {
        let watch = Watch::default();
        let bad = |here: usize| {
            watch.part(here, move |slot, frame| {
                if here == at && frame == 7 {
                    return Err(Error::invalid("on purpose"));
                }
                if here == 0 {
                    slot.fill(frame)?;
                }
                Ok(Some(Filled::Frame))
            })
        };
        let builder = ring(&hub, 3).source_overlapped(bad(0));
        let builder =
            builder.stage_overlapped("stage", &hub.host(), bad(1)).sink_overlapped(bad(2));
        let builder = if one_thread { builder.one_thread() } else { builder };
        let mut pipeline = builder.build().unwrap();
        let failure = pipeline.run().unwrap_err();
        assert_eq!(
            (&*failure.at, failure.frame),
            (["source", "stage", "sink"][at], 7),
            "{failure}"
        );
        assert!(pipeline.slots().iter().all(|slot| slot.map_mut().is_ok()));
        drop(pipeline);
        assert!(watch.ends().iter().all(Vec::is_empty), "not an orderly end");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (hub, watch) = (hub(), Watch::default());
    let builder = ring(&hub, 2).source_overlapped(watch.source(1)).sink_overlapped(watch.sink());
    let refused =
        builder.when_full(WhenFull::DropOldest).build().map(drop).unwrap_err().to_string();
    assert!(refused.contains("cannot drop frames"), "{refused}");
    // A stage cannot end the stream.
    let ends = watch.part(1, |_, _| Ok(None));
    let builder = ring(&hub, 2).source_overlapped(watch.source(3)).sink_overlapped(watch.sink());
    let failure =
        builder.stage_overlapped("ends", &hub.host(), ends).build().unwrap().run().unwrap_err();
    assert!(failure.to_string().contains("only a source can end"), "{failure}");
}

/// The host's memory of several slots: in place, or beside memory that the host cannot map.
#[test]
fn slots_are_filled_and_read_in_place_or_beside() {
    let delay = Delay::Random { seed: 5, max: Duration::from_millis(1) };
    let fake = FakeConfig { delay, ..Default::default() };
    let hub =
        onebuf::builder().only(["host"]).verdicts(Default::default()).fake(fake).build().unwrap();
    let device = hub.device("fake").unwrap();
    for on_device in [false, true] {
        let before = hub.ledger().asked_bytes();
        let make = |_| match on_device {
            false => hub.buffer::<u64>(N).build(),
            true => {
                let builder = hub.buffer::<u64>(N).shared_with([&device]).allocate_on(&device);
                builder.memory_kind(MemoryKind::Device).build()
            }
        };
        let slots: Vec<Buffer<u64>> = (0..3).map(make).collect::<Result<_>>().unwrap();
        let (mut come, mut go) = (HostMemory::default(), HostMemory::default());
        for round in 0..2u64 {
            let fills = come.open(slots.iter().collect(), true).unwrap();
            let maps: Vec<_> = (0..3).map(|slot| fills.overwrite(slot).unwrap()).collect(); // at the same time
            for (slot, mut map) in maps.into_iter().enumerate() {
                map.fill(10 * round + slot as u64);
                fills.filled(slot, map).unwrap();
            }
            let reads = go.open(slots.iter().collect(), false).unwrap();
            let maps: Vec<_> = (0..3).map(|slot| reads.read(slot).unwrap()).collect();
            for (slot, map) in maps.iter().enumerate() {
                assert!(map.iter().all(|&x| x == 10 * round + slot as u64), "slot {slot}");
            }
        }
        let moved = hub.ledger().asked_bytes() - before;
        // One upload and one download for each slot and round, and none for the host's own.
        assert_eq!(moved, if on_device { 2 * 2 * 3 * 8 * N as u64 } else { 0 });
        let told = HostMemory::explain(&slots[0], true);
        assert_eq!(told.contains("in place"), !on_device, "{told}");
    }
}
