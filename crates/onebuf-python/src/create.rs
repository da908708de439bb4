//! New buffers.

use crate::{
    array::PyBuffer,
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    given::{devices, policy},
    layout::Layout,
    root::Root,
};
use onebuf::{Access, Hub, MemoryKind};
use pyo3::prelude::*;

/// Options of a new buffer, as Python states them.
pub(crate) struct NewBuffer<'py, 'k> {
    pub share: Option<Bound<'py, PyAny>>,
    pub copies: Option<String>,
    pub name: Option<String>,
    pub memory_kind: Option<&'k str>,
    pub trust_declared: bool,
}

impl NewBuffer<'_, '_> {
    /// Makes a buffer of zeroes.
    pub fn make(self, py: Python<'_>, hub: &Hub, layout: Layout, dtype: Dtype) -> Result<PyBuffer> {
        let devices = devices(hub, self.share.as_ref())?;
        let copies = self.copies.as_deref().map_or(Ok(hub.copy_policy()), policy)?;
        let memory_kind = self.memory_kind.map(memory_kind).transpose()?;
        let built = detached(py, || {
            let mut builder = hub.buffer::<u8>(layout.bytes()).access(Access::ReadWrite);
            builder =
                builder.shared_with(&devices).copies(copies).trust_declared(self.trust_declared);
            if let Some(name) = &self.name {
                builder = builder.name(name);
            }
            if let Some(kind) = memory_kind {
                builder = builder.memory_kind(kind);
            }
            builder.build()
        })?;
        Ok(PyBuffer::new(Root::new(built, false), layout, dtype))
    }
}

/// The memory kind of that name.
fn memory_kind(name: &str) -> Result<MemoryKind> {
    serde_json::from_value(name.into())
        .map_err(|why| Fault::invalid(format!("memory_kind={name:?}: {why}")))
}
