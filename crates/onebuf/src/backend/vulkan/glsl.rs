//! GLSL to SPIR-V, in this process.

#[cfg(feature = "glsl")]
mod compiler;

#[cfg(feature = "glsl")]
pub(super) use compiler::compile;

/// The entry point of every shader's text.
pub(super) const MAIN: &str = "main";

#[cfg(not(feature = "glsl"))]
pub(super) fn compile(
    driver: &super::device::Driver,
    kernel: &str,
    _text: &str,
) -> crate::Result<Vec<u32>> {
    let what = format!("kernel `{kernel}` in GLSL on {}", driver.info.name);
    Err(crate::Error::unsupported(what, "onebuf's cargo feature `glsl`, or SPIR-V"))
}
