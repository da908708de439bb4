//! Plain device memory in two processes, passed by an IPC handle of its API: with the stubs of CUDA and HIP, and with
//! the real devices of this machine.

use super::{
    ACROSS, Hands, SOON, Stage, alone, assert_found_out,
    device::{UUID, home, offer, on_device, refused, spawn},
    open_fds, own_rounds, whole_hub,
};
use onebuf::{
    Buffer, Error, Hub, MemoryKind, Pool,
    peer::{Attach, Offer},
};
use onebuf_conformance::{Hardware, gpus, note, reported};
use std::{fs, thread, time::Duration};

/// 4 MiB: whole blocks, which IPC handles require.
const N: usize = 1 << 20;

fn play(test: &str, environment: &[(&str, &str)]) {
    for api in ["CUDA", "HIP"] {
        onebuf_conformance::play(&format!("ipc::{test}"), api, "imports", environment);
    }
}

#[test]
fn every_page_of_plain_device_memory_from_both_sides() {
    play("both_sides", &[]);
}

#[test]
fn late_work_is_waited_for() {
    play("both_sides", &[("ONEBUF_CUDA_STUB_DELAY_US", "500")]);
}

/// The second process uses another GPU: it has a replica, copied between the GPUs.
#[test]
fn another_gpu_gets_peer_copies() {
    play("across", &[]);
    play("across", &[("ONEBUF_CUDA_STUB_PEERS", "0")]);
}

#[test]
fn two_device_memories_are_found_out() {
    play("apart", &[]);
}

#[test]
fn a_peer_killed_with_device_memory_is_lost() {
    play("killed", &[]);
}

#[test]
fn what_cannot_be_is_told() {
    play("refusals", &[]);
}

