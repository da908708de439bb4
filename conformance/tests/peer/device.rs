//! Device memory in two processes, passed by a descriptor: with the stubs of CUDA, HIP and OpenCL, whose memory is
//! really shared, and with the real devices of this machine.
//!
//! The stubs read their mode when they are loaded, so each test starts this program again with the stubs, and that
//! process starts the second one.

use super::{
    Hands, N, ON_DEVICE, SOON, Second, Stage, alone, assert_found_out, open_fds, own_rounds,
    whole_hub,
};
use onebuf::{Buffer, Error, Hub, MemoryKind, Pool, peer::Offer};
use onebuf_conformance::{Hardware, gpus, note, reported};
use std::{fs, thread, time::Duration};

/// The UUID of the stubs' first device.
pub const UUID: &str = "01112131-4151-6171-8191-a1b1c1d1e1f1";
const ANOTHER_CHIP: &str = "deadbeef000000000000000000000000";
const NO_IMPORT: &str = "cuImportExternalMemory:801";

/// Runs an ignored test of this file with the stubs.
fn play(test: &str, api: &str, part: &str, environment: &[(&str, &str)]) {
    onebuf_conformance::play(&format!("device::{test}"), api, part, environment);
}

#[test]
fn every_page_of_device_memory_from_both_sides() {
    play("both_sides", "CUDA", "imports,cached", &[]);
}

#[test]
fn every_page_of_device_memory_by_a_dma_buf() {
    play("both_sides", "HIP", "dma_buf,cached", &[]);
}

/// Work that is late at the end of a turn is waited for.
#[test]
fn late_work_is_waited_for() {
    let late = [("ONEBUF_STUB_DELAY_US", "300"), ("ONEBUF_CUDA_STUB_DELAY_US", "500")];
    play("both_sides", "CUDA", "imports,cached", &late);
}

#[test]
fn two_device_memories_are_found_out() {
    play("apart", "CUDA", "imports,cached", &[]);
}

#[test]
fn a_peer_killed_with_device_memory_is_lost() {
    play("killed", "CUDA", "imports,cached", &[]);
}

#[test]
fn what_is_no_match_is_told() {
    play("refusals", "CUDA", "imports,cached", &[]);
}

#[test]
fn a_driver_that_takes_its_own_memory_only_as_its_own() {
    play("as_its_own", "CUDA", "imports,cached", &[]);
}

/// The device that owns the memory.
pub fn home(hub: &Hub) -> onebuf::Device {
    hub.device("cuda:0").or_else(|_| hub.device("hip:0")).expect("a stub")
}

/// Exportable memory for the hands' device and its home.
fn buffer(hub: &Hub, home: &onebuf::Device, hands: &Hands) -> Buffer<u32> {
    let builder = hands.builder(hub.buffer::<u32>(N)).shared_with([home]);
    let buffer = builder.memory_kind(MemoryKind::Exportable).allocate_on(home).build().unwrap();
    hands.assert_route(&buffer);
    buffer
}

pub fn offer<'b>(buffer: &'b Buffer<u32>, stage: &Stage) -> Offer<'b, u32> {
    Offer::open(buffer, stage.socket().to_str().unwrap()).unwrap()
}

/// Three rounds, all pages, no copy on either side.
fn rounds_with(hub: &Hub, home: &onebuf::Device, mine: &str, theirs: &str) {
    let (stage, hands) = (Stage::new(), Hands::open(hub, mine).unwrap());
    let buffer = buffer(hub, home, &hands);
    let mut offer = offer(&buffer, &stage);
    let mut second = stage.spawn("rounds", theirs);
    let mut visit =
        offer.accept(SOON).unwrap_or_else(|why| panic!("{why}: {}", second.says("error:")));
    assert_eq!(own_rounds(&hands, &mut visit, 3).unwrap(), 0, "{mine} <- {theirs}");
    drop(visit);
    assert_eq!(second.says("wrong pages:"), "0", "{mine} -> {theirs}");
    assert_eq!(hub.ledger().implied_bytes(), 0, "{mine}, {theirs}: {}", hub.ledger());
    note(&format!("{mine} <-> {theirs}: {N} words, 3 rounds"));
}

