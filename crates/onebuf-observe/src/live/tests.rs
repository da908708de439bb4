//! What viewers see, which viewers are accepted, and that the program never waits for them.

use super::{server::EVERY, snapshot::MOST_BYTES, *};
use onebuf::pipeline::{Filled, Pipeline};
use onebuf_core::{
    Buffer, Cause,
    fake::{FakeConfig, Sharing},
};
use onebuf_hal::{
    Error, RouteKind,
    testing::fuzz::{Bound, Form, Target},
};
use onebuf_socket::{Deadline, Listener, Socket};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    time::Duration,
};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(10);
const N: usize = 256;

fn hub() -> Hub {
    let fake = FakeConfig { shares_host_pages: Sharing::No, ..FakeConfig::default() };
    let builder = onebuf::builder().only(["host"]);
    builder.verdicts(Default::default()).fake(fake.clone()).fake(fake).build().unwrap()
}

/// A private directory, and the path of a socket in it.
fn place() -> (TempDir, String) {
    let rights = fs::Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().permissions(rights).tempdir().unwrap();
    let path = folder.path().join("x.sock").to_str().unwrap().to_owned();
    (folder, path)
}

fn shared(hub: &Hub, name: &str) -> Buffer<u32> {
    let devices = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap());
    hub.buffer::<u32>(N).shared_with(&devices).name(name).build().unwrap()
}

/// The first snapshot that satisfies the condition.
#[track_caller]
fn until(viewer: &mut Viewer, fits: impl Fn(&Snapshot) -> bool) -> Snapshot {
    for _ in 0..20 {
        let seen = viewer.next(SOON).unwrap();
        if fits(&seen) {
            return seen;
        }
    }
    panic!("it never was so");
}

#[test]
fn buffers_come_and_go_before_the_viewers_eyes() {
    let (_folder, path) = place();
    let hub = hub();
    let early = shared(&hub, "early");
    let published = hub.publish(&path).unwrap();
    let signal = shared(&hub, "signal");
    let mut viewer = Viewer::attach(&path, SOON).unwrap();
    let seen = viewer.next(SOON).unwrap();
    assert_eq!((seen.schema, seen.pid), (2, std::process::id()));
    assert_eq!(
        seen.devices.iter().map(|d| d.id.as_str()).collect::<Vec<_>>(),
        ["host", "fake:0", "fake:1"]
    );
    let [buffer] = &seen.buffers[..] else { panic!("{:?}", seen.buffers) };
    assert_eq!((buffer.name.as_str(), buffer.bytes, buffer.hand_overs), ("signal", 1024, 0));
    assert_eq!(
        (seen.fences.as_slice(), seen.ledger.as_slice(), &buffer.last),
        (&[][..], &[][..], &None)
    );

    signal.fill(1).unwrap();
    let queues = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap().queue().unwrap());
    drop(signal.write_on(&queues[0]).unwrap());
    drop(signal.read_on(&queues[1]).unwrap());
    let seen = until(&mut viewer, |seen| seen.buffers[0].hand_overs >= 2);
    let last = seen.buffers[0].last.clone().unwrap();
    assert_eq!((last.from.as_str(), last.to.as_str()), ("fake:0", "fake:1"));
    assert_eq!(seen.fences.iter().map(|(_, count)| count).sum::<u64>(), seen.buffers[0].hand_overs);
    assert!(seen.buffers[0].routes.iter().any(|route| route.kind == RouteKind::Staged));
    let of = |cause| seen.ledger.iter().filter(|e| e.cause == cause).map(|e| e.bytes).sum::<u64>();
    assert_eq!(of(Cause::Asked), 1024);
    assert_eq!(of(Cause::Implied), hub.ledger().implied_bytes());
    assert_eq!(seen.buffers[0].implied_bytes, hub.ledger().implied_bytes());

    drop((signal, early));
    until(&mut viewer, |seen| seen.buffers.is_empty());
    drop(published);
    // Snapshots sent earlier may still arrive.
    let lost = (0..20).find_map(|_| viewer.next(SOON).err()).unwrap();
    assert!(matches!(lost, Error::PeerLost { .. }), "{lost}");
    let gone = Viewer::attach(&path, SOON).unwrap_err();
    assert!(gone.to_string().contains("no program has published"), "{gone}");
}

