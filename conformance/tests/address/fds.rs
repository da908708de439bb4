//! Descriptors exported by ROCr, of HIP's plain memory and of SVM: offsets and ownership.

use super::*;
use onebuf::{Error, FdKind, MemoryKind};
use std::path::Path;

plays! {
    an_alias_is_imported_to_the_letter: aliased("amd");
    plain_memory_is_exported: exported("amd");
    old_runtimes_export_nothing: not_exported("amd", "ONEBUF_HSA_LIB" => "none");
}

/// Returns the value of a named argument in a recorded call.
fn argument(line: &str, name: &str) -> u64 {
    let at = line.find(&format!("{name}=")).unwrap_or_else(|| panic!("no {name} in {line}"));
    let text = line[at + name.len() + 1..].split([',', ')']).next().unwrap();
    text.parse().unwrap_or_else(|_| panic!("{text} in {line}"))
}

/// Returns the last recorded call with that name.
fn last<'l>(record: &'l str, call: &str) -> &'l str {
    let mut lines = record.lines().filter(|line| line.starts_with(&format!("{call}(")));
    lines.next_back().unwrap_or_else(|| panic!("no {call} in {record}"))
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn aliased() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("record");
    // SAFETY: no other thread is active, and no driver is loaded yet.
    unsafe { std::env::set_var("ONEBUF_CUDA_STUB_RECORD", &file) };
    let rig = Rig::new();
    let buffer = rig.builder(&rig.cl.device, RouteKind::DmaBuf, N).build().unwrap();
    let read = |file: &Path| fs::read_to_string(file).unwrap();
    let record = read(&file);
    let export = last(&record, "hsa_amd_portable_export_dmabuf");
    let (offset, bytes) = (argument(export, "offset"), 4 * N as u64);
    assert!(offset > 0 && argument(export, "bytes") == bytes, "{export}");
    let close = last(&record, "hsa_amd_portable_close_dmabuf");
    assert_eq!(argument(close, "fd"), argument(export, "fd"), "{close}");
    let import = last(&record, "hipImportExternalMemory");
    assert!(argument(import, "bytes") >= offset + bytes, "{import}");
    let mapped = last(&record, "hipExternalMemoryGetMappedBuffer");
    assert_eq!(
        (argument(mapped, "offset"), argument(mapped, "bytes")),
        (offset, bytes),
        "{mapped}"
    );
    // HIP's API calls accept the memory that HIP imported.
    assert_same(&rig.hip.look(&buffer).unwrap(), &[0; N], "new memory");
    take_turns(&buffer, &rig);
    drop(buffer);
    rig.end();
    assert!(read(&file).contains("hipDestroyExternalMemory"));
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn exported() {
    let rig = Rig::new();
    let words = random_words(8, N);
    let own = |memory_kind| {
        let builder = rig.hub.buffer::<u32>(N).shared_with([&rig.hip.device]);
        builder.memory_kind(memory_kind).init(words.clone()).build().unwrap()
    };
    let svm = rig.builder(&rig.cl.device, RouteKind::SvmPointer, N).init(words.clone());
    let raw = rig.builder(&rig.cl.device, RouteKind::RawAddress, N).init(words.clone());
    let all = [own(MemoryKind::Device), svm.build().unwrap(), raw.build().unwrap()];
    for (buffer, in_place) in all.iter().zip([false, true, false]) {
        let mut model = words.clone();
        assert_same(&buffer.map().unwrap(), &model, "before the export");
        let exported = buffer.export(FdKind::DmaBuf).unwrap();
        // Other processes can write the memory now, so the host gets no slice of it.
        let copied = rig.hub.ledger().implied_bytes();
        match buffer.map() {
            Err(refused) => {
                assert!(matches!(refused, Error::Unsupported { .. }) && in_place, "{refused}");
                assert!(refused.to_string().contains("another process can write"), "{refused}");
            }
            Ok(map) => {
                assert!(!in_place, "a slice of {}", buffer.explain());
                assert_same(&map, &model, "a copy");
                assert!(rig.hub.ledger().implied_bytes() > copied, "{}", rig.hub.ledger());
            }
        }
        assert!(exported.offset > 0 && exported.bytes == 4 * N, "{exported:?}");
        assert!(exported.allocation_bytes >= exported.offset + exported.bytes, "{exported:?}");
        let whole = exported.allocation_bytes;
        // SAFETY: the stub exported it here, and no other process has it.
        let import = unsafe { rig.hub.import::<u32>(&exported.fd, FdKind::DmaBuf, whole) };
        let import = import.range(exported.offset, exported.bytes).build(&rig.hip.device).unwrap();
        assert_same(&import.to_vec().unwrap(), &model, "as it was");
        rig.hip.step(&import, Step::nth(5)).unwrap();
        step_model(&mut model, Step::nth(5));
        rig.hip.queue.finish().unwrap();
        assert_same(&buffer.to_vec().unwrap(), &model, "what the import's kernel wrote");
        rig.hip.step(buffer, Step::nth(6)).unwrap();
        step_model(&mut model, Step::nth(6));
        rig.hip.queue.finish().unwrap();
        assert_same(&import.to_vec().unwrap(), &model, "what the other's wrote");
    }
    // Host memory does not belong to a GPU.
    let refused = own(MemoryKind::MappedDevice).export(FdKind::DmaBuf).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    drop(all);
    rig.end();
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn not_exported() {
    let rig = Rig::new();
    let buffer = rig.hub.buffer::<u32>(N).shared_with([&rig.hip.device]);
    let buffer = buffer.memory_kind(MemoryKind::Device).build().unwrap();
    let refused = buffer.export(FdKind::DmaBuf).unwrap_err();
    assert!(refused.to_string().contains("allocated as exportable"), "{refused}");
    drop(buffer);
    rig.end();
}
