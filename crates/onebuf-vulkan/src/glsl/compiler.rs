//! The compiler: naga's front end, validator and back end.

use super::MAIN;
use crate::device::Driver;
use naga::{
    Barrier, Block, ShaderStage, Statement,
    back::spv,
    front::glsl,
    valid::{Capabilities, ValidationFlags, Validator},
};
use onebuf_hal::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Compiles one shader. The log shows the source lines that it refers to.
pub(crate) fn compile(driver: &Driver, kernel: &str, text: &str) -> Result<Vec<u32>> {
    let failed = |log: String| {
        let log = format!("kernel `{kernel}`:\n{log}");
        Error::Build { device: driver.info.name.clone(), log }
    };
    // A panic of the compiler must not end the program.
    let compiled = catch_unwind(AssertUnwindSafe(|| translate(text)));
    compiled.unwrap_or_else(|_| Err("the compiler panicked on this text".into())).map_err(failed)
}

fn translate(text: &str) -> Result<Vec<u32>, String> {
    let stage = ShaderStage::Compute;
    let mut module = glsl::Frontend::default()
        .parse(&glsl::Options::from(stage), text)
        .map_err(|errors| errors.emit_to_string(text))?;
    let entries = module.entry_points.iter_mut().map(|entry| &mut entry.function);
    for function in entries.chain(module.functions.iter_mut().map(|(_, function)| function)) {
        mend_barriers(&mut function.body);
    }
    let info = Validator::new(ValidationFlags::all(), capabilities())
        .validate(&module)
        .map_err(|error| error.emit_to_string_with_path(text, "glsl"))?;
    let entry = spv::PipelineOptions { shader_stage: stage, entry_point: MAIN.to_owned() };
    spv::write_vec(&module, &info, &options(), Some(&entry)).map_err(|error| error.to_string())
}

/// Makes every `barrier()` a work-group barrier. naga's front end sets all flags, which its back end treats as a subgroup
/// barrier.
fn mend_barriers(block: &mut Block) {
    for statement in block.iter_mut() {
        match statement {
            Statement::ControlBarrier(of) => *of = Barrier::WORK_GROUP | Barrier::STORAGE,
            Statement::Block(inner) => mend_barriers(inner),
            Statement::If { accept, reject, .. } => {
                mend_barriers(accept);
                mend_barriers(reject);
            }
            Statement::Loop { body, continuing, .. } => {
                mend_barriers(body);
                mend_barriers(continuing);
            }
            Statement::Switch { cases, .. } => {
                cases.iter_mut().for_each(|case| mend_barriers(&mut case.body));
            }
            _ => {}
        }
    }
}

/// Allows optional types. If the device lacks them, creating the pipeline fails.
fn capabilities() -> Capabilities {
    Capabilities::FLOAT64
        | Capabilities::SHADER_INT64
        | Capabilities::MEMORY_DECORATION_COHERENT
        | Capabilities::MEMORY_DECORATION_VOLATILE
}

/// Follows GLSL: no run-time checks for what the language leaves undefined.
fn options() -> spv::Options<'static> {
    spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        // Keeps the bindings of the text.
        fake_missing_bindings: true,
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..spv::Options::default()
    }
}
