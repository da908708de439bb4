//! On-chip memory, with the stub that identifies as Texas Instruments'; no installed driver has any.

use onebuf::{Error, Hub, MemoryKind, hal::DeviceKind};
use onebuf_conformance::{Side, Step, assert_same, random_words, step_model, stub};
use std::process::Command;

const N: usize = 3 * 1024;
const USE_MSMC_TI: u64 = 1 << 20;

/// Runs a test in a separate process, because the stub reads its mode when it is loaded.
fn play(part: &str, test: &str) {
    let Some(path) = stub() else { return };
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    let output = command.env("ONEBUF_STUB", part).env("ONEBUF_OPENCL_LIB", path).output();
    let output = output.expect("this program starts");
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && text[0].contains("1 passed"), "{part}: {}", text.join("\n"));
}

fn hub() -> Hub {
    onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default()).build().unwrap()
}

#[test]
fn a_platform_of_texas_instruments_has_it_and_another_has_not() {
    play("ti", "on_ti");
    play("good", "on_another");
}

#[test]
#[ignore = "started by the test above, with the stub driver in its part"]
fn on_ti() {
    let hub = hub();
    // The device is found by its type, too.
    let device = hub.device("accelerator").unwrap();
    assert_eq!((device.id(), device.info().kind), ("opencl:0", DeviceKind::Accelerator));
    assert_eq!(hub.select("Accelerator").len(), 1);
    let side = Side::open(&device).unwrap();
    let mut model = random_words(1, N);
    for round in 0..3 {
        let builder = hub.buffer::<u32>(N).shared_with([&side.device]);
        let buffer = match round {
            0 => builder.cl_flags(USE_MSMC_TI).unwrap().init(model.clone()),
            _ => builder.memory_kind(MemoryKind::OnChip).init(model.clone()),
        };
        let buffer = buffer.build().unwrap();
        assert_eq!(buffer.plan().memory_kind, MemoryKind::OnChip);
        let text = buffer.explain();
        assert!(text.contains("CL_MEM_USE_MSMC_TI") && text.contains("as on_chip"), "{text}");
        side.step(&buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
        assert_same(&buffer.to_vec().unwrap(), &model, "read");
        assert_same(&side.look(&buffer).unwrap(), &model, "looked at by its device");
        // It is never mapped: the host gets a copy, which is counted.
        let before = hub.ledger().implied_bytes();
        assert_same(&buffer.map().unwrap(), &model, "mapped");
        assert_eq!(hub.ledger().implied_bytes() - before, N as u64 * 4);
    }
    // It is small, so it is used only on request.
    let plain = hub.buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
    assert_ne!(plain.plan().memory_kind, MemoryKind::OnChip, "{}", plain.explain());
}

#[test]
#[ignore = "started by the test above, with the stub driver in its part"]
fn on_another() {
    let hub = hub();
    let missing = hub.device("accelerator").unwrap_err();
    assert!(missing.to_string().contains("device `accelerator`"), "{missing}");
    let device = hub.device("opencl:0").unwrap();
    let refused =
        hub.buffer::<u32>(N).shared_with([&device]).cl_flags(USE_MSMC_TI).unwrap().build();
    let Err(error @ Error::Unsupported { .. }) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("Texas Instruments"), "{error}");
}
