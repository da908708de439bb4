//! Programs from texts, from modules, and from invalid input.

use super::*;
use crate::glsl::compile;

fn spirv(bytes: &[u8]) -> Source {
    Source { spirv: Some(bytes.to_vec().into()), ..Source::default() }
}

/// The module of `STEP`, as a file would contain it.
fn module(rig: &Rig) -> Vec<u8> {
    let words = compile(rig.device.driver(), "step", STEP).unwrap();
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_wrong_text_is_shown_with_its_line() {
    each(|rig| {
        let wrong = STEP.replace("p[i] * mul", "p[i] * mult");
        let Err(Error::Build { log, .. }) = rig.device.build(&glsl("step", wrong)) else {
            panic!("it was built")
        };
        assert!(
            log.contains("kernel `step`") && log.contains("mult") && log.contains("7"),
            "{log}"
        );
        let Err(Error::Build { log, .. }) = rig.device.build(&glsl("none", "void f() {}")) else {
            panic!("it was built")
        };
        assert!(!log.is_empty());
    });
}

#[test]
fn modules_run_in_either_byte_order_and_by_either_name() {
    each(|rig| {
        let bytes = module(rig);
        let swapped: Vec<u8> = bytes.chunks(4).flat_map(|w| w.iter().rev().copied()).collect();
        let queue = rig.queue();
        for (bytes, name) in [(&bytes, "main"), (&bytes, "step"), (&swapped, "main")] {
            let kernel = rig.device.build(&spirv(bytes)).unwrap().kernel(name, 3).unwrap();
            let memory = rig.memory(MemoryKind::Device, &numbers(4096));
            step(&*queue, &*kernel, &*memory, 1024, 5).unwrap();
            let mut model = words(&numbers(4096));
            step_model(&mut model, 5);
            assert_eq!(words(&look(&*queue, &*memory)), model);
        }
    });
}

/// Input that cannot be a module is refused before it reaches a driver: some drivers end the process.
#[test]
fn garbage_is_refused() {
    each(|rig| {
        let bytes = module(rig);
        drop(rig.queue()); // So that there is a logical device.
        let calls = rig.probe.calls();
        let mut wrong: Vec<Vec<u8>> = vec![
            vec![],
            b"not a module".to_vec(),
            bytes[..20].to_vec(),
            bytes[..bytes.len() - 4].to_vec(),
            bytes[..bytes.len() / 8 * 4].to_vec(),
        ];
        // Random words after a correct header.
        let mut seed = 1u32;
        let noise = (0..200).flat_map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed.to_le_bytes()
        });
        wrong.push(bytes[..20].iter().copied().chain(noise).collect());
        // A module for OpenCL: the capability `Kernel` in place of `Shader`.
        let mut kernels = bytes.clone();
        assert_eq!(kernels[20..28], [17, 0, 2, 0, 1, 0, 0, 0]);
        kernels[24] = 6;
        wrong.push(kernels);
        // A newer version of SPIR-V.
        let mut newer = bytes.clone();
        newer[5] = 99;
        wrong.push(newer);
        for bytes in wrong {
            let refused = rig.device.build(&spirv(&bytes));
            let said = refused.expect_err("garbage").to_string();
            assert!(said.contains("SPIR-V"), "{said}");
        }
        assert_eq!(rig.probe.calls(), calls, "{:?}", rig.probe.trace());
    });
}

#[test]
fn kernels_are_looked_up_by_name_and_number_of_parameters() {
    each(|rig| {
        let program = rig.device.build(&glsl("step", STEP)).unwrap();
        let unknown = program.kernel("stop", 3).unwrap_err().to_string();
        assert!(unknown.contains("no kernel `stop`") && unknown.contains("`step`"), "{unknown}");
        let few = program.kernel("step", 1).unwrap_err().to_string();
        assert!(few.contains("binding 1") && few.contains("1 arguments"), "{few}");
        let other_set = STEP.replace("binding = 0", "set = 1, binding = 0");
        let program = rig.device.build(&glsl("step", other_set)).unwrap();
        let refused = program.kernel("step", 3).unwrap_err().to_string();
        assert!(refused.contains("sets other than 0"), "{refused}");
        let large = STEP.replace("local_size_x = 64", "local_size_x = 1000000");
        let refused = rig.device.build(&glsl("step", large)).and_then(|p| p.kernel("step", 3));
        assert!(refused.is_err(), "{refused:?}");
        let other = rig.device.build(&Source::default()).unwrap_err().to_string();
        assert!(other.contains("GLSL"), "{other}");
    });
}
