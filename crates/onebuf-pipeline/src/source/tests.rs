//! Sources and sinks at the two ends of a pipeline, and the errors they return.

use super::*;
use crate::{
    Pipeline, WhenFull,
    sink::{self, Sink as _},
};
use onebuf_core::{
    Complex32, Hint, Hub, Verdicts,
    fake::{Delay, FakeConfig, Sharing},
    topology::{Verdict, VerdictState},
};
use onebuf_hal::{Error, MemoryKind, RouteKind};
use std::{
    fs,
    io::Write as _,
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

const N: usize = 100;

fn hub() -> Hub {
    let builder = onebuf::builder().without(["opencl", "cuda", "hip"]);
    builder.without(["vulkan", "gl"]).verdicts(Default::default()).build().unwrap()
}

/// Runs a source through a ring of two slots.
fn run<T: Pod + Send + Sync>(len: usize, source: impl FrameSource<T> + Send) -> Result<Vec<T>> {
    let (hub, mut all) = (hub(), Vec::new());
    let pipeline = Pipeline::builder(2, |_| hub.buffer::<T>(len).build()).feed(source, |slot| slot);
    pipeline.drain(sink::Memory::new(&mut all), |slot| slot).build()?.run()?;
    assert_eq!(hub.ledger().asked_bytes() + hub.ledger().implied_bytes(), 0, "all in place");
    Ok(all)
}

fn numbers(frames: usize) -> Vec<u32> {
    (0..(frames * N) as u32).map(|x| x.wrapping_mul(0x9e37_79b9)).collect()
}

#[track_caller]
fn refused<T>(result: Result<T>, what: &str) {
    let error = result.err().unwrap().to_string();
    assert!(error.contains(what), "{error} should say {what}");
}

#[test]
fn memory_comes_once_or_again() {
    let all = numbers(3);
    assert_eq!(run(N, Memory::new(&all)).unwrap(), all);
    assert_eq!(run(N, Memory::new(all.clone()).times(2)).unwrap(), [&all[..], &all].concat());
    assert_eq!(run(N, Memory::new(&all).times(0)).unwrap(), Vec::<u32>::new());
    refused(
        run(N + 1, Memory::new(&all)),
        "300 elements in memory are not a multiple of the frame's 101",
    );
    refused(run(N, Memory::<u32>::new(vec![])), "0 elements");
    let (hub, mut taken) = (hub(), 0);
    let pipeline = Pipeline::builder(2, |_| hub.buffer::<u32>(N).build());
    let pipeline = pipeline.feed(Memory::new(&all).forever(), |slot| slot);
    let enough = |frame: &[u32], number: u64| {
        assert_eq!(frame[..], all[number as usize % 3 * N..][..N]);
        taken += 1;
        if number == 10 { Err(Error::invalid("enough")) } else { Ok(()) }
    };
    let failure = pipeline.drain(enough, |slot| slot).build().unwrap().run().unwrap_err();
    assert_eq!((&*failure.at, failure.frame), ("sink", 10));
    assert_eq!(taken, 11);
}

/// A fake device beside the host, and a verdict on the host's pages there.
fn proven_hub(fake: &FakeConfig, verdict: Verdict) -> Hub {
    let build = |verdicts| {
        let builder = onebuf::builder().only(["host"]).fake(fake.clone());
        builder.verdicts(verdicts).build().unwrap()
    };
    let (known, mut verdicts) = (build(Verdicts::default()), Verdicts::default());
    let nodes = known.topology().nodes();
    verdicts.insert(&nodes[0], &nodes[1], RouteKind::HostPointer, verdict);
    build(verdicts)
}

/// Runs frames through memory of a fake device that the host cannot map, and returns how they come and go.
fn through_a_device(fake: FakeConfig, verdict: Verdict) -> String {
    let hub = proven_hub(&fake, verdict);
    let (device, all, mut out) = (hub.device("fake").unwrap(), numbers(7), Vec::new());
    let slot = |_| {
        let builder = hub.buffer::<u32>(N).shared_with([&device]).allocate_on(&device);
        builder.memory_kind(MemoryKind::Device).build()
    };
    let builder = Pipeline::builder(3, slot).feed(Memory::new(&all), |slot| slot);
    let mut pipeline = builder.drain(sink::Memory::new(&mut out), |slot| slot).build().unwrap();
    let explained = pipeline.explain();
    pipeline.run().unwrap();
    drop(pipeline);
    assert_eq!(out, all);
    // One upload and one download for each frame, whichever way.
    assert_eq!(hub.ledger().asked_bytes(), 2 * 4 * all.len() as u64);
    assert_eq!(hub.ledger().implied_bytes(), 0);
    explained
}

#[test]
fn frames_for_a_device_pass_through_pinned_memory() {
    // Copies that take their time: a host side that were filled again too early would be seen in the result.
    let delay = Delay::Random { seed: 5, max: Duration::from_millis(2) };
    let fake = FakeConfig { delay, shares_host_pages: Sharing::Alias, ..Default::default() };
    // What the doctor would find: this fake device uses the pages themselves.
    let proven =
        Verdict { state: VerdictState::Proven, zero_copy: Some(true), ..Verdict::default() };
    let explained = through_a_device(fake.clone(), proven);
    let lines: Vec<&str> = explained.lines().collect();
    assert!(lines[0].starts_with("the source fills pinned memory (host_pages)"), "{explained}");
    assert!(lines[1].starts_with("the sink reads pinned memory (host_pages)"), "{explained}");
    assert!(explained.contains("device of fake:0 cannot be mapped"), "{explained}");
    let unproven = through_a_device(fake, Verdict::default());
    assert!(unproven.contains("each frame is one transfer"), "{unproven}");
    assert!(unproven.contains("onebuf doctor --devices"), "{unproven}");
}

/// A hint chooses where the slots' memory is, and so how frames come: uploaded, read over the bus, or written into mapped memory.
#[test]
fn a_hint_chooses_between_upload_and_access_in_place() {
    let fake = FakeConfig { shares_host_pages: Sharing::Alias, ..Default::default() };
    let hub = proven_hub(
        &fake,
        Verdict { state: VerdictState::Proven, zero_copy: Some(true), ..Verdict::default() },
    );
    let device = hub.device("fake").unwrap();
    let all = numbers(5);
    let (uploads, in_pages) =
        ("a queue of its own uploads it: device of fake:0", "fills host_pages of host in place");
    let mapped = Some(MemoryKind::MappedDevice);
    for (hint, kind, told, uploads) in [
        (None, None, uploads, true),
        (Some(Hint::GpuPreferred), None, uploads, true),
        (Some(Hint::CpuPreferred), None, in_pages, false),
        (Some(Hint::Coherent), None, in_pages, false),
        (Some(Hint::Streaming), None, in_pages, false),
        (None, mapped, "fills mapped_device of fake:0 in place", false),
    ] {
        let before = hub.ledger().asked_bytes();
        let slot = |_| {
            let builder = hub.buffer::<u32>(N).shared_with([&device]);
            let builder = hint.into_iter().fold(builder, |builder, hint| builder.hint(hint));
            kind.into_iter().fold(builder, |builder, kind| builder.memory_kind(kind)).build()
        };
        let mut out = Vec::new();
        let builder = Pipeline::builder(3, slot).feed(Memory::new(&all), |slot| slot);
        let mut pipeline = builder.drain(sink::Memory::new(&mut out), |slot| slot).build().unwrap();
        let explained = pipeline.explain();
        assert!(explained.contains(told), "{hint:?} {kind:?}: {explained}");
        pipeline.run().unwrap();
        drop(pipeline);
        assert_eq!(out, all, "{hint:?}");
        // One upload and one download for each frame, or nothing.
        let moved = hub.ledger().asked_bytes() - before;
        assert_eq!(moved, if uploads { 2 * 4 * all.len() as u64 } else { 0 }, "{hint:?} {kind:?}");
        // No verdict says that this driver maps its memory without a copy.
        assert_eq!(hub.ledger().implied_bytes() > 0, kind.is_some(), "{hint:?} {kind:?}");
    }
}

#[test]
fn a_device_without_pinned_memory_gets_one_transfer_for_each_frame() {
    let kinds = vec![MemoryKind::Device];
    let fake =
        FakeConfig { shares_host_pages: Sharing::No, memory_kinds: kinds, ..Default::default() };
    let explained = through_a_device(fake, Verdict::default());
    assert!(explained.starts_with("the source fills ordinary memory"), "{explained}");
    let (hub, mut out) = (hub(), Vec::new());
    let pipeline = Pipeline::builder(2, |_| hub.buffer::<u32>(N).build());
    let pipeline = pipeline.feed(Memory::new(numbers(1)), |slot| slot);
    let pipeline = pipeline.drain(sink::Memory::new(&mut out), |slot| slot).build().unwrap();
    assert!(pipeline.explain().starts_with("the source fills host_pages of host in place"));
}

#[test]
fn files_come_back_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (hub, all) = (hub(), numbers(4));
    let ring = || Pipeline::builder(2, |_| hub.buffer::<u32>(N).build());
    let write = |sink: &mut (dyn sink::Sink<u32> + Send)| {
        let take = |frame: &[u32], number| sink.take(frame, number);
        let pipeline = ring().feed(Memory::new(&all), |slot| slot).drain(take, |slot| slot);
        pipeline.build().unwrap().run().unwrap();
    };
    write(&mut sink::File::create(path("a.raw")).unwrap());
    write(&mut sink::Npy::<u32>::create(path("a.npy"), &[4, 25]).unwrap());
    assert_eq!(
        run::<u32>(N, File::open(path("a.raw")).unwrap().times(2)).unwrap(),
        [&all[..], &all].concat()
    );
    let npy = || Npy::<u32>::open(path("a.npy"));
    assert_eq!(npy().unwrap().shape(), [4, 4, 25]);
    assert_eq!(run(N, npy().unwrap()).unwrap(), all);
    assert_eq!(run(4 * N, npy().unwrap()).unwrap(), all, "all of it is one frame");
    refused(
        run(2 * N, npy().unwrap()),
        "shape [4, 4, 25] does not divide into frames of 200 elements",
    );
    refused(Npy::<f32>::open(path("a.npy")), "field `descr` is `<u4`, expected `<f4`");
    refused(
        run::<u32>(N + 1, File::open(path("a.raw")).unwrap()),
        "an incomplete frame begins at offset 1212",
    );
    refused(File::open(path("none")), "none");
    refused(sink::File::create(path("no/such")), "no/such for writing");
    let wrong = sink::Npy::create(path("b.npy"), &[7]).and_then(|mut npy| npy.take(&all, 0));
    refused(wrong, "a frame of 400 elements does not have the shape [7]");
    let whole = fs::read(path("a.npy")).unwrap();
    let broken = |bytes: &[u8], what: &str| {
        fs::write(path("c.npy"), bytes).unwrap();
        refused(Npy::<u32>::open(path("c.npy")), what);
    };
    broken(&whole[..whole.len() - 1], &format!("ends at offset {}", whole.len() - 1));
    broken(
        &[&whole[..], &[0, 0]].concat(),
        &format!("2 extra bytes after its data, at offset {}", whole.len()),
    );
    broken(&whole[..50], "ends at offset 50");
    broken(&whole[1..], "does not begin");
}

