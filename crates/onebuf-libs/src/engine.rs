//! Selects the library for a queue.

use onebuf_core::Queue;
use onebuf_hal::{Error, Result};
use onebuf_sys::Flavor;

/// The library that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// This process, on the calling thread.
    #[cfg(feature = "cpu-libs")]
    Host,
    /// A library of CUDA or HIP.
    Native(Flavor),
}

impl Engine {
    /// The API whose library it is; `None` for this process.
    pub fn native(self) -> Option<Flavor> {
        match self {
            #[cfg(feature = "cpu-libs")]
            Engine::Host => None,
            Engine::Native(flavor) => Some(flavor),
        }
    }

    /// The engine for a queue. `what` names the operation in errors.
    pub fn of(queue: &Queue, what: &str) -> Result<Engine> {
        let device = queue.device();
        match device.info().api.0 {
            "host" => host(what),
            "cuda" => Ok(Engine::Native(Flavor::Cuda)),
            "hip" => Ok(Engine::Native(Flavor::Hip)),
            api => Err(Error::unsupported(
                format!("{what} on {device}"),
                format!(
                    "a queue of the host, CUDA or HIP: {api} has no such library. Share the buffer with one of \
                     those devices and take the view there"
                ),
            )),
        }
    }
}

#[cfg(feature = "cpu-libs")]
fn host(_what: &str) -> Result<Engine> {
    Ok(Engine::Host)
}

#[cfg(not(feature = "cpu-libs"))]
fn host(what: &str) -> Result<Engine> {
    Err(Error::unsupported(format!("{what} on the host"), "onebuf's cargo feature `cpu-libs`"))
}

#[cfg(all(test, not(feature = "cpu-libs")))]
mod tests {
    #[test]
    fn without_the_feature_the_error_names_it() {
        let said = super::host("a matrix product").expect_err("nothing computes").to_string();
        for part in ["a matrix product on the host", "cargo feature `cpu-libs`"] {
            assert!(said.contains(part), "no `{part}` in: {said}");
        }
    }
}
