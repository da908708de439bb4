//! Program sources: text, SPIR-V, binaries, files, functions.

use onebuf_hal::{
    self as hal, Error, Language, NativeArgs, NativeKernel, Result, is_spirv, locks::Arc,
};
use std::{borrow::Cow, fmt, fs, path::Path};

/// The languages of sources, by the names that the backends use.
const OPENCL_C: Language = Language("OpenCL C");
const CUDA_C: Language = Language("CUDA C");
const HIP_C: Language = Language("HIP C");
const PTX: Language = Language("PTX");

/// One program in one or more forms. A device uses the first that it accepts: its own binary, then SPIR-V, then text. The host
/// uses functions of this process.
#[derive(Clone, Default)]
pub struct Source(hal::Source);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text in OpenCL C, as by [`Source::opencl_c`].
impl From<&'static str> for Source {
    fn from(text: &'static str) -> Self {
        Source::opencl_c(text)
    }
}

impl From<&Source> for Source {
    fn from(source: &Source) -> Self {
        source.clone()
    }
}

impl Source {
    /// The source as backends take it.
    pub(crate) fn hal(&self) -> &hal::Source {
        &self.0
    }

    fn with_text(self, language: Language, text: impl Into<Cow<'static, str>>) -> Self {
        Self(self.0.with_text(language, text.into()))
    }

    /// A program in OpenCL C.
    pub fn opencl_c(text: impl Into<Cow<'static, str>>) -> Self {
        Self::default().with_opencl_c(text)
    }

    /// A program in CUDA C, compiled by NVRTC; see [`Source::with_cuda_c`].
    pub fn cuda_c(text: impl Into<Cow<'static, str>>) -> Self {
        Self::default().with_cuda_c(text)
    }

    /// A program in HIP C, compiled by HIPRTC; see [`Source::with_hip_c`].
    pub fn hip_c(text: impl Into<Cow<'static, str>>) -> Self {
        Self::default().with_hip_c(text)
    }

    /// A program in PTX, which NVIDIA's driver compiles itself; see [`Source::with_ptx`].
    pub fn ptx(text: impl Into<Cow<'static, str>>) -> Self {
        Self::default().with_ptx(text)
    }

    /// One kernel in GLSL; see [`Source::with_glsl`].
    pub fn glsl(kernel: impl Into<Cow<'static, str>>, text: impl Into<Cow<'static, str>>) -> Self {
        Self::default().with_glsl(kernel, text)
    }

    /// A program as a SPIR-V module, in either byte order; see [`Source::with_spirv`].
    pub fn spirv(module: impl Into<Cow<'static, [u8]>>) -> Self {
        Self::default().with_spirv(module)
    }

    /// A program as a device's own binary, from [`crate::Program::binary`]; see [`Source::with_binary`].
    pub fn binary(binary: impl Into<Cow<'static, [u8]>>) -> Self {
        Self::default().with_binary(binary)
    }

