//! Owners that lie about device memory, with a peer that has such a device. The stub device checks as strictly as a driver
//! must.

use super::{
    tests::{
        ALL_SEALS, assert_refused, attach_from, attach_naming, fds_to, mappings_of, memfd, packet,
    },
    wire::{Grant, Kind},
};
use onebuf_cuda::testing::{alone, stub};
use onebuf_hal::Error;
use std::os::fd::OwnedFd;

/// The stub's name for its memory. Its smallest size is one large page.
const NAME: &str = "onebuf-stub";
const PAGE: u64 = 2 << 20;

/// The UUID of the stub's first device.
fn chip() -> [u8; 16] {
    std::array::from_fn(|i| (i * 16 + 1) as u8)
}

fn memory() -> OwnedFd {
    memfd(NAME, PAGE, ALL_SEALS)
}

fn of_device(change: impl FnOnce(&mut Grant)) -> Vec<u8> {
    packet(|grant| {
        (grant.kind, grant.uuid, grant.device) = (Kind::OpaqueFd, Some(chip()), "cuda:0".into());
        grant.allocation_bytes = PAGE;
        change(grant);
    })
}

#[test]
fn lies_about_device_memory_are_refused_and_leave_nothing() {
    let _alone = alone();
    let Some(library) = stub() else { return };
    let hub = onebuf::builder().without(["opencl", "hip", "vulkan", "gl"]).library("cuda", library);
    let hub = hub.library("nvrtc", library).verdicts(Default::default()).build().unwrap();
    let check = |answer: Vec<u8>, fd: OwnedFd, why: &str| {
        assert_refused(&attach_from(&hub, &answer, vec![fd]), why);
        assert_eq!((fds_to(NAME), mappings_of(NAME)), (0, 0), "{why}");
    };
    check(of_device(|g| g.offset = PAGE), memory(), "invalid `offset`");
    check(of_device(|g| g.offset = u64::MAX - 4), memory(), "invalid `offset`");
    check(of_device(|g| g.bytes = PAGE + 4), memory(), "invalid `offset`");
    check(of_device(|g| g.bytes = 6), memory(), "invalid `bytes`");
    check(of_device(|g| g.uuid = None), memory(), "which chip");
    // Only the driver can detect these.
    let not_taken = "cuda:0 does not import its memory";
    check(of_device(|_| {}), memfd("onebuf-liar", PAGE, ALL_SEALS), not_taken);
    let null = std::fs::File::open("/dev/null").unwrap();
    check(of_device(|_| {}), null.into(), not_taken);
    // These are refused before any driver sees them.
    check(of_device(|g| g.allocation_bytes = 2 * PAGE), memory(), "it has 2097152 bytes");
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE).unwrap();
    let said = attach_from(&hub, &of_device(|_| {}), vec![file.into()]);
    assert!(matches!(said, Error::PeerRefused { .. }), "{said}");
    check(of_device(|_| {}), std::io::pipe().unwrap().0.into(), "it is a pipe, not memory");
    let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
    check(of_device(|_| {}), socket.into(), "it is a socket, not memory");
    let folder = std::fs::File::open("/").unwrap();
    check(of_device(|_| {}), folder.into(), "it is a directory, not memory");
    // A device that the caller did not name is not used; the error names it.
    for named in [vec![], vec![hub.host()]] {
        let unnamed = attach_naming(&hub, &named, &of_device(|_| {}), vec![memory()]);
        assert!(matches!(unnamed, Error::Unsupported { .. }), "{unnamed}");
        assert!(unnamed.to_string().contains("one of cuda:0"), "{unnamed}");
    }

    let elsewhere = attach_from(&hub, &of_device(|g| g.uuid = Some([9; 16])), vec![memory()]);
    assert!(matches!(elsewhere, Error::Unsupported { .. }), "{elsewhere}");
    assert!(elsewhere.to_string().contains("09090909-0909"), "{elsewhere}");
    let odd = attach_from(&hub, &of_device(|g| g.offset = 2), vec![memory()]);
    assert!(matches!(odd, Error::InvalidArgument(_)), "{odd}");
    let huge = of_device(|g| (g.allocation_bytes, g.bytes) = (1 << 62, 1 << 62));
    let null = std::fs::File::open("/dev/null").unwrap();
    let huge = attach_from(&hub, &huge, vec![null.into()]);
    assert!(matches!(huge, Error::OutOfMemory { .. }), "{huge}");
    // CUDA does not import dma-bufs.
    let other = attach_from(&hub, &of_device(|g| g.kind = Kind::DmaBuf), vec![memory()]);
    assert!(matches!(other, Error::Unsupported { .. }), "{other}");
    let short = of_device(|g| (g.kind, g.allocation_bytes) = (Kind::DmaBuf, 2 * PAGE));
    check(short, memory(), "its dma_buf: it has 2097152 bytes");
    assert_eq!((fds_to(NAME), mappings_of(NAME)), (0, 0));
}