#[test]
fn ranks_are_seen_while_they_have_a_source() {
    struct Two;

    impl RankSource for Two {
        fn ranks(&self) -> Vec<RankSeen> {
            let rank = |rank, state| RankSeen { rank, state, ..RankSeen::default() };
            vec![rank(0, RankState::Running), rank(1, RankState::Gone)]
        }
    }

    let (_folder, path) = place();
    let hub = hub();
    let published = hub.publish(&path).unwrap();
    let signal = shared(&hub, "signal");
    let mut viewer = Viewer::attach(&path, SOON).unwrap();
    assert!(viewer.next(SOON).unwrap().ranks.is_empty());
    published.ranks(Some(std::sync::Arc::new(Two)));
    let seen = until(&mut viewer, |seen| !seen.ranks.is_empty());
    assert_eq!((seen.ranks, seen.ranks_left_out, seen.buffers.len()), (Two.ranks(), 0, 1));
    published.ranks(None);
    until(&mut viewer, |seen| seen.ranks.is_empty());
    let collector = published.collector();
    assert_eq!(collector.snapshot().unwrap().buffers.len(), 1);
    drop((published, signal, hub));
    assert!(collector.snapshot().is_none(), "it keeps no hub");
}

#[test]
fn a_pipeline_is_seen_with_its_stages() {
    let (_folder, path) = place();
    let hub = hub();
    let published = hub.publish(&path).unwrap();
    let host = hub.host();
    let mut pipeline = Pipeline::builder(2, |_| hub.buffer::<u32>(N).shared_with([&host]).build())
        .source(|_, frame| Ok(if frame == 7 { Filled::End } else { Filled::Frame }))
        .stage("idle", &host, |_| Ok(()))
        .sink(|_, _| Ok(()))
        .build()
        .unwrap();
    published.pipeline("frames", pipeline.handle());
    published.pipeline("frames", pipeline.handle());
    pipeline.run().unwrap();
    let seen = Viewer::attach(&path, SOON).unwrap().next(SOON).unwrap();
    let [frames] = &seen.pipelines[..] else { panic!("{:?}", seen.pipelines) };
    assert_eq!((frames.name.as_str(), frames.frames, frames.dropped), ("frames", 7, 0));
    let [stage] = &frames.stages[..] else { panic!("{frames:?}") };
    assert_eq!((stage.name.as_str(), stage.device.as_str(), stage.frames), ("idle", "host", 7));
    assert_eq!(seen.buffers.len(), 2);
}

#[test]
fn a_viewer_that_never_reads_holds_nobody_up() {
    let (_folder, path) = place();
    let hub = hub();
    let published = hub.publish(&path).unwrap();
    // Large snapshots, so that the viewer's socket is soon full.
    let _many: Vec<_> = (0..200).map(|n| shared(&hub, &format!("{n:064}"))).collect();
    let deaf: Vec<Socket> =
        (0..3).map(|_| Socket::connect(path.as_ref(), Deadline::after(SOON)).unwrap()).collect();
    let mut viewer = Viewer::attach(&path, SOON).unwrap();
    let first = viewer.next(SOON).unwrap();
    let buffer = shared(&hub, "busy");
    (0..1000).for_each(|n| buffer.fill(n).unwrap());
    // A slow viewer's socket would be full by now.
    for _ in 0..6 {
        assert_eq!(viewer.next(SOON).unwrap().pid, first.pid);
    }
    drop(published);
    drop(deaf);
}