pub fn on_device(id: &str) -> String {
    format!("{id}{ON_DEVICE}")
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn both_sides() {
    let _alone = alone();
    let hub = whole_hub();
    let home = home(&hub);
    // With OpenCL too: as an alias of the owner's memory, and as the client's home.
    for mine in [home.id(), "opencl:0"] {
        for theirs in [home.id(), "opencl:0"] {
            rounds_with(&hub, &home, &on_device(mine), &on_device(theirs));
        }
    }
}

/// The control: a second process with separate memory finds every page wrong, and so does the owner.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn apart() {
    let _alone = alone();
    let (hub, stage) = (whole_hub(), Stage::new());
    let home = home(&hub);
    let hands = Hands::open(&hub, &on_device(home.id())).unwrap();
    let buffer = buffer(&hub, &home, &hands);
    assert_found_out(&stage, &hands, &buffer, &on_device(home.id()));
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn killed() {
    let _alone = alone();
    let hub = whole_hub();
    let home = home(&hub);
    for theirs in [home.id(), "opencl:0"] {
        dies(&hub, &home, &on_device(theirs), 4);
    }
}

/// Peers are killed while they write: the owner gets an error immediately, and the buffer stays usable.
fn dies(hub: &Hub, home: &onebuf::Device, theirs: &str, times: usize) {
    let (stage, hands) = (Stage::new(), Hands::open(hub, &on_device(home.id())).unwrap());
    let buffer = buffer(hub, home, &hands);
    let mut offer = offer(&buffer, &stage);
    let mut fds = Vec::new();
    for _ in 0..times {
        let mut second = stage.spawn("writes for ever", theirs);
        let mut visit = offer.accept(SOON).unwrap();
        buffer.fill(7).unwrap();
        visit.hand_over().unwrap();
        assert_eq!(second.says("writing"), "");
        assert!(matches!(buffer.to_vec(), Err(Error::Busy { .. })));
        second.kill();
        let error = visit.wait(Duration::from_secs(10)).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        drop(visit);
        let all = buffer.to_vec().unwrap();
        assert!(all.iter().all(|&word| word == 7 || word == u32::MAX), "{theirs}");
        hands.write(&buffer, 1, 2).unwrap();
        assert_eq!(hands.wrong_pages(&buffer, 1, 2).unwrap(), 0, "{theirs}");
        fds.push(open_fds());
    }
    assert!(fds.iter().all(|&count| count == fds[1]), "fds leak: {fds:?}");
}

/// Starts a second process with further environment variables.
pub fn spawn(stage: &Stage, device: &str, environment: &[(&str, &str)]) -> Second {
    let mut command = stage.command("rounds", &on_device(device));
    Second(command.envs(environment.iter().copied()).spawn().expect("it starts"))
}

/// Returns the error of a second process that cannot attach. The owner gets an error and can serve the next.
pub fn refused(offer: &mut Offer<'_, u32>, mut second: Second) -> String {
    let error = offer.accept(SOON).map(drop).unwrap_err();
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    second.says("error:")
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn refusals() {
    let _alone = alone();
    let (hub, stage) = (whole_hub(), Stage::new());
    let home = home(&hub);
    let hands = Hands::open(&hub, &on_device(home.id())).unwrap();
    let buffer = buffer(&hub, &home, &hands);
    let mut offer = offer(&buffer, &stage);
    for with in [
        vec![("ONEBUF_CUDA_LIB", "none"), ("ONEBUF_STUB_UUID", ANOTHER_CHIP)],
        vec![("ONEBUF_CUDA_LIB", "none"), ("ONEBUF_OPENCL_LIB", "none")],
    ] {
        let why = refused(&mut offer, spawn(&stage, "host", &with));
        assert!(why.contains(UUID) && why.contains("opaque_fd of cuda:0"), "{why}");
    }
    // The owner does not choose the driver that imports its descriptor.
    let why = refused(&mut offer, spawn(&stage, "host", &[]));
    assert!(why.contains(UUID) && why.contains("one of cuda:0, opencl:0"), "{why}");
    let both = format!("{NO_IMPORT},cuMemImportFromShareableHandle:801");
    let why = refused(&mut offer, spawn(&stage, "cuda:0", &[("ONEBUF_CUDA_STUB_FAIL", &both)]));
    assert!(why.contains("cuda:0 does not import its memory"), "{why}");
    assert!(why.contains("cuImportExternalMemory"), "the first refusal is told: {why}");

    // Elements of another size, as with host pages.
    let path = stage.socket().to_str().unwrap().to_owned();
    let other = thread::spawn(move || {
        onebuf::peer::Attach::to(path).open::<u64>(&whole_hub(), |w| w).map(drop).unwrap_err()
    });
    assert!(matches!(offer.accept(SOON).map(drop), Err(Error::InvalidArgument(_))));
    assert!(matches!(other.join().unwrap(), Error::InvalidArgument(_)));

    // The owner can still serve.
    let mut second = stage.spawn("rounds", &on_device("cuda:0"));
    let mut visit = offer.accept(SOON).unwrap();
    assert_eq!(own_rounds(&hands, &mut visit, 1).unwrap(), 0);
    drop(visit);
    assert_eq!(second.says("wrong pages:"), "0");
    drop(offer);
    not_offered(&hub, &home);
}

fn not_offered(hub: &Hub, home: &onebuf::Device) {
    let stage = Stage::new();
    let builder = hub.buffer::<u32>(N).shared_with([home]);
    let plain = builder.clone().memory_kind(MemoryKind::Device).build().unwrap();
    let pool = Pool::new(hub);
    let pooled = pool.get(&builder.memory_kind(MemoryKind::Exportable)).unwrap();
    for buffer in [&plain, &pooled] {
        let error = Offer::open(buffer, stage.socket().to_str().unwrap()).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}

/// Memory that the driver does not import as external memory is imported as its own, as the stub's record of calls shows.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn as_its_own() {
    let _alone = alone();
    let (hub, stage) = (whole_hub(), Stage::new());
    let home = home(&hub);
    let hands = Hands::open(&hub, &on_device(home.id())).unwrap();
    let buffer = buffer(&hub, &home, &hands);
    let mut offer = offer(&buffer, &stage);
    let record = tempfile::NamedTempFile::new().unwrap();
    let path = record.path().to_str().unwrap();
    let with = [("ONEBUF_CUDA_STUB_FAIL", NO_IMPORT), ("ONEBUF_CUDA_STUB_RECORD", path)];
    let mut second = spawn(&stage, "cuda:0", &with);
    let mut visit = offer.accept(SOON).unwrap();
    assert_eq!(own_rounds(&hands, &mut visit, 3).unwrap(), 0);
    drop(visit);
    assert_eq!(second.says("wrong pages:"), "0");
    let calls = fs::read_to_string(path).unwrap();
    assert!(
        calls.contains("cuMemImportFromShareableHandle") && !calls.contains("cuMemCreate"),
        "{calls}"
    );
}

/// Whether a GPU exports its memory: the drivers decide, of which onebuf must find each.
fn exported_here(found: usize) -> bool {
    let drivers = gpus().iter().filter(|gpu| gpu.exports).count();
    reported(
        "device that exports its memory to another process",
        &[Hardware::Nvidia],
        drivers,
        found,
    )
}

#[test]
fn the_drivers_say_what_is_exported() {
    for api in ["CUDA", "HIP"] {
        play("has_exports", api, "imports", &[]);
        play("has_no_device", api, "imports", &[("ONEBUF_CUDA_STUB_DEVICES", "0")]);
    }
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn has_exports() {
    let homes = whole_hub().devices().iter().filter(|d| !d.info().caps.exports.is_empty()).count();
    assert!(exported_here(homes) && homes >= 2, "{homes}");
    // The control: an onebuf that finds no such device has not been skipped.
    assert!(std::panic::catch_unwind(|| exported_here(0)).is_err());
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn has_no_device() {
    assert_eq!(gpus().len(), 0);
}

/// On real GPUs that export their memory, with each device of the same chip that imports it.
#[test]
fn real_device_memory_in_two_processes() {
    let _alone = alone();
    let hub = whole_hub();
    let devices = hub.devices();
    let exports = |device: &&onebuf::Device| {
        let caps = &device.info().caps;
        !caps.exports.is_empty() && !caps.parses_fds
    };
    let homes: Vec<_> = devices.iter().filter(exports).collect();
    if !exported_here(homes.len()) {
        return;
    }
    for home in homes {
        let (chip, exports) = (&home.info().physical, &home.info().caps.exports);
        let takes = |device: &&onebuf::Device| {
            let info = device.info();
            info.physical.same_chip(chip)
                && exports.iter().any(|kind| info.caps.imports.contains(kind))
        };
        let peers: Vec<_> = devices.iter().filter(takes).map(onebuf::Device::id).collect();
        note(&format!("{home}: {}", peers.join(", ")));
        for theirs in &peers {
            rounds_with(&hub, home, &on_device(home.id()), &on_device(theirs));
        }
        dies(&hub, home, &on_device(home.id()), 3);
    }
}
