//! Kernels, and launching them.

use super::{conv, event, event::Event, program::Linked, queue::Queue};
use onebuf_hal::{
    self as hal, Arg, Domain, Error, Grid, Result,
    locks::Arc,
    shaders::{self, Values},
    typed::{Args, Events, TypedArg, TypedQueue},
};
use onebuf_sys::gl::{Gl, GlRefused, consts};

/// The size of a uniform block is rounded up to this.
const BLOCK_BYTES: usize = 16;

/// An active block of a shader.
#[derive(Clone, Copy, Debug)]
struct Block {
    binding: u32,
    bytes: usize,
}

/// The properties of a linked shader.
#[derive(Debug)]
struct Shape {
    group: [usize; 3],
    storage: Vec<Block>,
    values: Vec<Block>,
}

/// One kernel of a program.
#[derive(Debug)]
pub struct Kernel {
    linked: Arc<Linked>,
    domain: Domain,
    name: String,
    parameters: usize,
    shape: Shape,
    /// The buffer for value arguments, if there are any.
    values: Option<u32>,
}

impl Kernel {
    /// Queries the shader's bindings, and creates the buffer for its values.
    pub(super) fn new(linked: &Arc<Linked>, name: &str, parameters: usize) -> Result<Kernel> {
        let (context, raw) = (&linked.context, linked.raw);
        let shape = context.run(|gl| shape(gl, raw))?;
        check_bindings(name, &shape, parameters)?;
        let limits = &context.driver.limits;
        let [storage, value] =
            [&shape.storage, &shape.values].map(|b| b.iter().map(|b| b.binding).max());
        let over = |binding: Option<u32>, most| binding.is_some_and(|b| b as usize >= most);
        if over(storage, limits.storage_bindings) || over(value, limits.value_bindings) {
            return Err(Error::invalid(format!(
                "shader `{name}` has blocks beyond what the device binds: {} of storage, {} of values",
                limits.storage_bindings, limits.value_bindings
            )));
        }
        let takes = !shape.values.is_empty();
        if shape.values.iter().any(|block| block.bytes > limits.value_bytes) {
            let most = limits.value_bytes;
            return Err(Error::invalid(format!(
                "shader `{name}` has more values than {most} bytes"
            )));
        }
        // SAFETY: the context is current.
        let values = takes.then(|| context.run(|gl| unsafe { gl.create_buffer() })).transpose()?;
        let (linked, name, domain) = (linked.clone(), name.to_owned(), context.driver.domain);
        Ok(Kernel { linked, domain, name, parameters, shape, values })
    }

    /// Checks that every block of the shader has an argument of its kind, and that the values have the block's size.
    fn check_args(&self, args: &[Arg<'_>], values: Option<&Values>) -> Result<()> {
        let name = &self.name;
        let is_buffer =
            |block: &Block| matches!(args.get(block.binding as usize), Some(Arg::Memory(..)));
        if let Some(Block { binding, .. }) = self.shape.storage.iter().find(|b| !is_buffer(b)) {
            return Err(Error::invalid(format!(
                "shader `{name}` has a storage block with binding {binding}, and argument {binding} is no buffer"
            )));
        }
        let Some(block) = self.shape.values.first() else { return Ok(()) };
        let given = values.map(|values| (values.binding, values.bytes.len()));
        if given == Some((block.binding, block.bytes.next_multiple_of(BLOCK_BYTES))) {
            return Ok(());
        }
        let given = given.map_or("no value is given".to_owned(), |(binding, bytes)| {
            format!(
                "the values given are {bytes} bytes for binding {binding}, the first value's number"
            )
        });
        let Block { binding, bytes } = block;
        Err(Error::invalid(format!(
            "shader `{name}` has a uniform block of {bytes} bytes with binding {binding}, and {given}"
        )))
    }
}

impl hal::Kernel for Kernel {
    #[inline]
    fn domain(&self) -> Domain {
        self.domain
    }

    fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    fn parameters(&self) -> usize {
        self.parameters
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Some(values) = self.values.take() {
            // SAFETY: the context is current; the buffer was created by `new`, and is deleted once.
            self.linked.context.delete(move |gl| unsafe { gl.delete_buffer(values) });
        }
    }
}

/// Checks that each binding is the index of an argument.
fn check_bindings(name: &str, shape: &Shape, parameters: usize) -> Result<()> {
    let all = shape.storage.iter().chain(&shape.values);
    if let Some(Block { binding, .. }) = all.clone().find(|b| b.binding as usize >= parameters) {
        return Err(Error::invalid(format!(
            "shader `{name}` has a block with binding {binding}, and the kernel is declared with {parameters} \
             arguments: a binding is its argument's number"
        )));
    }
    match &shape.values[..] {
        [] | [_] => Ok(()),
        more => Err(Error::invalid(format!(
            "shader `{name}` has {} uniform blocks; all values must be in one block",
            more.len()
        ))),
    }
}

fn shape(gl: &Gl, program: u32) -> Result<Shape, GlRefused> {
    let mut group = [0; 3];
    // SAFETY: the context is current, the program is linked from a compute shader; the call writes three numbers.
    unsafe { gl.program_integer(program, consts::COMPUTE_WORK_GROUP_SIZE, group.as_mut_ptr())? };
    Ok(Shape {
        group: group.map(|n| usize::try_from(n).unwrap_or(1)),
        storage: blocks(gl, program, consts::SHADER_STORAGE_BLOCK)?,
        values: blocks(gl, program, consts::UNIFORM_BLOCK)?,
    })
}

/// Returns the active blocks of a kind.
fn blocks(gl: &Gl, program: u32, kind: u32) -> Result<Vec<Block>, GlRefused> {
    let mut count = 0;
    // SAFETY: the context is current, the program is linked; the call writes one number.
    unsafe { gl.program_interface(program, kind, consts::ACTIVE_RESOURCES, &raw mut count)? };
    let names = [consts::BUFFER_BINDING, consts::BUFFER_DATA_SIZE];
    let block = |index| {
        let mut asked = [0i32; 2];
        // SAFETY: as above; two values are queried, and there is room for them.
        unsafe {
            let (names, none, into) = (names.as_ptr(), std::ptr::null_mut(), asked.as_mut_ptr());
            gl.program_resource(program, kind, index, 2, names, 2, none, into)?;
        }
        let [binding, bytes] = asked.map(|n| u32::try_from(n).unwrap_or(0));
        Ok(Block { binding, bytes: bytes as usize })
    };
    (0..count.max(0) as u32).map(block).collect()
}

/// A buffer to bind for a launch.
#[derive(Clone, Copy)]
struct Bound {
    index: u32,
    buffer: u32,
    offset: isize,
    bytes: isize,
}

/// Enqueues a kernel.
///
/// # Safety
/// The kernel stays inside the given memories and accesses each only as its access allows.
pub(super) unsafe fn launch(
    queue: &Queue,
    kernel: &Kernel,
    grid: &Grid,
    args: Args<'_, Queue>,
    after: Events<'_, Queue>,
    wants_event: bool,
) -> Result<Option<Event>> {
    let context = &queue.context;
    let driver = &context.driver;
    queue.wait_for(after)?;
    let values = Values::of(args.untyped())?;
    kernel.check_args(args.untyped(), values.as_ref())?;
    let groups = shaders::groups(grid, kernel.shape.group, driver.limits.groups)
        .map_err(|why| named(kernel, grid, why))?;
    let mut bound = Vec::with_capacity(args.len());
    let mut external = false;
    for (index, arg) in (0..).zip(args.iter()) {
        if let TypedArg::Memory(memory, _, bytes) = arg? {
            external |= memory.is_external();
            let (offset, bytes) = memory.block(bytes);
            let [offset, bytes] = [offset, bytes].map(conv::signed);
            bound.push(Bound { index, buffer: memory.inner.name, offset, bytes });
        }
    }
    // Blocks that the shader does not use need no binding, and may exceed the limit.
    bound.retain(|b| kernel.shape.storage.iter().any(|block| block.binding == b.index));
    let values = values.filter(|_| kernel.values.is_some());
    let (sync, times) = context.run(|gl| {
        if external {
            // Another API may have written it without OpenGL's knowledge.
            context.unsettle();
        }
        context.settle(gl)?;
        let times = wants_event && queue.profiles;
        let start = times.then(|| event::stamp(gl)).transpose()?;
        let started = match context.is_inline() {
            true => dispatch_apart(gl, kernel, values.as_ref(), &bound, groups),
            false => dispatch(gl, kernel, kernel.values, values.as_ref(), &bound, groups),
        };
        context.unsettle();
        let ended = started.and_then(|()| ends(queue, gl, start, wants_event));
        ended.inspect_err(|_| event::unstamp(gl, start))
    })?;
    Ok(sync.map(|sync| Event::new(context.clone(), sync).timed(times)))
}

type Ends = (Option<onebuf_sys::gl::GlSync>, Option<[u32; 2]>);

/// Creates the fence and the end timestamp of a launch.
fn ends(queue: &Queue, gl: &Gl, start: Option<u32>, wants_event: bool) -> Result<Ends, GlRefused> {
    let end = start.map(|_| event::stamp(gl)).transpose()?;
    let sync = wants_event.then(|| queue.context.fence(gl)).transpose();
    let sync = sync.inspect_err(|_| event::unstamp(gl, end))?;
    Ok((sync, start.zip(end).map(|(start, end)| [start, end])))
}

/// Dispatches with a separate buffer for the values: the kernel's may be in use in the other context.
fn dispatch_apart(
    gl: &Gl,
    kernel: &Kernel,
    values: Option<&Values>,
    bound: &[Bound],
    groups: [u32; 3],
) -> Result<(), GlRefused> {
    // SAFETY: the context is current; the buffer is new, and deleted once: OpenGL keeps its storage for the launch.
    unsafe {
        let buffer = values.map(|_| gl.create_buffer()).transpose()?;
        let started = dispatch(gl, kernel, buffer, values, bound, groups);
        let deleted = buffer.map_or(Ok(()), |buffer| gl.delete_buffer(buffer));
        started.and(deleted)
    }
}

fn dispatch(
    gl: &Gl,
    kernel: &Kernel,
    block: Option<u32>,
    values: Option<&Values>,
    bound: &[Bound],
    [x, y, z]: [u32; 3],
) -> Result<(), GlRefused> {
    let (blocks, storage) = (consts::UNIFORM_BUFFER, consts::SHADER_STORAGE_BUFFER);
    // SAFETY: the context is current; a linked program, and ranges inside live buffers; OpenGL copies the values; the
    // caller guarantees what the shader does.
    unsafe {
        gl.use_program(kernel.linked.raw)?;
        for Bound { index, buffer, offset, bytes } in bound {
            gl.bind_buffer_range(storage, *index, *buffer, *offset, *bytes)?;
        }
        if let (Some(Values { binding, bytes }), Some(buffer)) = (values, block) {
            gl.bind_buffer_base(blocks, *binding, buffer)?;
            let len = conv::signed(bytes.len());
            // New storage each time, because earlier launches may still read the old.
            gl.buffer_data(blocks, len, bytes.as_ptr().cast(), consts::STREAM_DRAW)?;
        }
        gl.dispatch(x, y, z)
    }
}

/// Adds the kernel's name to an error.
fn named(kernel: &Kernel, grid: &Grid, why: Error) -> Error {
    match why {
        Error::InvalidArgument(why) => {
            let grid = conv::grid_text(grid, kernel.shape.group);
            Error::invalid(format!("kernel `{}` over {grid}: {why}", kernel.name))
        }
        other => other,
    }
}