/// What NumPy itself writes, byte for byte: `np.save(f, np.array([[1, 2], [3, 4]], dtype='<c8'))`.
#[test]
fn a_file_of_numpys_own_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let text = "{'descr': '<c8', 'fortran_order': False, 'shape': (2, 2), }";
    let head = [b"\x93NUMPY\x01\x00\x76\x00", format!("{text:117}\n").as_bytes()].concat();
    let all = [1.0, 2.0, 3.0, 4.0].map(Complex32::from);
    fs::write(folder.path().join("a.npy"), [&head, bytemuck::cast_slice(&all)].concat()).unwrap();
    let npy = Npy::<Complex32>::open(folder.path().join("a.npy")).unwrap();
    assert_eq!((head.len(), run(2, npy).unwrap()), (128, all.to_vec()));
}

fn connected(timeout: Duration) -> (Tcp, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Tcp::accept(&listener, timeout).unwrap(), sender)
}

#[test]
fn a_connection_brings_whole_frames_until_it_is_closed() {
    let (tcp, mut sender) = connected(Duration::from_secs(10));
    let all = numbers(50);
    let bytes: Vec<u8> = bytemuck::cast_slice(&all).to_vec();
    let sent = thread::spawn(move || {
        // Pieces end anywhere, and one pause in the middle of a frame is long enough to be noticed.
        for (number, piece) in bytes.chunks(777).enumerate() {
            sender.write_all(piece).unwrap();
            if number == 3 {
                thread::sleep(Duration::from_millis(120));
            }
        }
    });
    assert_eq!(run::<u32>(N, tcp).unwrap(), all);
    sent.join().unwrap();
}

