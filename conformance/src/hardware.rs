//! What this machine has, by its device files: what a driver or onebuf says about it could be the fault that a test looks for.

use crate::{note, strict};
use std::{fs, path::Path};

/// Hardware whose driver must be found where its device file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardware {
    /// An NVIDIA GPU: CUDA, OpenCL, OpenGL and Vulkan.
    Nvidia,
    /// Two NVIDIA GPUs or more.
    TwoNvidia,
    /// An AMD GPU with ROCm's kernel driver: HIP and OpenCL.
    Amd,
    /// A GPU that renders: OpenGL and Vulkan.
    RenderNode,
}

impl Hardware {
    /// Whether this machine has it.
    pub fn is_here(self) -> bool {
        self.is_in(Path::new("/dev"))
    }

    /// Whether a machine whose device files are in this folder has it.
    pub fn is_in(self, dev: &Path) -> bool {
        let count = |folder: &Path, is: &dyn Fn(&str) -> bool| {
            let names = fs::read_dir(folder).into_iter().flatten().flatten();
            names.filter(|entry| is(&entry.file_name().to_string_lossy())).count()
        };
        let gpu = |name: &str| {
            name.strip_prefix("nvidia")
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        match self {
            Hardware::Nvidia => dev.join("nvidiactl").exists(),
            Hardware::TwoNvidia => count(dev, &gpu) > 1,
            Hardware::Amd => dev.join("kfd").exists(),
            Hardware::RenderNode => {
                count(&dev.join("dri"), &|name| name.starts_with("renderD")) > 0
            }
        }
    }
}

/// Prints that a test could not run. `needs` lists hardware of which each would be enough.
///
/// # Panics
/// In strict mode, if the machine has some of it.
pub fn lacking(needs: &[Hardware], what: &str) {
    let here: Vec<_> = needs.iter().filter(|one| one.is_here()).collect();
    assert!(
        here.is_empty() || !strict(),
        "{what}, although this machine has {here:?}, and ONEBUF_STRICT is set"
    );
    note(&format!("skip: {what}"));
}
