//! Running programs of one device's compiler on another device.

use super::{Program, Source};
use crate::{
    Hub,
    device::Device,
    topology::{Verdict, VerdictState},
};
use onebuf_graft as graft;
use onebuf_hal::{Api, Error, Result};

/// The APIs whose kernels can be grafted, and onto which.
pub(super) const OPENCL: Api = Api("opencl");
const CUDA: Api = Api("cuda");
const HIP: Api = Api("hip");

impl Program {
    /// Returns the same program for a CUDA or HIP device of the GPU that it was compiled for. Its kernels run in that API's
    /// streams, so the GPU does not switch to another API and back between them and their neighbours. The kernels take the same
    /// arguments by the same [`Signature`](crate::Signature)s, including local memory and offsets. Buffers must be shared with
    /// that device. Grafting onto AMD's HIP is experimental: it has never run on hardware. A HIP runtime that is built on OpenCL
    /// (chipStar) accepts only programs whose source has SPIR-V.
    ///
    /// The result is cached like any program. `docs/graft.md` lists what is rewritten and what is refused.
    ///
    /// ```
    /// # use onebuf::{Access, Hub, Result, Signature, Source, args};
    /// # fn run(hub: &Hub) -> Result<()> {
    /// let (cl, cuda) = (hub.device("opencl:0")?, hub.device("cuda:0")?);
    /// let text = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }";
    /// let program = cl.program(&Source::opencl_c(text))?.graft(&cuda)?;
    /// // SAFETY: work-item i touches x[i] only.
    /// let twice = unsafe { program.kernel("twice", Signature::new().each::<f32>(Access::ReadWrite))? };
    ///
    /// let x = hub.buffer::<f32>(1024).shared_with([&cuda]).build()?;
    /// cuda.default_queue()?.launch(&twice, [1024], args![&x])?; // OpenCL C, in a CUDA stream
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for images, samplers, `printf` and other features that are not known to have the same meaning
    /// there, with the line of the PTX, or the kernel and argument of the code object; for drivers whose binaries are neither;
    /// for a code object of another GPU model than the device's; and for devices of APIs other than CUDA and HIP.
    /// The program can still run where it was built.
    pub fn graft(&self, device: &Device) -> Result<Program> {
        check_target(device)?;
        if self.device().info().api != OPENCL {
            let what = format!("grafting a program of {} on {device}", self.device());
            return Err(Error::unsupported(what, "a program that was compiled by OpenCL"));
        }
        match device.info().caps.built_on {
            Some(_) => graft_spirv(self.spirv(), device),
            None => transplant(&self.binary()?, device),
        }
    }

    /// Grafts like [`Program::graft`] if the doctor has proven it for these two devices and the program can be grafted. Otherwise
    /// returns this program itself, and logs the reason. [`Program::device`] is the device to launch its kernels on.
    ///
    /// ```
    /// # use onebuf::{Hub, Result, Source};
    /// # fn run(hub: &Hub, text: &'static str) -> Result<()> {
    /// let (cl, cuda) = (hub.device("opencl:0")?, hub.device("cuda:0")?);
    /// let program = cl.program(&Source::opencl_c(text))?.graft_if_proven(&cuda);
    /// let queue = program.device().queue()?; // CUDA's if grafting is proven, otherwise OpenCL's
    /// # let _ = queue;
    /// # Ok(())
    /// # }
    /// ```
    pub fn graft_if_proven(&self, device: &Device) -> Program {
        let own = self.device();
        let verdict = own.hub().graft_verdict(own, device);
        let grafted = match verdict.state {
            VerdictState::Proven => self.graft(device).map_err(|error| error.to_string()),
            _ => Err(verdict.why),
        };
        grafted.unwrap_or_else(|why| {
            tracing::info!(from = %own, to = %device, "not grafted: {why}");
            self.clone()
        })
    }
}

impl Hub {
    /// The doctor's verdict on grafting programs of one device onto another. [`VerdictState::Proven`] means that it did so, and
    /// every byte equalled the native result. Nothing is known about devices of another hub. [`Program::graft`] does not need it;
    /// automatic grafting should.
    ///
    /// [`VerdictState::Proven`]: crate::topology::VerdictState::Proven
    pub fn graft_verdict(&self, from: &Device, to: &Device) -> Verdict {
        if [from, to].iter().any(|device| !device.hub().is(self)) {
            return Verdict { why: "a device of another hub".into(), ..Verdict::default() };
        }
        let [from, to] = [from, to].map(|device| self.topology().node(device.index()));
        let untried = to.info.api == HIP && to.info.caps.built_on.is_none();
        let unproven = || Verdict { why: unproven(untried), ..Verdict::default() };
        self.device_table().verdicts().find_graft(from, to).unwrap_or_else(unproven)
    }
}