    /// A program from a file: SPIR-V if the contents begin like a module; CUDA C, HIP C or PTX if the name ends in `.cu`, `.hip`
    /// or `.ptx`; one GLSL kernel, named after the file, for `.comp` and `.glsl`; otherwise OpenCL C. A file whose name ends in
    /// `.spv` must be SPIR-V. The file is read immediately.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("twice.cl");
    /// # std::fs::write(&path, "kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }").unwrap();
    /// use onebuf::Source;
    ///
    /// let twice = Source::from_file(&path)?.with_options("-cl-fast-relaxed-math");
    /// # let _ = twice;
    /// let missing = Source::from_file("no/such/file.cl").unwrap_err();
    /// assert!(missing.to_string().contains("no/such/file.cl"));
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a file that cannot be read, [`Error::InvalidArgument`] for a file that is neither SPIR-V nor
    /// text; both name the path.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let named = path.display();
        let bytes = fs::read(path).map_err(|error| Error::Unavailable {
            what: format!("program file {named}"),
            tried: Vec::new(),
            reason: error.to_string(),
        })?;
        let ends_in =
            |name: &str| path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(name));
        if is_spirv(&bytes) || ends_in("spv") {
            let source = Self::spirv(bytes);
            let checked = source.0.module().map(drop);
            return checked
                .map(|()| source)
                .map_err(|why| Error::invalid(format!("{named}: {why}")));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            Error::invalid(format!("{named}: neither SPIR-V nor text: {}", error.utf8_error()))
        })?;
        if ends_in("comp") || ends_in("glsl") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return Ok(Self::glsl(name, text));
        }
        let known = [("cu", CUDA_C), ("hip", HIP_C), ("ptx", PTX)];
        let known = known.into_iter().find(|(name, _)| ends_in(name));
        let language = known.map_or(OPENCL_C, |(_, language)| language);
        Ok(Self::default().with_text(language, text))
    }

    /// Adds the program in OpenCL C, for OpenCL devices.
    pub fn with_opencl_c(self, text: impl Into<Cow<'static, str>>) -> Self {
        self.with_text(OPENCL_C, text)
    }

    /// Adds the program in CUDA C, for CUDA devices. Kernels are found by their C names, so each must be
    /// `extern "C" __global__`. Group-local arguments are not parameters but parts of the kernel's single
    /// `extern __shared__` array, in order, each aligned to 16 bytes.
    ///
    /// ```
    /// use onebuf::Source;
    ///
    /// let twice = Source::cuda_c(
    ///     "extern \"C\" __global__ void twice(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }",
    /// )
    /// .with_opencl_c("kernel void twice(global float *x) { x[get_global_id(0)] *= 2; }");
    /// # let _ = twice;
    /// ```
    pub fn with_cuda_c(self, text: impl Into<Cow<'static, str>>) -> Self {
        self.with_text(CUDA_C, text)
    }

    /// Adds the program in HIP C, for HIP devices, with kernels as in [`Source::with_cuda_c`].
    pub fn with_hip_c(self, text: impl Into<Cow<'static, str>>) -> Self {
        self.with_text(HIP_C, text)
    }

    /// Adds the program in PTX, for CUDA devices, which prefer it to CUDA C: it needs no installed compiler.
    pub fn with_ptx(self, text: impl Into<Cow<'static, str>>) -> Self {
        self.with_text(PTX, text)
    }

    /// Adds one kernel in GLSL, for OpenGL and Vulkan. A shader's only entry point is `main`, so the kernel's name is
    /// given separately. A buffer is the storage block whose binding is the argument's index. All values together, in
    /// order, are one `std140` uniform block whose binding is the index of the first value. The shader declares the group size,
    /// which must divide the number of work-items.
    ///
    /// ```
    /// use onebuf::Source;
    ///
    /// let scale = Source::glsl("scale", "
    ///     #version 450
    ///     layout(local_size_x = 64) in;
    ///     layout(std430, binding = 0) buffer Data { float x[]; };
    ///     layout(std140, binding = 1) uniform Values { float by; uint n; };
    ///     void main() {
    ///         uint i = gl_GlobalInvocationID.x;
    ///         if (i < n) x[i] *= by;
    ///     }
    /// ");
    /// # let _ = scale;
    /// ```
    pub fn with_glsl(
        self,
        kernel: impl Into<Cow<'static, str>>,
        text: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(self.0.with_shader(kernel.into(), text.into()))
    }

    /// Adds the program as a SPIR-V module. A device whose [`onebuf_hal::Caps::il_versions`] include SPIR-V prefers it to text.
    pub fn with_spirv(mut self, module: impl Into<Cow<'static, [u8]>>) -> Self {
        self.0.spirv = Some(module.into());
        self
    }

    /// Adds the program as a device's own binary, which takes precedence. A device that refuses it uses SPIR-V or text if the
    /// source has them; [`crate::Program::origin`] tells which.
    ///
    /// ```
    /// # use onebuf::{Hub, Origin, Source};
    /// # fn load(hub: &Hub, kept: Vec<u8>) -> onebuf::Result<()> {
    /// let text = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }";
    /// let program = hub.device("opencl")?.program(&Source::opencl_c(text).with_binary(kept))?;
    /// if program.origin() != Origin::Binary {
    ///     println!("compiled, since the driver is not the one that the binary is of");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_binary(self, binary: impl Into<Cow<'static, [u8]>>) -> Self {
        Self(self.0.with_binary(binary))
    }

    /// Adds a kernel as a Rust function, for the host. It is called once for a whole launch.
    pub fn with_native(
        mut self,
        name: impl Into<Cow<'static, str>>,
        run: impl Fn(&mut NativeArgs<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.0.native.push(NativeKernel { name: name.into(), run: Arc::new(run) });
        self
    }

    /// Sets options for the compiler, such as `-cl-fast-relaxed-math`.
    pub fn with_options(self, options: impl Into<String>) -> Self {
        Self(self.0.with_options(options))
    }
}

/// Whether the compiler may read files outside the source. Such programs cannot be cached: the source does not show
/// whether the files changed. May return true unnecessarily.
pub(super) fn reads_files(source: &hal::Source) -> bool {
    let texts = source.texts.iter().map(|(_, text)| text);
    let mut texts = texts.chain(source.shaders.iter().map(|shader| &shader.text));
    option_reads_files(&source.options) || texts.any(|text| text_includes(text))
}

/// Whether there is `-I`, `-include`, `-isystem` or the like, or a file of options.
fn option_reads_files(options: &str) -> bool {
    let words = options.split_whitespace().map(|word| word.trim_start_matches(['"', '\'']));
    let mut words = words.map(|word| word.replacen("--", "-", 1));
    words.any(|word| ["-I", "-i", "@"].iter().any(|start| word.starts_with(start)))
}

/// Whether the text may have an include directive: its sign in any spelling, and its keyword, even if broken by comments and
/// continued lines. A text that has both for another reason is merely not cached.
fn text_includes(text: &str) -> bool {
    let sign = ["#", "%:", "??="].iter().any(|sign| text.contains(sign));
    let unbroken: String = text.chars().filter(|c| !(c.is_whitespace() || *c == '\\')).collect();
    sign && ["include", "import", "embed"].iter().any(|word| unbroken.contains(word))
}

#[cfg(test)]
mod tests;
