//! What a verdict depends on: change any of it, and the verdict no longer speaks.

use crate::topology::Node;
use std::{ffi::OsString, fmt, sync::OnceLock};

/// Raised whenever the experiment changes: verdicts of another version no longer speak.
pub const EXPERIMENT_VERSION: u32 = 5;

/// In a guest's id, between that of the device it is another context of and its number.
pub(crate) const FOREIGN_MARK: char = '@';

/// Whether it is the id of a device of a foreign context.
pub(crate) fn is_foreign(id: &str) -> bool {
    id.contains(FOREIGN_MARK)
}

/// Environment variables that select drivers or change how they share. `LD_LIBRARY_PATH` is not among
/// them: the driver's file is in its device's part, and tools set it for their own reasons.
const SELECTORS: &[&str] = &[
    "__EGL_VENDOR_LIBRARY_FILENAMES",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "GALLIUM_DRIVER",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "LIBGL_ALWAYS_SOFTWARE",
    "LP_CL",
    "MESA_LOADER_DRIVER_OVERRIDE",
    "OCL_ICD_FILENAMES",
    "OCL_ICD_VENDORS",
    "ONEBUF_CUDA_LIB",
    "ONEBUF_EGL_LIB",
    "ONEBUF_GL_MAPPING",
    "ONEBUF_GL_SOFTWARE",
    "ONEBUF_HIP_LIB",
    "ONEBUF_HSA_LIB",
    "ONEBUF_OPENCL_LIB",
    "ONEBUF_STUB",
    "ONEBUF_STUB_PLATFORMS",
    "POCL_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "RUSTICL_DEVICE_TYPE",
    "RUSTICL_ENABLE",
];

/// The environment as it was before this process loaded a driver.
///
/// Drivers write into it: the Khronos loader cuts `OCL_ICD_FILENAMES` off at the first name, PoCL sets
/// variables of hwloc's. A helper that inherited that would see other devices, and a key made of it
/// would never be found again. It is a fact of the process, so it is kept once for all hubs.
pub fn environment() -> &'static [(OsString, OsString)] {
    static BEFORE: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();
    BEFORE.get_or_init(|| std::env::vars_os().collect())
}

/// A device's part of the key: both the doctor and its helper compute it, and must agree.
pub fn of_node(node: &Node) -> String {
    let info = &node.info;
    // What was found of a device holds for every context of it.
    let id = node.id.split(FOREIGN_MARK).next().unwrap_or_default();
    let uuid = info.physical.uuid_text().unwrap_or_default();
    let pci = info.physical.pci.map_or_else(String::new, |pci| pci.to_string());
    [id, &info.platform, &info.name, &info.version, &info.driver, &info.library, &uuid, &pci]
        .map(|s| s.trim())
        .join("|")
}

/// The whole key, readable: it is only ever compared.
pub(crate) fn key(from: &Node, to: &Node, kind: impl fmt::Display) -> String {
    let kernel = rustix::system::uname();
    let kernel = kernel.release().to_string_lossy().into_owned();
    let selects = |name: &OsString| SELECTORS.iter().any(|selector| name == selector);
    let set = environment().iter().filter(|(name, _)| selects(name));
    let set = set.map(|(name, value)| format!("{}={}", name.display(), value.display()));
    let mut environment: Vec<String> = set.collect();
    environment.sort();
    format!(
        "v{EXPERIMENT_VERSION} {kind} from [{}] to [{}] on {kernel} with [{}]",
        of_node(from),
        of_node(to),
        environment.join(" ")
    )
}