/// Grafts the first of several binaries that can be grafted. Returns the last error if none can. Empty binaries, of devices
/// without a build, are skipped.
pub fn graft_first(binaries: &[Vec<u8>], device: &Device) -> Result<Program> {
    let built = binaries.iter().filter(|binary| !binary.is_empty());
    let mut grafted = Err(Error::invalid("the cl_program is not built"));
    for binary in built {
        grafted = transplant(binary, device);
        if grafted.is_ok() {
            break;
        }
    }
    grafted
}

/// Grafts a SPIR-V module onto a device whose runtime is built on OpenCL.
pub fn graft_spirv(module: Option<&[u8]>, device: &Device) -> Result<Program> {
    device.program(&spirv(module, device)?)
}

/// The reason of a missing verdict.
fn unproven(untried: bool) -> String {
    let remark = if untried { format!("; {}", graft::NEVER_RUN) } else { String::new() };
    format!("unproven: run `onebuf doctor`{remark}")
}

#[doc(hidden)]
pub fn check_target(device: &Device) -> Result<()> {
    match [CUDA, HIP].contains(&device.info().api) {
        true => Ok(()),
        false => {
            let what = format!("grafting an OpenCL program on {device}");
            Err(Error::unsupported(
                what,
                "a CUDA device or a HIP device: no other is known to take such programs",
            ))
        }
    }
}

/// Whether the driver's binary is PTX text, which begins with the directive `.version`.
fn is_ptx(binary: &[u8]) -> bool {
    let text = std::str::from_utf8(binary).unwrap_or_default();
    let code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    text.lines().map(str::trim).find(code).is_some_and(|line| line.starts_with(".version"))
}

fn transplant(binary: &[u8], device: &Device) -> Result<Program> {
    let source = match device.info().api == HIP {
        true => code_object(binary, device),
        false => ptx(binary, device),
    };
    device.program(&source.inspect_err(|why| tracing::debug!(%device, "{why}"))?)
}

fn ptx(binary: &[u8], device: &Device) -> Result<Source> {
    let text = std::str::from_utf8(binary).ok().filter(|_| is_ptx(binary));
    let text = text.ok_or_else(|| {
        let what = format!("grafting an OpenCL program on {device}");
        Error::unsupported(what, "a driver whose programs are PTX, as those of NVIDIA's are")
    })?;
    graft::rewrite(text).map(Source::ptx)
}

/// Rewrites SPIR-V for a runtime that is built on OpenCL. Drivers return the SPIR-V only of programs that were created from it.
fn spirv(module: Option<&[u8]>, device: &Device) -> Result<Source> {
    let Some(module) = module else {
        let what =
            format!("grafting a program without SPIR-V onto {device}, which accepts only SPIR-V,");
        return Err(Error::unsupported(
            what,
            "a program that was made from SPIR-V: `Source::spirv`",
        ));
    };
    let image = graft::rewrite_spirv(module)?;
    if graft::spirv::has_variables(module) && forgets_variables(device) {
        let what = format!("grafting a program that has variables in global memory on {device}");
        let needs = "another OpenCL driver under it: this one does not initialize them when the runtime reads the binary";
        return Err(Error::unsupported(what, needs));
    }
    Ok(Source::binary(image))
}

/// Whether the OpenCL driver under the device loses the initial values of variables.
fn forgets_variables(device: &Device) -> bool {
    let layered = device.info().caps.built_on.as_ref();
    let layered = layered.and_then(|id| device.hub().device(id).ok());
    layered.is_some_and(|layered| device.hub().hal(layered.index()).forgets_variables())
}

/// Rewrites a code object. Anything else, such as a wrapper around objects, is refused with the reason.
fn code_object(binary: &[u8], device: &Device) -> Result<Source> {
    if !graft::code_object::is_one(binary) {
        let what = format!("grafting an OpenCL program on {device}");
        let needs = "a driver whose programs are code objects, as those of AMD's are";
        return Err(Error::unsupported(what, needs));
    }
    let image = graft::rewrite_code_object(binary)?;
    tracing::warn!(%device, "grafted an AMD code object ({})", graft::NEVER_RUN);
    Ok(Source::binary(image))
}

#[cfg(test)]
mod tests {
    use super::is_ptx;

    #[test]
    fn ptx_is_known_by_its_first_directive() {
        assert!(is_ptx(b"//\n// Generated by a compiler\n//\n\n.version 8.8\n.target sm_90\n\0"));
        for other in [&b""[..], b"\x7fELF", b"; .version 8.8", b"\xff.version", b"BC\xc0\xde"] {
            assert!(!is_ptx(other), "{other:?}");
        }
    }
}
