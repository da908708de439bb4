//! Arrays that describe themselves by `__cuda_array_interface__`, version 2 or 3.
//!
//! # Safety
//! The producer keeps the memory while its object lives, and the buffer keeps the object.

use crate::{
    array::PyBuffer,
    described::Described,
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    known,
    layout::Layout,
    options::BufferOptions,
    root::Root,
};
use onebuf::{Device, Hub, prelude::*};
use pyo3::{intern, prelude::*, types::PyDict};
use std::ffi::c_void;

/// What an array says about itself.
pub(crate) struct CudaArray {
    address: usize,
    pub read_only: bool,
    /// Contiguous, or why not.
    layout: Result<Layout, String>,
    dtype: Dtype,
    /// The stream of the producer's work; the default stream is 0.
    pub stream: Option<usize>,
}

impl CudaArray {
    /// Reads the description; `None` if the object has none.
    pub fn of(x: &Bound<'_, PyAny>) -> Result<Option<Self>> {
        let py = x.py();
        let Some(facts) = x.getattr_opt(intern!(py, "__cuda_array_interface__"))? else {
            return Ok(None);
        };
        let facts = facts.cast::<PyDict>().map_err(|_| wrong("is no dictionary"))?;
        let get = |name: &str| facts.get_item(name).map(|found| found.filter(|one| !one.is_none()));
        let need = |name: &str| get(name)?.ok_or_else(|| wrong(&format!("has no `{name}`")));
        let version: u32 = need("version")?.extract().map_err(|_| wrong("has no version"))?;
        if version < 2 {
            return Err(wrong(&format!("is of version {version}: 2 and 3 are known")));
        }
        if get("mask")?.is_some() {
            return Err(wrong("has a mask, which kernels do not know: apply it first"));
        }
        let shape = crate::layout::shape(&need("shape")?)?;
        let typestr = need("typestr")?;
        let dtype = Dtype::parse(&typestr)?;
        let (address, read_only): (usize, bool) =
            need("data")?.extract().map_err(|_| wrong("has no address in `data`"))?;
        let strides: Option<Vec<isize>> = get("strides")?
            .map(|strides| strides.extract().map_err(|_| wrong("has strides that are no integers")))
            .transpose()?;
        let stream: Option<i64> = get("stream")?
            .map(|stream| stream.extract().map_err(|_| wrong("has a stream that is no integer")))
            .transpose()?;
        let stream = match stream {
            Some(0) => return Err(wrong("has the stream 0, which is ambiguous: 1 or 2")),
            Some(..0) => return Err(wrong("has a negative stream")),
            Some(1) => Some(0),
            other => other.map(|stream| stream as usize),
        };
        let layout = Layout::dense(shape, dtype.size())?;
        let layout = match strides {
            Some(strides) if !same_strides(&layout, &strides) => Err(format!(
                "the array is not contiguous (strides {strides:?} for the shape {:?}): copy it first",
                layout.shape
            )),
            _ => Ok(layout),
        };
        Ok(Some(Self { address, read_only, layout, dtype, stream }))
    }

    /// The number of the device whose memory it is, as the driver says.
    pub fn device(&self, hub: &Hub) -> Result<i32> {
        let cuda = hub.device("cuda:0")?;
        Ok(hub.pointer_info(&cuda, self.address as *mut c_void)?.device)
    }

    /// The array for a kernel, or why a kernel cannot use it.
    pub fn described(self) -> Result<Described, String> {
        let layout = self.layout?;
        let (address, elements) = (self.address, layout.len());
        Ok(Described { address, elements, dtype: self.dtype, read_only: self.read_only })
    }
}

/// Strides of dimensions with one element do not matter.
fn same_strides(layout: &Layout, strides: &[isize]) -> bool {
    let same = |((size, have), want): ((&usize, &isize), &isize)| *size <= 1 || have == want;
    strides.len() == layout.shape.len()
        && layout.shape.iter().zip(strides).zip(&layout.strides).all(same)
}

