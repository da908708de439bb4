//! What a verdict depends on: if any of it changes, the verdict is no longer valid.

use crate::topology::Node;
use std::{ffi::OsString, fmt, sync::OnceLock};

/// Incremented whenever the experiment changes, which invalidates verdicts of other versions.
pub const EXPERIMENT_VERSION: u32 = 7;

/// In the id of a foreign device, separates the discovered device's id from the number of the context.
pub(crate) const FOREIGN_MARK: char = '@';

/// Whether `id` is the id of a foreign device.
pub(crate) fn is_foreign(id: &str) -> bool {
    id.contains(FOREIGN_MARK)
}

/// Environment variables that select drivers or change how they share. `LD_LIBRARY_PATH` is not included: tools set it for
/// unrelated reasons, and the device's part of the key has the driver's file.
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

/// The environment before this process loaded a driver.
///
/// Drivers modify it: the Khronos loader truncates `OCL_ICD_FILENAMES` after the first name, and PoCL sets
/// variables of hwloc. A helper that inherited the modified environment would see other devices, and a key made from it
/// would never match again. The environment belongs to the process, so it is stored once for all hubs.
pub fn environment() -> &'static [(OsString, OsString)] {
    static BEFORE: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();
    BEFORE.get_or_init(|| std::env::vars_os().collect())
}

/// A device's part of the key. The doctor and its helper both compute it, and must agree.
pub fn of_node(node: &Node) -> String {
    let info = &node.info;
    // Verdicts on a device apply to all its contexts.
    let id = node.id.split(FOREIGN_MARK).next().unwrap_or_default();
    let uuid = info.physical.uuid_text().unwrap_or_default();
    let pci = info.physical.pci.map_or_else(String::new, |pci| pci.to_string());
    [id, &info.platform, &info.name, &info.version, &info.driver, &info.library, &uuid, &pci]
        .map(|s| s.trim())
        .join("|")
}

/// The whole key. It is readable text, but is only ever compared.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_inherit_the_environment_as_it_was() {
        let path = std::env::var_os("PATH").unwrap();
        assert!(environment().contains(&("PATH".into(), path)));
    }

    #[test]
    fn a_verdict_depends_on_variables_that_select_drivers_and_on_no_others() {
        let hub = crate::builder().only(["host"]).verdicts(Default::default()).build().unwrap();
        let host = hub.topology().node(hub.host_index());
        let key = key(host, host, "kind");
        let (_, set) = key.split_once(" with [").unwrap();
        let mut expected: Vec<String> = SELECTORS
            .iter()
            .filter_map(|name| Some(format!("{name}={}", std::env::var_os(name)?.display())))
            .collect();
        expected.sort();
        assert_eq!(set, expected.join(" ") + "]");
    }
}
