//! A buffer or a region of one, of which guards are taken.

use super::{Core, Seen, span::Span};
use crate::queue_state::QueueState;
use onebuf_hal::{
    Access, Memory, Result,
    locks::{Arc, Mutex, lock},
};
use std::fmt;

/// A range of a buffer's bytes, and what kernels may do with them.
#[derive(Clone, Copy)]
pub(crate) struct Part<'b> {
    pub core: &'b Core,
    pub span: Span,
    pub access: Access,
    /// The region's memory objects; `None` for a whole buffer.
    pub regions: Option<&'b Regions>,
}

impl<'b> Part<'b> {
    #[inline]
    pub fn whole(core: &'b Core) -> Self {
        Self { core, span: Span::whole(core.bytes), access: core.access, regions: None }
    }

    pub fn is_whole(&self) -> bool {
        self.span.len() == self.core.bytes
    }

    /// Takes the whole buffer on the queue's lease, if it has one; returns the alias and its memory.
    #[inline]
    pub fn take_leased(
        &self,
        queue_state: &Arc<QueueState>,
        write: bool,
    ) -> Option<(usize, Seen<'b>)> {
        if self.regions.is_some() {
            return None;
        }
        let alias = self.core.lease.take(queue_state, write)?;
        let memory = self.core.aliases[alias].memory();
        Some((
            alias,
            Seen::Alias(&**memory.expect("only an alias with memory of its own has a lease")),
        ))
    }

    /// Returns the memory through which an alias's kernels, or the host, use the part.
    #[inline]
    pub fn memory(&self, alias: usize) -> Result<Seen<'b>> {
        match (self.regions, self.core.aliases[alias].memory()) {
            (Some(regions), Some(memory)) => {
                // An alias whose route failed has other memory, and other regions.
                let slot = 2 * alias + usize::from(self.core.aliases[alias].spare.get().is_some());
                regions.at(slot, &**memory, self).map(Seen::Mapped)
            }
            _ => self.core.memory(alias, self.span),
        }
    }
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({:?}, {})", self.span, self.access)
    }
}

/// The range of a buffer that wraps a foreign sub-buffer.
pub struct Window {
    span: Span,
    access: Access,
    regions: Regions,
}

impl Window {
    /// Creates a window; `own` is the owner's sub-buffer object.
    pub fn new(
        core: &Core,
        offset: usize,
        bytes: usize,
        access: Access,
        own: Arc<dyn Memory>,
    ) -> Self {
        let regions = Regions::new(core.aliases.len());
        for alias in core.aliases.iter().enumerate().filter(|(_, alias)| alias.is_home) {
            // The first of the alias's two slots; the second is for memory after a failover.
            lock(&regions.0)[2 * alias.0] = Some(own.clone());
        }
        Self { span: Span::from(offset..offset + bytes), access, regions }
    }

    pub(crate) fn part<'b>(&'b self, core: &'b Core) -> Part<'b> {
        Part { core, span: self.span, access: self.access, regions: Some(&self.regions) }
    }
}

/// A region as a memory object of each alias, created when first needed.
pub(crate) struct Regions(Mutex<Vec<Option<Arc<dyn Memory>>>>);

impl Regions {
    pub fn new(aliases: usize) -> Self {
        Self(Mutex::new(vec![None; 2 * aliases]))
    }

    fn at(&self, slot: usize, memory: &dyn Memory, part: &Part<'_>) -> Result<Arc<dyn Memory>> {
        let slot = &mut lock(&self.0)[slot];
        if let Some(region) = slot {
            return Ok(region.clone());
        }
        let region = memory.region(part.span.start, part.span.len(), part.access)?;
        Ok(slot.insert(region).clone())
    }
}