fn wrong(what: &str) -> Fault {
    Fault::invalid(format!("the array's `__cuda_array_interface__` {what}"))
}

/// Memory of another library on a device, which is to be a buffer.
pub(crate) struct Foreign<'a, K> {
    pub device: Device,
    pub address: usize,
    pub layout: Layout,
    pub dtype: Dtype,
    pub read_only: bool,
    pub options: &'a BufferOptions,
    /// Keeps the memory.
    pub keeps: K,
}

impl<K: Send + 'static> Foreign<'_, K> {
    /// The buffer, ordered after the producer's work in that queue. Memory that is a buffer's already is a part of it.
    pub fn buffer(
        self,
        py: Python<'_>,
        hub: &Hub,
        after: Option<onebuf::Queue>,
    ) -> Result<PyBuffer> {
        let Self { device, address, layout, dtype, read_only, options, keeps } = self;
        let bytes = layout.bytes();
        if address == 0 {
            return Err(Fault::invalid("an array without memory"));
        }
        if let Some((root, start)) = known::find(hub, address..address.saturating_add(bytes))? {
            if root.is_wrapped {
                wrapped_again(&root, &options.share, read_only)?;
                detached(py, || after.map_or(Ok(()), |queue| root.goes_on_after(&queue)))?;
            }
            detached(py, || drop(keeps));
            return Ok(PyBuffer::new(root, Layout { offset: address - start, ..layout }, dtype));
        }
        let built = detached(py, || {
            let fence = after.map(|queue| queue.fence());
            // SAFETY: the producer keeps the memory until `keeps` is dropped, which happens when the buffer is gone. Its work is declared by
            // the queue, or done, and what it does with the array later is the documented duty of the caller.
            let builder = unsafe { hub.wrap_pointer::<u8>(&device, address as *mut c_void, bytes) };
            let builder = options.apply_to_wrap(builder.shared_with([&device]));
            let mut builder = builder.owned(move |_| drop(keeps));
            if let Some(fence) = &fence {
                builder = builder.after(fence);
            }
            builder.build()
        })?;
        let root = Root::wrapped(built, read_only);
        known::add(&root, address);
        Ok(PyBuffer::new(root, layout, dtype))
    }
}

/// Refuses what the buffer that has an array's memory already was not made for.
fn wrapped_again(root: &Root, share: &[Device], read_only: bool) -> Result<()> {
    let has = |device: &&Device| root.devices().iter().any(|one| one.index() == device.index());
    if let Some(device) = share.iter().find(|device| !has(device)) {
        return Err(Fault::invalid(format!(
            "the array's memory is wrapped already, and not shared with {}: name it in `share` when the memory is wrapped first",
            device.id()
        )));
    }
    if read_only && !root.read_only {
        return Err(Fault::invalid(
            "the array is read-only, and its memory is wrapped already as one that may be written",
        ));
    }
    Ok(())
}

/// Wraps an array.
pub(crate) fn wrap<'py>(
    py: Python<'py>,
    hub: &Hub,
    x: &Bound<'py, PyAny>,
    options: &BufferOptions,
) -> Result<PyBuffer> {
    let array = CudaArray::of(x)?.ok_or_else(|| {
        let name = x.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        Fault::invalid(format!("a {name} has no `__cuda_array_interface__`"))
    })?;
    let device = hub.device(&format!("cuda:{}", array.device(hub)?))?;
    let after = array.stream.map(|stream| crate::stream::wrap(py, &device, stream)).transpose()?;
    let (address, dtype, read_only) = (array.address, array.dtype, array.read_only);
    let layout = array.layout.map_err(Fault::invalid)?;
    let keeps = x.clone().unbind();
    Foreign { device, address, layout, dtype, read_only, options, keeps }.buffer(py, hub, after)
}
