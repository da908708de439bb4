//! Options of buffers, as keywords of Python state them: one list for all functions that make buffers or wrap memory.

use crate::{
    error::{Fault, Result},
    given::{device, devices, word},
};
use onebuf::{
    Access, BufferBuilder, CopyPolicy, Device, Hint, HostAccess, Hub, MemoryKind, RouteKind,
    SyncMethod, WrapBuilder,
};
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyDict};

/// How a buffer is made.
pub(crate) struct BufferOptions {
    pub share: Vec<Device>,
    pub copies: CopyPolicy,
    pub trust_declared: bool,
    pub route: Option<RouteKind>,
    name: Option<String>,
    raw_addresses: bool,
    access: Option<Access>,
    host_access: Option<HostAccess>,
    hint: Option<Hint>,
    memory_kind: Option<MemoryKind>,
    sync: Option<SyncMethod>,
    allocate_on: Option<Device>,
    align: Option<usize>,
    cl_flags: Option<u64>,
}

/// The options that a function takes: the first ones of [`ALL`].
#[derive(Clone, Copy)]
pub(crate) enum OptionsFor {
    /// Of memory that another process, or a file descriptor, brings.
    Shared = 3,
    /// Of memory that another library has allocated.
    Wrapped = 6,
    /// Of new memory.
    New = 14,
}

const ALL: [&str; OptionsFor::New as usize] = [
    "share",
    "copies",
    "trust_declared",
    "name",
    "route",
    "raw_addresses",
    "access",
    "host_access",
    "hint",
    "memory_kind",
    "sync",
    "allocate_on",
    "align",
    "cl_flags",
];

/// Calls the builder's methods of those options that were given.
macro_rules! tell {
    ($builder:ident: $($option:ident),*; of $options:ident) => {
        $(if let Some(value) = &$options.$option {
            $builder = $builder.$option(value.to_owned());
        })*
    };
}

impl BufferOptions {
    /// Reads the keywords. `None` is as good as nothing.
    pub fn read(hub: &Hub, takes: OptionsFor, named: Option<&Bound<'_, PyDict>>) -> Result<Self> {
        let mut options = Self::of(hub);
        let known = &ALL[..takes as usize];
        for (key, value) in named.into_iter().flatten() {
            let key = key.extract::<String>()?;
            if !known.contains(&key.as_str()) {
                let what = format!("unexpected option `{key}`: {} are known", known.join(", "));
                return Err(PyTypeError::new_err(what).into());
            }
            if !value.is_none() {
                options.set(hub, &key, &value)?;
            }
        }
        Ok(options)
    }

    fn of(hub: &Hub) -> Self {
        Self {
            share: Vec::new(),
            copies: hub.copy_policy(),
            trust_declared: false,
            route: None,
            name: None,
            raw_addresses: false,
            access: None,
            host_access: None,
            hint: None,
            memory_kind: None,
            sync: None,
            allocate_on: None,
            align: None,
            cl_flags: None,
        }
    }

    fn set(&mut self, hub: &Hub, key: &str, value: &Bound<'_, PyAny>) -> Result<()> {
        let text = || value.extract::<String>();
        match key {
            "share" => self.share = devices(hub, value)?,
            "copies" => self.copies = word(key, &text()?)?,
            "trust_declared" => self.trust_declared = value.is_truthy()?,
            "route" => self.route = Some(word(key, &text()?)?),
            "name" => self.name = Some(text()?),
            "raw_addresses" => self.raw_addresses = value.is_truthy()?,
            "access" => self.access = Some(word(key, &text()?)?),
            "host_access" => self.host_access = Some(word(key, &text()?)?),
            "hint" => self.hint = Some(word(key, &text()?)?),
            "memory_kind" => self.memory_kind = Some(word(key, &text()?)?),
            "sync" => self.sync = Some(word(key, &text()?)?),
            "allocate_on" => self.allocate_on = Some(device(hub, value)?),
            "align" => self.align = Some(value.extract()?),
            "cl_flags" => self.cl_flags = Some(value.extract()?),
            other => return Err(Fault::invalid(format!("an option `{other}`"))),
        }
        Ok(())
    }

    /// Tells the builder of a buffer.
    pub fn apply<'i>(
        &self,
        mut builder: BufferBuilder<'i, u8>,
    ) -> onebuf::Result<BufferBuilder<'i, u8>> {
        builder = builder.shared_with(&self.share).copies(self.copies);
        builder = builder.trust_declared(self.trust_declared).raw_addresses(self.raw_addresses);
        if let Some(bits) = self.cl_flags {
            builder = builder.cl_flags(bits)?;
        }
        tell!(builder: access, host_access, name, route, hint, memory_kind, sync, align; of self);
        Ok(match &self.allocate_on {
            Some(device) => builder.allocate_on(device),
            None => builder,
        })
    }

    /// Tells the builder of a wrap.
    pub fn apply_to_wrap<'h>(&self, mut builder: WrapBuilder<'h, u8>) -> WrapBuilder<'h, u8> {
        builder = builder.shared_with(&self.share).copies(self.copies);
        builder = builder.trust_declared(self.trust_declared).raw_addresses(self.raw_addresses);
        tell!(builder: name, route; of self);
        builder
    }
}
