//! The properties of a device, as its context reports them.

use super::{habits::Habits, semaphore};
use onebuf_hal::{Api, Caps, DeviceInfo, DeviceKind, FdKind, MemoryKind, PhysicalId, checks};
use onebuf_sys::gl::{Gl, GlRefused, consts};

/// The lowest usable version: it has compute shaders and storage blocks.
const LEAST_VERSION: (i32, i32) = (4, 3);
/// Core since 4.4; persistent maps need it.
const STORAGE: &str = "GL_ARB_buffer_storage";
const PINNED: &str = "GL_AMD_pinned_memory";
const OBJECTS: &str = "GL_EXT_memory_object";
const OBJECTS_FD: &str = "GL_EXT_memory_object_fd";
/// Renderers that run on the CPU.
const SOFTWARE: [&str; 4] = ["llvmpipe", "softpipe", "swrast", "SwiftShader"];
/// Minimum alignment of memory, as in the other APIs.
const ALIGN_BYTES: usize = 64;

/// Launch limits that are not part of the general capabilities.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum groups per dimension.
    pub groups: [usize; 3],
    /// Storage blocks that can be bound.
    pub storage_bindings: usize,
    /// Uniform blocks that can be bound.
    pub value_bindings: usize,
    /// Largest uniform block.
    pub value_bytes: usize,
}

/// The properties queried from a new context.
#[derive(Debug)]
pub(super) struct Asked {
    pub info: DeviceInfo,
    pub limits: Limits,
    pub habits: Habits,
}

/// Why a device is not used.
#[derive(Debug)]
pub(super) enum Unfit {
    Refused(GlRefused),
    TooOld(String),
}

impl From<GlRefused> for Unfit {
    fn from(refused: GlRefused) -> Unfit {
        Unfit::Refused(refused)
    }
}

/// Queries the current context.
pub(super) fn ask(gl: &Gl, library: &str) -> Result<Asked, Unfit> {
    let asking = Asking { gl };
    let [major, minor] = asking.numbers([consts::MAJOR_VERSION, consts::MINOR_VERSION])?;
    let extensions = asking.extensions()?;
    let has = |name: &str| extensions.iter().any(|own| own == name);
    let version = asking.text(consts::VERSION)?;
    let stores = (has(STORAGE) || (major, minor) >= (4, 4)) && gl.has_buffer_storage();
    if (major, minor) < LEAST_VERSION || !stores {
        return Err(Unfit::TooOld(version));
    }
    let (vendor, name) = (asking.text(consts::VENDOR)?, asking.text(consts::RENDERER)?);
    let is_cpu = SOFTWARE.iter().any(|software| name.contains(software));
    let mut caps = asking.caps(is_cpu, &has)?;
    caps.max_loop_iterations = checks::max_loop_iterations(&name, driver_of(&version));
    let info = DeviceInfo {
        api: Api("gl"),
        physical: PhysicalId { uuid: asking.uuid(has(OBJECTS)), pci: None },
        memory_bytes: asking.memory_bytes(is_cpu, &has).unwrap_or(caps.max_alloc_bytes),
        kind: if is_cpu { DeviceKind::Cpu } else { DeviceKind::Gpu },
        platform: vendor.clone(),
        driver: driver_of(&version).to_owned(),
        version: format!("OpenGL {major}.{minor}"),
        library: library.to_owned(),
        name,
        extensions,
        caps,
    };
    let info = info.printable();
    Ok(Asked { info, limits: asking.limits()?, habits: Habits::of(&vendor) })
}

/// Returns the part after the API version: `4.5 (Core Profile) Mesa 22.3.6`, `4.6.0 NVIDIA 580.159`.
fn driver_of(version: &str) -> &str {
    let (_, rest) = version.split_once(' ').unwrap_or(("", version));
    rest.trim_start_matches("(Core Profile)").trim()
}

struct Asking<'g> {
    gl: &'g Gl,
}

