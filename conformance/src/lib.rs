//! The conformance suite: what every backend of onebuf must do, alone and in pairs with every other device.
//!
//! A backend links to this crate and passes a [`HubBuilder`](onebuf::HubBuilder). [`suite!`] makes a `#[test]` of each of the
//! [`CASES`]; [`run`] runs them from a program and returns a [`Report`]. Cases write and check every page from both sides. A
//! case that asserts that nothing was copied also has a control in which bytes are copied and counted. A failure names the case
//! and the devices. `examples/backend` is a complete backend that passes.
//!
//! This crate also has what onebuf's own tests share: the [machine](machine()) they run on, kernels with a model in Rust,
//! random data, the stub drivers, and [`class_a`], which owns the native objects that tests wrap. There, a missing device is a
//! printed skip, or a failure in strict mode (`ONEBUF_STRICT=1`).
//!
//! This crate may use the public API of every crate of the library.

mod bundle;
mod cases;
pub mod class_a;
mod data;
mod dialect;
mod drivers;
mod elements;
mod expected;
mod forged;
mod hand_overs;
mod hardware;
mod held;
mod large;
mod life;
mod machine;
mod messages;
mod resources;
mod second_life;
mod side;
mod skip;
mod stub;
mod suite;
mod wait;

pub use bundle::{MARK, VARIABLE, bundle, helper};
pub use cases::CASES;
pub use data::{Random, assert_same, pages_apart, random_words};
pub use dialect::{kernels, like_cuda, two_texts};
pub use drivers::{
    Gpu, OpenClDevice, gpus, opencl_devices, pairs_by_descriptor, pairs_in_one_space, reported,
};
pub use elements::{Element, Sample, axpy_source};
pub use expected::{compute_gpus, missing_devices, require_devices, required_platforms};
pub use forged::{forged, forged_verdicts, forged_zero_copy, is_shared};
pub use hand_overs::{hand_overs, hand_overs_by};
pub use hardware::{Hardware, lacking};
pub use held::{Held, is_held};
pub use large::{LARGE_SIZES, large};
pub use life::life;
pub use machine::{
    Machine, everything, fakes, kinds, machine, pairs, shared, sync_methods, threads_on,
};
pub use messages::on_message;
pub use resources::Resources;
pub use second_life::{fresh, second_life};
pub use side::{GROUP, Side, Step, step_model};
pub use skip::{absent, missing, note, strict};
pub use stub::{
    build_stubs, cuda_stub, gl_stub, layered_stub, one_api, play, selftest, share_selftest, stub,
};
pub use suite::{Case, Ending, Options, Outcome, Report, Scope, Suite, Trial, run, run_with};
pub use wait::{Watchdog, assert_settled, block_on, measured};

use machine::fake_machine;
