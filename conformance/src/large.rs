//! Buffers of gigabytes on one device: every element is computed by a kernel and read back, and so are their odd ends. The
//! experiment is the doctor's.

use crate::{Ending, Outcome, Side};
use onebuf::{doctor::check_large, topology::VerdictState};
use onebuf_hal::native::panic_text;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use onebuf::doctor::LARGE_SIZES;

const CASE: &str = "large::every_element";

/// Checks a buffer of each size, in bytes, on one device. Sizes for which there is not enough memory are skipped.
pub fn large(side: &Side, sizes: &[u64]) -> Vec<Outcome> {
    let outcome = |bytes: &u64| {
        let caught = catch_unwind(AssertUnwindSafe(|| check(side, *bytes)));
        let ending = caught.unwrap_or_else(|panic| Ending::Failed(panic_text(&*panic).to_owned()));
        let (devices, detail) = (vec![side.device.id().to_owned()], format!("{bytes} bytes"));
        Outcome { case: CASE, devices, detail, ending }
    };
    sizes.iter().map(outcome).collect()
}

fn check(side: &Side, bytes: u64) -> Ending {
    let verdict = check_large(&side.device, bytes, &mut |_| ());
    match verdict.state {
        VerdictState::Proven => Ending::Passed,
        VerdictState::Declared => Ending::NotApplicable(verdict.why),
        VerdictState::Refuted => Ending::Failed(verdict.why),
    }
}