impl Asking<'_> {
    fn number(&self, name: u32) -> Result<i32, GlRefused> {
        let mut number = 0;
        // SAFETY: a context is current; each of these names returns one number.
        unsafe { self.gl.integer(name, &raw mut number)? };
        Ok(number)
    }

    fn numbers<const N: usize>(&self, names: [u32; N]) -> Result<[i32; N], GlRefused> {
        let mut numbers = [0; N];
        for (number, name) in numbers.iter_mut().zip(names) {
            *number = self.number(name)?;
        }
        Ok(numbers)
    }

    fn three(&self, name: u32) -> Result<[usize; 3], GlRefused> {
        let mut sizes = [0; 3];
        for (index, into) in (0..).zip(&mut sizes) {
            let mut number = 0;
            // SAFETY: as above; each of these names has three values.
            unsafe { self.gl.integer_at(name, index, &raw mut number)? };
            *into = size(number);
        }
        Ok(sizes)
    }

    fn text(&self, name: u32) -> Result<String, GlRefused> {
        // SAFETY: a context is current.
        unsafe { self.gl.text(name) }
    }

    fn extensions(&self) -> Result<Vec<String>, GlRefused> {
        let count = self.number(consts::NUM_EXTENSIONS)?;
        // SAFETY: a context is current, and `index` is below its number of extensions.
        let name = |index| unsafe { self.gl.text_at(consts::EXTENSIONS, index) };
        (0..count.max(0) as u32).map(name).collect()
    }

    /// Returns `None` if the driver has no UUID, or reports only zeros.
    fn uuid(&self, has_objects: bool) -> Option<[u8; 16]> {
        let mut uuid = [0u8; 16];
        if !has_objects
            || !self.gl.has_bytes_at()
            || self.number(consts::NUM_DEVICE_UUIDS).ok()? < 1
        {
            return None;
        }
        // SAFETY: a context with the extension and at least one UUID is current; a UUID has sixteen bytes.
        unsafe { self.gl.bytes_at(consts::DEVICE_UUID, 0, uuid.as_mut_ptr()) }.ok()?;
        (uuid != [0; 16]).then_some(uuid)
    }

    /// Returns the chip's memory size by the extensions of two vendors, in KiB there; for the CPU, the machine's.
    fn memory_bytes(&self, is_cpu: bool, has: &dyn Fn(&str) -> bool) -> Option<u64> {
        if is_cpu {
            let info = rustix::system::sysinfo();
            return Some((info.totalram as u64).saturating_mul(u64::from(info.mem_unit)));
        }
        let name = match () {
            () if has("GL_NVX_gpu_memory_info") => consts::TOTAL_AVAILABLE_MEMORY_NVX,
            () if has("GL_ATI_meminfo") => consts::VBO_FREE_MEMORY_ATI,
            () => return None,
        };
        let mut kib = [0; 4];
        // SAFETY: a context with the extension is current; it writes at most four numbers.
        unsafe { self.gl.integer(name, kib.as_mut_ptr()) }.ok()?;
        u64::try_from(kib[0]).ok().filter(|kib| *kib > 0).map(|kib| kib << 10)
    }

    fn limits(&self) -> Result<Limits, GlRefused> {
        Ok(Limits {
            groups: self.three(consts::MAX_COMPUTE_WORK_GROUP_COUNT)?,
            storage_bindings: size(self.number(consts::MAX_SHADER_STORAGE_BUFFER_BINDINGS)?),
            value_bindings: size(self.number(consts::MAX_UNIFORM_BUFFER_BINDINGS)?),
            value_bytes: size(self.number(consts::MAX_UNIFORM_BLOCK_SIZE)?),
        })
    }

    fn caps(&self, is_cpu: bool, has: &dyn Fn(&str) -> bool) -> Result<Caps, GlRefused> {
        let imports_fd = has(OBJECTS_FD) && self.gl.has_import_fd() && self.gl.has_create_memory();
        let mut block_bytes = 0;
        // SAFETY: a context is current, and the name returns one number.
        unsafe { self.gl.integer64(consts::MAX_SHADER_STORAGE_BLOCK_SIZE, &raw mut block_bytes)? };
        let [align, group, shared] = self.numbers([
            consts::SHADER_STORAGE_BUFFER_OFFSET_ALIGNMENT,
            consts::MAX_COMPUTE_WORK_GROUP_INVOCATIONS,
            consts::MAX_COMPUTE_SHARED_MEMORY_SIZE,
        ])?;
        Ok(Caps {
            memory_kinds: vec![MemoryKind::MappedDevice, MemoryKind::Device],
            imports_host_pages: has(PINNED),
            exports: Vec::new(),
            imports: imports_fd.then_some(FdKind::OpaqueFd).into_iter().collect(),
            shares_objects_of: Vec::new(),
            peers: Vec::new(),
            ipc: false,
            // Mesa's CPU renderers read sizes and offsets from a header in the file.
            parses_fds: is_cpu,
            imports_without_acquire: false,
            align_bytes: size(align).max(ALIGN_BYTES),
            unified_memory: is_cpu,
            // A kernel accesses a buffer as one storage block.
            max_alloc_bytes: u64::try_from(block_bytes).unwrap_or(0),
            local_memory_bytes: size(shared) as u64,
            max_group_size: size(group),
            max_group_sizes: self.three(consts::MAX_COMPUTE_WORK_GROUP_SIZE)?,
            max_loop_iterations: None,
            compute_units: 1,
            out_of_order: false,
            callbacks: false,
            host_signals: false,
            wait_values: false,
            exports_semaphores: false,
            imports_semaphores: semaphore::is_there(self.gl, has),
            one_thread: false,
            svm_atomics: false,
            svm_system: false,
            address_space: None,
            built_on: None,
            il_versions: Vec::new(),
        })
    }
}

fn size(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::driver_of;

    #[test]
    fn the_drivers_version_is_behind_the_apis() {
        assert_eq!(driver_of("4.5 (Core Profile) Mesa 22.3.6"), "Mesa 22.3.6");
        assert_eq!(driver_of("4.6.0 NVIDIA 580.159"), "NVIDIA 580.159");
        assert_eq!(driver_of("4.6"), "4.6");
    }
}
