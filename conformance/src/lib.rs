//! What the conformance tests share: the machine they run on, kernels with a model beside them, data
//! that no driver can guess, the stub driver, and [`class_a`], which owns what others are handed.
//!
//! A missing device is a printed skip, or a failure in strict mode (`ONEBUF_STRICT=1`).

pub mod class_a;
mod data;
mod dialect;
mod elements;
mod held;
mod life;
mod machine;
mod second_life;
mod side;
mod skip;
mod stub;
mod wait;

pub use data::{Random, assert_same, pages_apart, random_words};
pub use dialect::{kernels, like_cuda, two_texts};
pub use elements::{Element, Sample, axpy_source};
pub use held::{Held, is_held};
pub use life::life;
pub use machine::{Machine, everything, fakes, kinds, machine, pairs, shared, sync_methods};
pub use second_life::{fresh, second_life};
pub use side::{GROUP, Side, Step, step_model};
pub use skip::{absent, note, strict};
pub use stub::{beneath_stub, cuda_stub, gl_stub, one_api, play, selftest, share_selftest, stub};
pub use wait::{Watchdog, block_on};
