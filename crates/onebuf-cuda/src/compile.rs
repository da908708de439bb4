//! Compiles program text to a module image with NVRTC or HIPRTC.

use super::device::Driver;
use onebuf_hal::{
    Error, Result,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::{
    Flavor, Missing, Probe, Refused,
    cuda_like::{Rtc, RtcProgram, consts},
};
use std::{
    ffi::{CString, c_char},
    fmt, ptr,
};

/// The compiler. Loaded on first use: few programs are compiled, and the library is large.
pub(super) struct Compiler {
    flavor: Flavor,
    library: Option<String>,
    probe: Option<std::sync::Arc<Probe>>,
    loaded: Mutex<Option<Arc<Rtc>>>,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compiler({:?}, {:?})", self.flavor, self.library)
    }
}

/// The output of a compilation, and the compiler's log.
pub(super) struct Compiled {
    pub image: Vec<u8>,
    pub log: String,
}

impl Compiler {
    pub fn new(
        flavor: Flavor,
        library: Option<&str>,
        probe: Option<std::sync::Arc<Probe>>,
    ) -> Compiler {
        let library = library.map(str::to_owned);
        Compiler { flavor, library, probe, loaded: Mutex::default() }
    }

    /// Returns the compiler, loading it if needed. A failure is not cached, so the next program tries again.
    fn load(&self) -> Result<Arc<Rtc>> {
        let mut loaded = lock(&self.loaded);
        if let Some(rtc) = &*loaded {
            return Ok(rtc.clone());
        }
        let rtc = Rtc::load(self.flavor, self.library.as_deref(), self.probe.clone());
        Ok(loaded.insert(Arc::new(rtc.map_err(unavailable)?)).clone())
    }

    /// Compiles for a device, whose context is current: HIP's compiler queries the current device.
    pub fn compile(&self, driver: &Driver, text: &str, options: &str) -> Result<Compiled> {
        let rtc = self.load()?;
        let own: Vec<&str> = options.split_whitespace().collect();
        let names_target = own.iter().any(|option| {
            ["-arch", "--gpu-arch", "--offload-arch"].iter().any(|name| option.starts_with(name))
        });
        let [major, minor] = driver.limits.capability;
        let target = format!("--gpu-architecture=sm_{major}{minor}");
        let task = Task { rtc: &rtc, driver, text };
        if names_target || self.flavor == Flavor::Hip {
            return task.run(&own);
        }
        let mut with_target = own.clone();
        with_target.push(&target);
        match task.run(&with_target) {
            // A compiler older than the device compiles without a target, to code that any device's driver can finish.
            Err(Error::Build { log, .. }) if log.starts_with(UNKNOWN_TARGET) => task.run(&own),
            compiled => compiled,
        }
    }
}

/// How the log of a refused option begins.
const UNKNOWN_TARGET: &str = "an option was refused";

fn unavailable(missing: Missing) -> Error {
    let Missing { api, tried, reason, hint, .. } = missing;
    let reason = if hint.is_empty() { reason } else { format!("{reason}; {hint}") };
    Error::Unavailable { what: format!("the compiler {api}"), tried, reason }
}

/// One compilation.
struct Task<'a> {
    rtc: &'a Rtc,
    driver: &'a Driver,
    text: &'a str,
}

impl Task<'_> {
    fn check<T>(&self, answer: Result<T, Refused>) -> Result<T> {
        answer.map_err(|Refused { call, status }| Error::Driver {
            api: self.driver.flavor().pick(["nvrtc", "hiprtc"]),
            call,
            code: status.0,
            name: self.rtc.error_name(status),
        })
    }

    fn run(&self, options: &[&str]) -> Result<Compiled> {
        let zero = |_| Error::invalid("a zero byte in a program's text or options");
        let text = CString::new(self.text).map_err(zero)?;
        let owned =
            options.iter().map(|option| CString::new(*option)).collect::<Result<Vec<_>, _>>();
        let owned = owned.map_err(zero)?;
        let list: Vec<*const c_char> = owned.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: strings that end with a zero and outlive the call; no headers.
        let made = unsafe {
            let (name, none) = (c"onebuf".as_ptr(), ptr::null());
            self.rtc.create_program(text.as_ptr(), name, 0, none, none)
        };
        let program = CompiledProgram { rtc: self.rtc, raw: self.check(made)? };
        // SAFETY: a live program; `list` holds `list.len()` strings.
        let compiled = unsafe { self.rtc.compile(program.raw, list.len() as i32, list.as_ptr()) };
        let log = program.log();
        match compiled {
            Ok(()) => Ok(Compiled { image: self.check(program.image())?, log }),
            Err(refused) => Err(self.refused(refused, log, options)),
        }
    }

    fn refused(&self, refused: Refused, log: String, options: &[&str]) -> Error {
        let device = self.driver.info.name.clone();
        match refused.status.0 {
            consts::RTC_COMPILATION => Error::Build { device, log },
            consts::RTC_INVALID_OPTION => {
                let options = options.join(" ");
                Error::Build { device, log: format!("{UNKNOWN_TARGET}: `{options}`\n{log}") }
            }
            _ => match self.check::<()>(Err(refused)) {
                Err(error) => error,
                Ok(()) => Error::Build { device, log },
            },
        }
    }
}

/// A compiler's program, destroyed once.
struct CompiledProgram<'a> {
    rtc: &'a Rtc,
    raw: RtcProgram,
}

impl CompiledProgram<'_> {
    /// Returns the compiler's log, or an empty string if the log cannot be read.
    fn log(&self) -> String {
        let log = bytes(
            // SAFETY: a live program, and a valid pointer for the size.
            |size| unsafe { self.rtc.log_size(self.raw, size) },
            // SAFETY: a live program, and a buffer of the reported size.
            |at| unsafe { self.rtc.log(self.raw, at) },
        );
        let log = String::from_utf8_lossy(&log.unwrap_or_default()).into_owned();
        log.trim_end_matches(['\0', '\n']).to_owned()
    }

    /// Returns the device binary if the compiler made one, otherwise the code that the driver finishes.
    fn image(&self) -> Result<Vec<u8>, Refused> {
        if self.rtc.has_binary() && self.rtc.has_binary_size() {
            let image = bytes(
                // SAFETY: a live program, and a valid pointer for the size.
                |size| unsafe { self.rtc.binary_size(self.raw, size) },
                // SAFETY: a live program, and a buffer of the reported size.
                |at| unsafe { self.rtc.binary(self.raw, at) },
            )?;
            if !image.is_empty() {
                return Ok(image);
            }
        }
        bytes(
            // SAFETY: a live program, and a valid pointer for the size.
            |size| unsafe { self.rtc.code_size(self.raw, size) },
            // SAFETY: a live program, and a buffer of the reported size.
            |at| unsafe { self.rtc.code(self.raw, at) },
        )
    }
}

impl Drop for CompiledProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `Task::run`, destroyed once.
        if let Err(why) = unsafe { self.rtc.destroy_program(&raw mut self.raw) } {
            tracing::warn!("{why}");
        }
    }
}

/// Queries a size, then reads that many bytes.
fn bytes(
    size: impl FnOnce(*mut usize) -> Result<(), Refused>,
    fill: impl FnOnce(*mut c_char) -> Result<(), Refused>,
) -> Result<Vec<u8>, Refused> {
    let mut count = 0;
    size(&raw mut count)?;
    let mut bytes = vec![0u8; count];
    if count > 0 {
        fill(bytes.as_mut_ptr().cast())?;
    }
    Ok(bytes)
}