#[test]
fn a_sender_may_come_after_the_pipeline_has_started() {
    let tcp = Tcp::listen("127.0.0.1:0", Duration::from_secs(10)).unwrap();
    let (address, all) = (tcp.address().unwrap(), numbers(5));
    let bytes: Vec<u8> = bytemuck::cast_slice(&all).to_vec();
    let sent = thread::spawn(move || {
        thread::sleep(Duration::from_millis(80)); // longer than one call of the source waits
        TcpStream::connect(address).unwrap().write_all(&bytes).unwrap();
    });
    assert_eq!(run::<u32>(N, tcp).unwrap(), all);
    sent.join().unwrap();
    let nobody = Tcp::listen("127.0.0.1:0", Duration::from_millis(20)).unwrap();
    let taken = nobody.address().unwrap();
    refused(run::<u32>(N, nobody), "timed out after 20 ms: a sender to connect");
    let _held = TcpListener::bind(taken).unwrap();
    refused(Tcp::listen(taken, Duration::from_secs(1)), "listening on tcp:");
    refused(Tcp::listen("127.0.0.1:0", Duration::ZERO), "the timeout must not be zero");
}

#[test]
fn a_connection_that_breaks_or_falls_silent_is_an_error() {
    let (tcp, mut sender) = connected(Duration::from_secs(10));
    sender.write_all(&[0; 4 * N + 6]).unwrap();
    drop(sender);
    refused(run::<u32>(N, tcp), "6 bytes into frame 1 of 400 bytes");
    let (tcp, mut sender) = connected(Duration::from_millis(100));
    sender.write_all(&[0; 7]).unwrap();
    refused(run::<u32>(N, tcp), "timed out after 100 ms: the rest of frame 0");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    refused(Tcp::accept(&listener, Duration::from_millis(20)), "a sender to connect");
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    refused(Tcp::connect(nobody, Duration::from_secs(1)), "sender at tcp:127.0.0.1");
    refused(Tcp::connect("nonsense", Duration::from_secs(1)), "HOST:PORT");
}