#[test]
fn who_reads_nothing_is_left_and_who_speaks_is_too() {
    let (_folder, path) = place();
    let hub = hub();
    let _published = hub.publish(&path).unwrap();
    let loud = Socket::connect(path.as_ref(), Deadline::after(SOON)).unwrap();
    let mut packet = vec![0; MOST_BYTES];
    loud.packet(&mut packet, Deadline::after(SOON), "the first").unwrap();
    assert!(loud.try_send(b"hello").unwrap());
    let ended = (0..20).find_map(|_| loud.packet(&mut packet, Deadline::after(SOON), "x").err());
    assert!(matches!(ended, Some(Error::PeerLost { .. })), "{ended:?}");

    let listener = Listener::open(&_folder.path().join("y.sock")).unwrap();
    let deaf = Socket::connect(&_folder.path().join("y.sock"), Deadline::after(SOON)).unwrap();
    let mut visitor = server::Visitor::new(listener.accept(Deadline::after(SOON)).unwrap());
    let told = (0..1000).take_while(|_| visitor.tell(&packet)).count();
    assert!((server::MOST_MISSED as usize..1000).contains(&told), "{told}");
    drop(deaf);
}

#[test]
fn only_so_many_look_at_a_time() {
    let (_folder, path) = place();
    let hub = hub();
    let _published = hub.publish(&path).unwrap();
    let mut all: Vec<_> = (0..9).map(|_| Viewer::attach(&path, SOON).unwrap()).collect();
    let refused = all.iter_mut().filter_map(|viewer| viewer.next(SOON).err()).count();
    assert_eq!(refused, 1);
    // After one viewer leaves, another is accepted.
    drop(all);
    let came = (0..20).any(|_| {
        std::thread::sleep(EVERY / 10);
        Viewer::attach(&path, SOON).unwrap().next(SOON).is_ok()
    });
    assert!(came);
}

#[test]
fn names_have_one_owner_and_folders_are_closed() {
    let (folder, path) = place();
    let hub = hub();
    let _published = hub.publish(&path).unwrap();
    assert!(matches!(hub.publish(&path), Err(Error::Busy { .. })));
    for wrong in ["", "a b", "..", &"x".repeat(64)] {
        assert!(matches!(hub.publish(wrong), Err(Error::InvalidArgument(_))), "{wrong}");
    }
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = hub.publish(open.join("x.sock").to_str().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("chmod 700"), "{refused}");
}

/// Sends this to the first viewer, and closes.
fn liar(path: &str, says: Vec<u8>) -> std::thread::JoinHandle<()> {
    let listener = Listener::open(path.as_ref()).unwrap();
    std::thread::spawn(move || {
        let viewer = listener.accept(Deadline::after(SOON)).unwrap();
        assert!(says.is_empty() || viewer.try_send(&says).unwrap());
    })
}

