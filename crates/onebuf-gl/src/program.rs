//! Programs: one compute shader for each kernel, compiled and linked.

use super::{context::Context, kernel::Kernel};
use onebuf_hal::{self as hal, Error, Result, Shader, Source, locks::Arc};
use onebuf_sys::gl::{Gl, GlRefused, consts};
use std::ffi::c_char;

/// Longer logs are truncated.
const MOST_LOG_BYTES: i32 = 1 << 20;

/// A linked OpenGL program, deleted once. Running launches keep it alive.
#[derive(Debug)]
pub(super) struct Linked {
    pub context: Arc<Context>,
    pub raw: u32,
}

impl Drop for Linked {
    fn drop(&mut self) {
        let raw = self.raw;
        // SAFETY: the context is current; the program was created by `link`, and is deleted once.
        self.context.delete(move |gl| unsafe { gl.delete_program(raw) });
    }
}

/// The linked shaders of a source, by kernel name.
#[derive(Debug)]
pub struct Program {
    kernels: Vec<(String, Arc<Linked>)>,
    log: String,
}

impl Program {
    /// Compiles every shader of the source, on the context's thread.
    pub(super) fn build(context: Arc<Context>, source: &Source) -> Result<Program> {
        let device = context.driver.info.name.clone();
        if source.shaders.is_empty() {
            let what = format!("a program for {device} from a source that has {}", source.forms());
            return Err(Error::unsupported(what, "its kernels in GLSL: `Source::with_glsl`"));
        }
        let mut program = Program { kernels: Vec::new(), log: String::new() };
        for shader in &source.shaders {
            if source.shader(&shader.name) != Some(shader) {
                return Err(Error::invalid(format!("two shaders are named `{}`", shader.name)));
            }
            let built = context.run(|gl| compile(gl, shader))?;
            let (raw, log) = built.map_err(|log| Error::Build {
                device: device.clone(),
                log: with_lines(shader, &log),
            })?;
            program.log.push_str(&log);
            let linked = Arc::new(Linked { context: context.clone(), raw });
            program.kernels.push((shader.name.to_string(), linked));
        }
        Ok(program)
    }
}

/// A program and its log, or the compiler's log after an error.
type Built = Result<(u32, String), String>;

fn compile(gl: &Gl, shader: &Shader) -> Result<Built, GlRefused> {
    // SAFETY: the context is current; the shader is new, and deleted once.
    unsafe {
        let raw = gl.create_shader(consts::COMPUTE_SHADER)?;
        let built = translate(gl, raw, &shader.text);
        let built = built.and_then(|built| match built {
            Ok(()) => link(gl, raw),
            Err(log) => Ok(Err(log)),
        });
        // A program keeps its shaders alive.
        let deleted = gl.delete_shader(raw);
        match (built, deleted) {
            (Ok(Ok((program, _))), Err(refused)) => {
                let _ = gl.delete_program(program);
                Err(refused)
            }
            (built, _) => built,
        }
    }
}

/// # Safety
/// The context is current, the shader is alive.
unsafe fn translate(gl: &Gl, raw: u32, text: &str) -> Result<Result<(), String>, GlRefused> {
    let (at, mut good) = (text.as_ptr().cast::<c_char>(), 0);
    let len = i32::try_from(text.len()).unwrap_or(i32::MAX);
    // SAFETY: the caller guarantees both; one text of the given length.
    unsafe {
        gl.shader_source(raw, 1, &raw const at, &raw const len)?;
        gl.compile_shader(raw)?;
        gl.shader_integer(raw, consts::COMPILE_STATUS, &raw mut good)?;
        if good != 0 {
            return Ok(Ok(()));
        }
        let mut room = 0;
        gl.shader_integer(raw, consts::INFO_LOG_LENGTH, &raw mut room)?;
        Ok(Err(log(room, |room, len, into| gl.shader_log(raw, room, len, into))?))
    }
}

/// # Safety
/// The context is current, the shader is compiled.
unsafe fn link(gl: &Gl, shader: u32) -> Result<Built, GlRefused> {
    // SAFETY: the caller guarantees both; the program is new, and deleted once if it is not returned.
    unsafe {
        let raw = gl.create_program()?;
        let linked = linked(gl, raw, shader);
        match &linked {
            Ok(Ok(_)) => {}
            _ => {
                let _ = gl.delete_program(raw);
            }
        }
        linked
    }
}

/// # Safety
/// The context is current, the program and its shader are alive.
unsafe fn linked(gl: &Gl, raw: u32, shader: u32) -> Result<Built, GlRefused> {
    let (mut good, mut room) = (0, 0);
    // SAFETY: the caller guarantees this; valid pointers for two numbers.
    unsafe {
        gl.attach_shader(raw, shader)?;
        gl.link_program(raw)?;
        gl.program_integer(raw, consts::LINK_STATUS, &raw mut good)?;
        gl.program_integer(raw, consts::INFO_LOG_LENGTH, &raw mut room)?;
        let log = log(room, |room, len, into| gl.program_log(raw, room, len, into))?;
        Ok(if good != 0 { Ok((raw, log)) } else { Err(log) })
    }
}

/// Reads a log of the length that the driver reports, including the trailing zero.
fn log(
    room: i32,
    ask: impl FnOnce(i32, *mut i32, *mut c_char) -> Result<(), GlRefused>,
) -> Result<String, GlRefused> {
    let room = room.clamp(0, MOST_LOG_BYTES);
    let (mut text, mut len) = (vec![0u8; room as usize], 0);
    if room > 0 {
        ask(room, &raw mut len, text.as_mut_ptr().cast())?;
    }
    text.truncate(usize::try_from(len).unwrap_or(0));
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Puts the compiler's log above the numbered lines of the shader.
fn with_lines(shader: &Shader, log: &str) -> String {
    let lines = shader.text.lines().enumerate();
    let lines: Vec<String> = lines.map(|(n, line)| format!("{:4} | {line}", n + 1)).collect();
    format!("shader `{}`:\n{}\n{}", shader.name, log.trim_end(), lines.join("\n"))
}

impl hal::Program for Program {
    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn hal::Kernel>> {
        let found = self.kernels.iter().find(|(own, _)| own == name);
        let Some((_, linked)) = found else {
            let names: Vec<&str> = self.kernels.iter().map(|(own, _)| own.as_str()).collect();
            let names = names.join(", ");
            return Err(Error::invalid(format!("no shader `{name}`; the program has {names}")));
        };
        Ok(Arc::new(Kernel::new(linked, name, parameters)?))
    }

    fn log(&self) -> &str {
        &self.log
    }
}