/// A listener whose queue is full does not answer: the wait ends by its timeout, or by the caller.
#[test]
fn an_attempt_to_connect_ends_by_its_timeout_or_its_caller() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let silent = listener.local_addr().unwrap();
    let _first = TcpStream::connect(silent).unwrap();
    let timeout = Duration::from_millis(20);
    let why = Tcp::connect(silent, timeout).map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("sender at tcp:127.0.0.1") && why.contains("timed out"), "{why}");
    let mut asked = 0;
    let gives_up = || {
        asked += 1;
        if asked < 2 { Ok(()) } else { Err(Error::invalid("enough")) }
    };
    refused(Tcp::connect_while(silent, Duration::from_secs(600), gives_up), "enough");
    assert_eq!(asked, 2);
}

/// Writes one byte at a time until the receiver is gone, and returns how many were written.
fn drip(mut sender: TcpStream) -> thread::JoinHandle<usize> {
    let pause = || thread::sleep(Duration::from_millis(1));
    let wrote = move || sender.write_all(&[7]).inspect(|()| pause()).is_ok();
    thread::spawn(move || std::iter::repeat_with(wrote).take_while(|&went| went).count())
}

/// A frame that would take an hour: the source returns between two bytes, and a stop ends the pipeline.
#[test]
fn a_stop_is_heard_whatever_a_sender_drips() {
    let (mut tcp, sender) = connected(Duration::from_secs(10));
    let dripped = drip(sender);
    let mut frame = vec![0u8; 4 << 20];
    let calls: Vec<Filled> = (0..3).map(|_| tcp.fill(&mut frame).unwrap()).collect();
    assert_eq!(calls, [Filled::Idle; 3]);
    let begun = tcp.begun.len();
    assert!(begun > 0 && tcp.begun.iter().all(|&byte| byte == 7), "{begun} bytes are kept");
    let hub = hub();
    let mut pipeline = Pipeline::builder(2, |_| hub.buffer::<u8>(4 << 20).build())
        .feed(tcp, |slot| slot)
        .drain(|_: &[u8], _| Ok(()), |slot| slot)
        .build()
        .unwrap();
    let handle = pipeline.handle();
    let report = thread::scope(|threads| {
        let running = threads.spawn(|| pipeline.run());
        handle.stop();
        running.join().unwrap()
    });
    assert_eq!(report.unwrap().frames, 0);
    drop(pipeline);
    assert!(dripped.join().unwrap() >= begun);
}