#[test]
fn what_a_hostile_publisher_says_is_an_error() {
    let deep = "[".repeat(MOST_BYTES);
    let other = br#"{"schema":3,"pid":1,"program":"","uptime_us":0,"devices":[],"buffers":[],"buffers_left_out":0,"fences":[],"ledger":[],"pipelines":[]}"#;
    let lies: [(&[u8], &str); 6] = [
        (b"", "closed the connection"),
        (b"\0\xff\xfe", "invalid snapshot"),
        (b"{}", "invalid snapshot"),
        (deep.as_bytes(), "invalid snapshot"),
        (other, "version 3"),
        (&[b' '; MOST_BYTES + 2], "too long"),
    ];
    for (says, why) in lies {
        let (_folder, path) = place();
        let liar = liar(&path, says.to_vec());
        let error = Viewer::attach(&path, SOON).unwrap().next(SOON).unwrap_err();
        assert!(error.to_string().contains(why), "{error}, not {why}");
        liar.join().unwrap();
    }
    let (_folder, path) = place();
    drop(UnixListener::bind(&path).unwrap());
    let error = Viewer::attach(&path, SOON).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

/// A publisher's names, and errors about its packets, are shown on terminals.
#[test]
fn names_of_a_publisher_come_without_what_a_terminal_obeys() {
    let evil = "x\x1b[2J\u{9b}\u{202e}y";
    let mut snapshot = Snapshot { schema: 2, program: evil.into(), ..Snapshot::default() };
    let name = || evil.to_owned();
    snapshot.devices.push(DeviceSeen { id: name(), name: name() });
    snapshot.buffers.push(BufferSeen {
        name: name(),
        number: 1,
        bytes: 4,
        home: name(),
        routes: vec![RouteSeen { to: name(), kind: onebuf_hal::RouteKind::Same }],
        hand_overs: 1,
        last: Some(HandOver { from: name(), to: name(), sync: onebuf_hal::SyncMethod::HostWait }),
        implied_bytes: 0,
    });
    let (cause, bytes, operations) = (onebuf_core::Cause::Asked, 1, 1);
    snapshot.ledger.push(Moved { from: name(), to: name(), cause, bytes, operations });
    let (frames, p50_us, p99_us, busy_us) = (1, None, None, 1);
    let stage = StageSeen { name: name(), device: name(), frames, p50_us, p99_us, busy_us };
    let pipeline = PipelineSeen { name: name(), stages: vec![stage], ..PipelineSeen::default() };
    snapshot.pipelines.push(pipeline);
    let packet = serde_json::to_vec(&snapshot).unwrap();
    let (_folder, path) = place();
    let honest = liar(&path, packet.clone());
    let seen = Viewer::attach(&path, SOON).unwrap().next(SOON).unwrap();
    honest.join().unwrap();
    let text = format!("{seen:?}");
    assert_eq!(text.matches("x\u{fffd}[2J\u{fffd}\u{fffd}y").count(), 13, "{text}");
    assert!(!text.contains("\\u{1b}"), "{text}");

    let text = String::from_utf8(packet).unwrap().replace("host_wait", "\\u001b[2J");
    let (_folder, path) = place();
    let liar = liar(&path, text.into_bytes());
    let error = Viewer::attach(&path, SOON).unwrap().next(SOON).unwrap_err().to_string();
    liar.join().unwrap();
    assert!(error.contains("invalid snapshot") && !error.contains('\x1b'), "{error:?}");
}

#[test]
fn a_snapshot_fits_its_packet() {
    let (_folder, path) = place();
    let hub = hub();
    let _published = hub.publish(&path).unwrap();
    let name = "\u{1}".repeat(100);
    let many: Vec<_> = (0..400).map(|_| shared(&hub, &name)).collect();
    let seen = Viewer::attach(&path, SOON).unwrap().next(SOON).unwrap();
    assert_eq!(seen.buffers.len() + seen.buffers_left_out, many.len());
    assert!(seen.buffers_left_out > 0 && !seen.buffers.is_empty());
    assert!(serde_json::to_vec(&seen).unwrap().len() <= MOST_BYTES);
}

#[test]
fn fuzz_snapshots() {
    let (_folder, path) = place();
    let hub = hub();
    let published = hub.publish(&path).unwrap();
    let buffer = shared(&hub, "signal");
    let mut viewer = Viewer::attach(&path, SOON).unwrap();
    let mut seen = until(&mut viewer, |seen| !seen.buffers.is_empty());
    seen.fences.push((onebuf_hal::SyncMethod::Event, 3));
    seen.pipelines.push(PipelineSeen { name: "p".into(), ..PipelineSeen::default() });
    let seeds = [seen.encode().unwrap()];
    Target {
        name: "snapshots",
        bound: Bound { per_byte: 32, fixed: 64 << 10 },
        input: &|random, most| Form::Text.changed(random, &seeds, most.min(MOST_BYTES)),
        parse: &|packet| Snapshot::decode(packet).is_ok(),
    }
    .run();
    drop((published, buffer));
}