/// Plain memory for its home.
fn buffer(hub: &Hub, home: &onebuf::Device) -> Buffer<u32> {
    let builder = hub.buffer::<u32>(N).shared_with([home]).memory_kind(MemoryKind::Device);
    builder.allocate_on(home).build().unwrap()
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn both_sides() {
    let _alone = alone();
    let hub = whole_hub();
    let home = home(&hub);
    rounds_with(&hub, &home, &on_device(home.id()));
    assert_eq!(hub.ledger().implied_bytes(), 0, "{}", hub.ledger());
}

/// Three rounds, all pages.
fn rounds_with(hub: &Hub, home: &onebuf::Device, theirs: &str) {
    let (stage, hands) = (Stage::new(), Hands::open(hub, &on_device(home.id())).unwrap());
    let buffer = buffer(hub, home);
    hands.assert_route(&buffer);
    let mut offer = offer(&buffer, &stage);
    let mut second = stage.spawn("rounds", theirs);
    let mut visit =
        offer.accept(SOON).unwrap_or_else(|why| panic!("{why}: {}", second.says("error:")));
    assert_eq!(own_rounds(&hands, &mut visit, 3).unwrap(), 0, "{home} <- {theirs}");
    drop(visit);
    assert_eq!(second.says("wrong pages:"), "0", "{home} -> {theirs}");
    let copied: u64 = second.says("copied:").parse().unwrap();
    assert_eq!(copied > 0, theirs.ends_with(ACROSS), "{theirs}: {copied} bytes");
    note(&format!("{home} <-> {theirs}: {N} words, 3 rounds"));
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn across() {
    let _alone = alone();
    let hub = whole_hub();
    let home = home(&hub);
    let api = home.info().api.0;
    let record = tempfile::NamedTempFile::new().unwrap();
    let path = record.path().to_str().unwrap();
    let (stage, hands) = (Stage::new(), Hands::open(&hub, &on_device(home.id())).unwrap());
    let buffer = buffer(&hub, &home);
    let mut offer = offer(&buffer, &stage);
    let mut command = stage.command("rounds", &format!("{api}:1{ACROSS}"));
    let command = command.env("ONEBUF_CUDA_STUB_RECORD", path);
    let mut second = super::Second(command.spawn().unwrap());
    let mut visit = offer.accept(SOON).unwrap();
    assert_eq!(own_rounds(&hands, &mut visit, 2).unwrap(), 0);
    drop(visit);
    assert_eq!(second.says("wrong pages:"), "0");
    let copied: u64 = second.says("copied:").parse().unwrap();
    assert!(copied >= (N * 4) as u64, "{copied}");
    let calls = fs::read_to_string(path).unwrap();
    let has = |part: &str| calls.lines().any(|line| line.contains(part) && line.ends_with(" = 0"));
    assert!(has("IpcOpenMemHandle") && has("MemcpyPeerAsync"), "{calls}");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn apart() {
    let _alone = alone();
    let (hub, stage) = (whole_hub(), Stage::new());
    let home = home(&hub);
    let hands = Hands::open(&hub, &on_device(home.id())).unwrap();
    assert_found_out(&stage, &hands, &buffer(&hub, &home), &on_device(home.id()));
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn killed() {
    let _alone = alone();
    let hub = whole_hub();
    dies(&hub, &home(&hub), 4);
}

/// Peers are killed while they write: the owner gets an error immediately, and the buffer stays usable.
fn dies(hub: &Hub, home: &onebuf::Device, times: usize) {
    let (stage, hands) = (Stage::new(), Hands::open(hub, &on_device(home.id())).unwrap());
    let buffer = buffer(hub, home);
    let mut offer = offer(&buffer, &stage);
    let mut fds = Vec::new();
    for _ in 0..times {
        let mut second = stage.spawn("writes for ever", &on_device(home.id()));
        let mut visit = offer.accept(SOON).unwrap();
        buffer.fill(7).unwrap();
        visit.hand_over().unwrap();
        assert_eq!(second.says("writing"), "");
        second.kill();
        let error = visit.wait(Duration::from_secs(1)).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        drop(visit);
        let all = buffer.to_vec().unwrap();
        assert!(all.iter().all(|&word| word == 7 || word == u32::MAX));
        hands.write(&buffer, 1, 2).unwrap();
        assert_eq!(hands.wrong_pages(&buffer, 1, 2).unwrap(), 0);
        fds.push(open_fds());
    }
    assert!(fds.iter().all(|&count| count == fds[1]), "fds leak: {fds:?}");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn refusals() {
    let _alone = alone();
    let (hub, stage) = (whole_hub(), Stage::new());
    let home = home(&hub);
    let api = home.info().api.0;
    let hands = Hands::open(&hub, &on_device(home.id())).unwrap();
    let buffer = buffer(&hub, &home);
    let mut offer = offer(&buffer, &stage);
    // The second process has no such device.
    let off = [("ONEBUF_CUDA_LIB", "none"), ("ONEBUF_HIP_LIB", "none")];
    let why = refused(&mut offer, spawn(&stage, "host", &off));
    assert!(why.contains(UUID) && why.contains(&format!("{api}_ipc of {}", home.id())), "{why}");
    // Its driver does not open the handle.
    let fails = ("ONEBUF_CUDA_STUB_FAIL", "cuIpcOpenMemHandle_v2:201,hipIpcOpenMemHandle:201");
    let why = refused(&mut offer, spawn(&stage, home.id(), &[fails]));
    assert!(
        why.contains("does not import its memory") && why.contains("IpcOpenMemHandle"),
        "{why}"
    );
    // Its driver does not report the size.
    let fails = ("ONEBUF_CUDA_STUB_FAIL", "cuMemGetAddressRange_v2:1,hipMemGetAddressRange:1");
    let why = refused(&mut offer, spawn(&stage, home.id(), &[fails]));
    assert!(why.contains("GetAddressRange"), "{why}");
    // The same process.
    let path = stage.socket().to_str().unwrap().to_owned();
    let here = thread::spawn(move || {
        Attach::to(path).open::<u32>(&whole_hub(), |builder| builder).map(drop).unwrap_err()
    });
    assert!(matches!(offer.accept(SOON).map(drop), Err(Error::PeerLost { .. })));
    let here = here.join().unwrap();
    assert!(matches!(here, Error::Unsupported { .. }), "{here}");
    assert!(here.to_string().contains("the one that exported it"), "{here}");

    // The owner can still serve.
    let mut second = stage.spawn("rounds", &on_device(home.id()));
    let mut visit = offer.accept(SOON).unwrap();
    assert_eq!(own_rounds(&hands, &mut visit, 1).unwrap(), 0);
    drop(visit);
    assert_eq!(second.says("wrong pages:"), "0");
    drop(offer);
    not_offered(&hub, &home);
}

/// Buffers whose handle would expose other memory are not offered.
fn not_offered(hub: &Hub, home: &onebuf::Device) {
    let stage = Stage::new();
    let builder = |n| hub.buffer::<u32>(n).shared_with([home]).memory_kind(MemoryKind::Device);
    let odd = builder(N + 1).build().unwrap();
    let pool = Pool::new(hub);
    let pooled = pool.get(&builder(N)).unwrap();
    for (buffer, why) in [(&odd, "2 MiB"), (&pooled, "pool")] {
        let error = Offer::open(buffer, stage.socket().to_str().unwrap()).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// On real GPUs whose plain memory has IPC handles.
#[test]
fn real_plain_memory_in_two_processes() {
    let _alone = alone();
    let hub = whole_hub();
    let devices = hub.devices();
    let homes: Vec<_> = devices.iter().filter(|device| device.info().caps.ipc).collect();
    let (what, needs) = (
        "device with handles of its memory for other processes",
        [Hardware::Nvidia, Hardware::Amd],
    );
    if !reported(what, &needs, gpus().iter().filter(|gpu| gpu.ipc).count(), homes.len()) {
        return;
    }
    for home in homes {
        rounds_with(&hub, home, &on_device(home.id()));
        dies(&hub, home, 3);
        let peers = devices.iter().filter(|d| d.info().api == home.info().api);
        for other in peers.filter(|other| other.index() != home.index()) {
            rounds_with(&hub, home, &format!("{}{ACROSS}", other.id()));
        }
    }
}
