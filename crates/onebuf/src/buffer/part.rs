//! A buffer, or a region of one: what guards are taken of.

use super::{Core, span::Span};
use crate::{
    Access, Result,
    hal::Memory,
    queue::Line,
    sync::{Arc, Mutex, lock},
};

/// Bytes of a buffer, and what kernels may do with them.
#[derive(Clone, Copy)]
pub(crate) struct Part<'b> {
    pub core: &'b Core,
    pub span: Span,
    pub access: Access,
    /// The region's own memories; `None` for the whole.
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

    /// Takes the whole on the queue's lease, where it has one, and says at which site and as what memory.
    #[inline]
    pub fn take_leased(&self, line: &Arc<Line>, write: bool) -> Option<(usize, Seen<'b>)> {
        if self.regions.is_some() {
            return None;
        }
        let site = self.core.lease.take(line, write)?;
        let memory = self.core.sites[site].memory();
        Some((site, Seen::Site(&**memory.expect("only a site with memory of its own has a lease"))))
    }

    /// What a site's kernels, or the host, see of it.
    #[inline]
    pub fn memory(&self, site: usize) -> Result<Seen<'b>> {
        match (self.regions, self.core.sites[site].memory()) {
            (Some(regions), Some(memory)) => {
                // A site whose route failed has another memory, and regions of that.
                let slot = 2 * site + usize::from(self.core.sites[site].spare.get().is_some());
                regions.at(slot, &**memory, self).map(Seen::Mapped)
            }
            _ => self.core.memory(site, self.span),
        }
    }
}

/// A region of a buffer that is a buffer of its own: somebody else's sub-buffer.
pub(crate) struct Window {
    span: Span,
    access: Access,
    regions: Regions,
}

impl Window {
    /// With the memory that its owner knows it by.
    pub fn new(
        core: &Core,
        offset: usize,
        bytes: usize,
        access: Access,
        own: Arc<dyn Memory>,
    ) -> Self {
        let regions = Regions::new(core.sites.len());
        for site in core.sites.iter().enumerate().filter(|(_, site)| site.is_home) {
            // The first of its two slots: the other is for memory after a failover.
            lock(&regions.0)[2 * site.0] = Some(own.clone());
        }
        Self { span: Span::from(offset..offset + bytes), access, regions }
    }

    pub fn part<'b>(&'b self, core: &'b Core) -> Part<'b> {
        Part { core, span: self.span, access: self.access, regions: Some(&self.regions) }
    }
}

/// A region as memory of each site; made when first needed.
pub(crate) struct Regions(Mutex<Vec<Option<Arc<dyn Memory>>>>);

impl Regions {
    pub fn new(sites: usize) -> Self {
        Self(Mutex::new(vec![None; 2 * sites]))
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

/// The memory behind a guard.
pub(crate) enum Seen<'b> {
    /// The site's own.
    Site(&'b dyn Memory),
    /// Made for this look: a region, or the host's view through another's mapping.
    Mapped(Arc<dyn Memory>),
}

impl Seen<'_> {
    #[inline]
    pub fn get(&self) -> &dyn Memory {
        match self {
            Seen::Site(memory) => *memory,
            Seen::Mapped(memory) => &**memory,
        }
    }
}
