//! Owners that lie about an IPC handle. The peer is another process, because a handle of its own process would be refused for
//! that alone.

use super::{
    Attach,
    messages::Messages,
    tests::{fds_to, mappings_of, packet, private, socket},
    wire::{Grant, Kind, Message},
};
use onebuf_core::Hub;
use onebuf_cuda::testing::{alone, compile};
use onebuf_hal::{IpcRange, MemoryKind};
use onebuf_socket::{Deadline, Listener};
use std::{
    env,
    process::{Command, Stdio},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(60);
const STUB: &str = "ONEBUF_TEST_STUB";
const SOCKET: &str = "ONEBUF_TEST_SOCKET";
const BYTES: u64 = 4 << 20;

fn hub(library: &str) -> Hub {
    let hub = onebuf::builder().without(["opencl", "hip"]).library("cuda", library);
    hub.library("nvrtc", library).verdicts(Default::default()).build().unwrap()
}

/// What attaching reports in another process if the owner sends this answer.
fn attach_elsewhere(library: &str, answer: &[u8]) -> String {
    let folder = private();
    let listener = Listener::open(&socket(&folder)).unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "ipc_tests::client", "--ignored", "--nocapture"]);
    command.env(STUB, library).env(SOCKET, socket(&folder)).stdout(Stdio::piped());
    let client = command.spawn().unwrap();
    let door = listener.accept(Deadline::after(SOON)).unwrap();
    assert!(matches!(
        door.receive(Deadline::after(SOON), "hello").unwrap().0,
        Message::Hello { .. }
    ));
    door.send_packet(answer, &[], Deadline::after(SOON)).unwrap();
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("left: 0 0"), "{text}");
    text
}

#[test]
#[ignore = "the second process of the test below"]
fn client() {
    let (library, path) = (env::var(STUB).unwrap(), env::var(SOCKET).unwrap());
    let hub = hub(&library);
    let device = hub.device("cuda:0").unwrap();
    let said = match Attach::to(path).open::<u32>(&hub, |builder| builder.shared_with([&device])) {
        Ok(attached) => format!("attached: {} elements", attached.buffer().len()),
        Err(error) => format!("error: {error}"),
    };
    // Deferred frees run when the hub is dropped.
    drop(hub);
    println!("\n{said}\nleft: {} {}", fds_to("onebuf-stub"), mappings_of("onebuf-stub"));
}

fn of_device(range: &IpcRange, change: impl FnOnce(&mut Grant)) -> Vec<u8> {
    packet(|grant| {
        let chip = std::array::from_fn(|i| (i * 16 + 1) as u8);
        (grant.kind, grant.uuid, grant.device) = (Kind::CudaIpc, Some(chip), "cuda:0".into());
        (grant.fds, grant.base, grant.handle) = (0, range.base, range.handle.to_vec());
        (grant.allocation_bytes, grant.bytes) = (BYTES, BYTES);
        change(grant);
    })
}

#[test]
fn lies_about_handles_are_refused_and_leave_nothing() {
    let _alone = alone();
    let folder = private();
    let file = folder.path().join("libcuda_stub.so");
    let Some(()) = compile(&file) else { return };
    let library = file.to_str().unwrap();
    let hub = hub(library);
    let device = hub.device("cuda:0").unwrap();
    let builder =
        hub.buffer::<u8>(BYTES as usize).shared_with([&device]).memory_kind(MemoryKind::Device);
    let buffer = builder.build().unwrap();
    let range = super::inside::core(&buffer).handle_for_peers().unwrap();
    assert_eq!(
        (range.offset, range.bytes as u64, range.allocation_bytes as u64),
        (0, BYTES, BYTES)
    );
    let check = |answer: Vec<u8>, why: &str| {
        let said = attach_elsewhere(library, &answer);
        assert!(said.contains("error: ") && said.contains(why), "no `{why}` in: {said}");
    };
    // The correct grant and a part of it must work.
    let fine = attach_elsewhere(library, &of_device(&range, |_| {}));
    assert!(fine.contains("attached: 1048576 elements"), "{fine}");
    let part = of_device(&range, |g| (g.offset, g.bytes) = (4096, 8192));
    assert!(attach_elsewhere(library, &part).contains("attached: 2048 elements"));

    check(of_device(&range, |g| g.offset = 4), "invalid `offset`");
    check(of_device(&range, |g| g.offset = u64::MAX - 4), "invalid `offset`");
    check(of_device(&range, |g| g.bytes = 6), "invalid `bytes`");
    check(of_device(&range, |g| g.handle.truncate(63)), "invalid `handle`");
    check(of_device(&range, |g| g.uuid = None), "which chip");
    check(of_device(&range, |g| g.kind = Kind::HipIpc), "hip_ipc of cuda:0");
    check(of_device(&range, |g| (g.offset, g.bytes) = (2, 8)), "offset 2");
    // Only the driver can detect these.
    let longer = |g: &mut Grant| (g.allocation_bytes, g.bytes) = (2 * BYTES, 2 * BYTES);
    check(
        of_device(&range, longer),
        "an IPC handle of 4194304 bytes that was announced with 8388608",
    );
    check(of_device(&range, |g| g.handle = vec![7; 64]), "does not import its memory");
    check(of_device(&range, |g| g.handle = vec![0; 64]), "does not import its memory");
    // The owner's buffer is unaffected.
    buffer.fill(3).unwrap();
    assert!(buffer.to_vec().unwrap().iter().all(|byte| *byte == 3));
}
