//! Compiles GLSL to SPIR-V, in this process.

#[cfg(feature = "glsl")]
mod compiler;

#[cfg(feature = "glsl")]
pub(super) use compiler::compile;

/// The entry point of every shader given as text.
pub(super) const MAIN: &str = "main";

#[cfg(not(feature = "glsl"))]
pub(super) fn compile(
    driver: &super::device::Driver,
    kernel: &str,
    _text: &str,
) -> onebuf_hal::Result<Vec<u32>> {
    Err(not_built_in(&driver.info.name, kernel))
}

/// Reports a failed build, not an unsupported device: the doctor then leaves the route untested, and does not refute it for
/// all programs.
#[cfg(not(feature = "glsl"))]
fn not_built_in(device: &str, kernel: &str) -> onebuf_hal::Error {
    let log = format!(
        "kernel `{kernel}` is in GLSL, which Vulkan takes only where onebuf is built with its cargo feature `glsl`; \
         enable that feature, or give the kernel as SPIR-V"
    );
    onebuf_hal::Error::Build { device: device.to_owned(), log }
}

#[cfg(all(test, not(feature = "glsl")))]
mod tests {
    #[test]
    fn without_the_feature_the_error_names_it() {
        let error = super::not_built_in("a device", "gain");
        assert!(matches!(error, onebuf_hal::Error::Build { .. }));
        let said = error.to_string();
        for part in ["a device", "`gain`", "cargo feature `glsl`", "SPIR-V"] {
            assert!(said.contains(part), "no `{part}` in: {said}");
        }
    }
}
