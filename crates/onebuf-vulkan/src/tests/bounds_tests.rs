//! Modules that try to make the parser allocate much memory.

use super::{Module, tests::parts};
use onebuf_hal::testing::{
    fuzz::{Bound, Form, Target},
    meter::measure,
};

/// The bound that `docs/backends/vulkan.md` states.
const BOUND: Bound = Bound { per_byte: 32, fixed: 64 << 10 };

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Repeats every instruction of the sample that may occur often, each time with another id.
#[test]
fn each_instruction_takes_its_share() {
    for repeated in 3..16 {
        let mut parts = parts();
        // Entry points and variables have another operand before their id.
        let at = if matches!(repeated, 3 | 13..) { 2 } else { 1 };
        let many = (0..20_000).flat_map(|n| {
            let mut instruction = parts[repeated].clone();
            instruction[at] = 100 + n;
            instruction
        });
        let many: Vec<u32> = many.collect();
        parts.insert(16, many);
        parts[0][3] = 0x0010_0000;
        let module = bytes(&parts.concat());
        let (_, taken) = measure(|| Module::of_bytes(&module, 6).is_ok());
        BOUND.check("SPIR-V for Vulkan", &module, taken);
    }
}

#[test]
fn fuzz_spirv_of_vulkan() {
    let seeds = [bytes(&parts().concat())];
    Target {
        name: "SPIR-V for Vulkan",
        bound: BOUND,
        input: &|random, most| Form::Spirv.changed(random, &seeds, most),
        parse: &|module| Module::of_bytes(module, 6).is_ok(),
    }
    .run();
}