#[test]
fn a_frame_that_takes_too_long_is_an_error_and_no_byte_is_lost() {
    let (tcp, sender) = connected(Duration::from_secs(10));
    let mut tcp = tcp.frame_limit(Duration::from_millis(300));
    let dripped = drip(sender);
    let mut frame = vec![0u8; 4 << 20];
    let calls = (0..100).map(|_| tcp.fill(&mut frame));
    let error = calls.filter_map(Result::err).next().expect("an error");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("of 4194304 bytes arrived"), "{error}");
    // Smaller frames of the same stream then arrive complete.
    let mut small = vec![0u8; tcp.begun.len() + 1];
    let again = (0..100)
        .map(|_| tcp.fill(&mut small))
        .find_map(|filled| filled.ok().filter(|&filled| filled == Filled::Frame));
    assert_eq!(again, Some(Filled::Frame));
    assert!(small.iter().all(|&byte| byte == 7));
    drop(tcp);
    dripped.join().unwrap();
}

/// A full ring blocks the receiver, which loses packets: all are counted, and no frame is wrong.
#[test]
fn a_blocked_sink_loses_frames_and_counts_them() {
    let udp = Udp::bind("127.0.0.1:0").unwrap().receive_buffer(8192);
    let (meter, address) = (udp.meter(), udp.address().unwrap());
    let (hub, mut seen) = (hub(), Vec::new());
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let frame = |number: u32| vec![number.wrapping_mul(0x9e37_79b9) | 1; N];
    let seen_by_sink = &mut seen;
    let take = move |got: &[u32], _: u64| {
        let _ = blocked.recv(); // until the sender has sent all
        let number = (0..200).find(|&number| frame(number) == got);
        seen_by_sink.push(number.ok_or_else(|| Error::invalid("a frame that was never sent"))?);
        Ok(())
    };
    let pipeline = Pipeline::builder(2, |_| hub.buffer::<u32>(N).build()).feed(udp, |slot| slot);
    let pipeline = pipeline.drain(take, |slot| slot).when_full(WhenFull::Block);
    let mut pipeline = pipeline.build().unwrap();
    let handle = pipeline.handle();
    let report = thread::scope(|threads| {
        threads.spawn(move || {
            let mut sender = sink::Udp::connect(address).unwrap().payload(100).unwrap();
            (0..200).for_each(|number| sender.take(&frame(number), 0).unwrap());
            drop(unblock);
            // The end must arrive when the receive buffer has room again.
            while handle.report().frames == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(100));
            sender.finish().unwrap();
        });
        pipeline.run().unwrap()
    });
    drop(pipeline);
    let counts = meter.counts();
    assert!(seen.is_sorted() && seen.len() as u64 == report.frames, "{seen:?}");
    assert!(counts.kernel_drops > 0 && report.incomplete > 0, "{counts:?} {report:?}");
    assert_eq!((counts.frames, counts.incomplete_frames), (report.frames, report.incomplete));
    assert_eq!(report.frames + report.incomplete, 200, "each frame is one or the other");
    // The kernel counts joined packets once.
    assert_eq!(counts.packets, 800 - counts.lost_packets);
    assert!(counts.lost_packets >= counts.kernel_drops, "{counts:?}");
}
