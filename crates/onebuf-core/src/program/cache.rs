//! Cached programs: in memory, and on disk for later processes.

use super::{
    once::{Lookup, Once},
    source::reads_files,
    store::{self, Store},
};
use crate::{device::Device, hub::Hub, topology::DeviceIx};
use onebuf_hal::{self as hal, DeviceInfo, Language, Result, Shader, Source, locks::Arc};
use std::{borrow::Cow, path::PathBuf};

/// The largest number of programs in memory. The least recently used is dropped first.
const MAX_IN_MEMORY: usize = 256;
/// The default limit of the programs on disk.
const DEFAULT_LIMIT_BYTES: u64 = 256 << 20;

/// Where a hub caches compiled programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgramCache {
    /// In memory, and in the cache folder for other processes.
    #[default]
    Disk,
    /// In memory, as long as the hub lives.
    Memory,
    /// Nowhere: each program is compiled each time.
    Off,
}

/// How a program was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Built from its source: compiled, or, on the host, used as it is.
    Built,
    /// From the hub's memory.
    Memory,
    /// From a binary that an earlier process stored in the cache folder.
    Disk,
    /// From the binary in the source.
    Binary,
}

/// A hub's cached programs.
pub(crate) struct Programs {
    memory: Option<Once<Key, dyn hal::Program>>,
    store: Option<Store>,
}

/// Everything that a program in memory depends on. A hub's drivers do not change, so they are not included.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    device: DeviceIx,
    texts: Vec<(Language, Cow<'static, str>)>,
    shaders: Vec<Shader>,
    spirv: Option<Cow<'static, [u8]>>,
    binary: Option<Cow<'static, [u8]>>,
    options: String,
}

impl Key {
    fn new(device: DeviceIx, source: &Source) -> Self {
        let Source { texts, shaders, spirv, binary, options, native: _ } = source.clone();
        Self { device, texts, shaders, spirv, binary, options }
    }
}

impl Hub {
    /// The hub's cached programs.
    pub(crate) fn programs(&self) -> &Programs {
        self.extensions().get()
    }
}

impl Default for Programs {
    fn default() -> Self {
        Self::new(ProgramCache::Off, None, None)
    }
}

impl Programs {
    /// `folder` is the cache folder; only programs on disk need it.
    pub fn new(how: ProgramCache, folder: Option<PathBuf>, limit_bytes: Option<u64>) -> Self {
        let limit_bytes = limit_bytes.unwrap_or(DEFAULT_LIMIT_BYTES);
        let folder = folder.filter(|_| how == ProgramCache::Disk);
        Self {
            memory: (how != ProgramCache::Off).then(|| Once::new(MAX_IN_MEMORY)),
            store: folder.map(|folder| Store::new(folder, limit_bytes)),
        }
    }

    /// Returns the program for this device, from a cache or built now.
    pub fn get(&self, device: &Device, source: &Source) -> Result<(Arc<dyn hal::Program>, Origin)> {
        let hal = device.hub().hal(device.index());
        let Some(memory) = self.memory.as_ref().filter(|_| hal.compiles() && !reads_files(source))
        else {
            return build(hal, source);
        };
        match memory.get(&Key::new(device.index(), source), device.hub().timeout())? {
            Lookup::Made(program) => Ok((program, Origin::Memory)),
            Lookup::Yours(making) => {
                let (program, origin) = self.build_or_load(hal, source)?;
                making.done(program.clone());
                Ok((program, origin))
            }
        }
    }

    /// Drops the programs of a device whose context is being closed.
    pub fn forget(&self, device: DeviceIx) {
        if let Some(memory) = &self.memory {
            memory.forget(|key| key.device == device);
        }
    }

    fn build_or_load(
        &self,
        hal: &dyn hal::Device,
        source: &Source,
    ) -> Result<(Arc<dyn hal::Program>, Origin)> {
        // A binary in the source need not be stored again.
        let Some(store) = self.store.as_ref().filter(|_| source.binary.is_none()) else {
            return build(hal, source);
        };
        let key = disk_key(hal.info(), source);
        if let Some(program) = store.load(&key).and_then(|binary| load(hal, binary, source)) {
            return Ok((program, Origin::Disk));
        }
        let built = build(hal, source)?;
        match built.0.binary() {
            Ok(binary) => store.save(&key, &binary),
            Err(why) => tracing::debug!("{} is not kept on disk: {why}", hal.info().name),
        }
        Ok(built)
    }
}

fn build(hal: &dyn hal::Device, source: &Source) -> Result<(Arc<dyn hal::Program>, Origin)> {
    let program = hal.build(source)?;
    let origin = if program.is_of_binary() { Origin::Binary } else { Origin::Built };
    Ok((program, origin))
}

/// Loads a binary from disk. Returns `None` if the driver refuses it, even though it wrote it; the source is compiled then.
fn load(hal: &dyn hal::Device, binary: Vec<u8>, source: &Source) -> Option<Arc<dyn hal::Program>> {
    let options = source.options.clone();
    let loaded = hal.build(&Source::default().with_binary(binary).with_options(options));
    let said = |why: &_| tracing::debug!("{}: binary not used: {why}", hal.info().name);
    loaded.inspect_err(said).ok()
}

/// Everything that a binary depends on, each part preceded by its length.
fn disk_key(info: &DeviceInfo, source: &Source) -> Vec<u8> {
    let extensions = info.extensions.join(" ");
    let mut key = store::VERSION.to_le_bytes().to_vec();
    let mut add = |part: &[u8]| {
        key.extend((part.len() as u64).to_le_bytes());
        key.extend(part);
    };
    let DeviceInfo { api, platform, name, version, driver, library, .. } = info;
    let device = [api.0, platform, name, version, driver, library, &extensions];
    device.into_iter().for_each(|part| add(part.as_bytes()));
    add(source.options.as_bytes());
    add(source.spirv.as_deref().unwrap_or_default());
    for (language, text) in &source.texts {
        add(language.0.as_bytes());
        add(text.as_bytes());
    }
    for Shader { name, text } in &source.shaders {
        add(name.as_bytes());
        add(text.as_bytes());
    }
    key
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::{DeviceInfo, disk_key};
    use crate::Source;

    #[test]
    fn a_binary_depends_on_all_of_this() {
        let info = crate::builder()
            .without(["opencl", "vulkan", "gl"])
            .verdicts(Default::default())
            .build()
            .unwrap();
        let info = info.host().info().clone();
        let source = || Source::opencl_c("text").with_options("-w");
        let mut keys = vec![disk_key(&info, source().hal())];
        assert_eq!(keys[0], disk_key(&info, source().hal()), "nothing that differs by chance");
        let mut with = |change: &dyn Fn(&mut DeviceInfo)| {
            let mut other = info.clone();
            change(&mut other);
            keys.push(disk_key(&other, source().hal()));
        };
        with(&|info| info.name.push('2'));
        with(&|info| info.platform.push('2'));
        with(&|info| info.version.push('2'));
        with(&|info| info.driver.push('2'));
        with(&|info| info.library.push('2'));
        with(&|info| info.extensions.push("cl_khr_fp64".into()));
        // The same letters, divided differently.
        with(&|info| {
            let first = info.name.remove(0);
            info.platform.push(first);
        });
        keys.push(disk_key(&info, source().with_options("-w ").hal()));
        keys.push(disk_key(&info, Source::opencl_c("text ").with_options("-w").hal()));
        keys.push(disk_key(&info, source().with_spirv(b"text").hal()));
        keys.push(disk_key(&info, source().with_opencl_c("text").hal()));
        let all = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }
}
