//! Routes by the address that kernels see, between two APIs that work in one address space on one chip.
//!
//! No specification speaks of them, so none is guaranteed. Which API allocates tells what is handed on: memory that takes an
//! address by its allocator's contract (SVM, or device memory of an API whose kernels take addresses), or an object, whose
//! address only a kernel can tell.

use super::RouteEnds;
use crate::topology::Route;
use onebuf_hal::{AddressSpace, DeviceInfo, FdKind, MemoryKind, RouteKind};

/// Whether two APIs' kernels see the same memory at the same address: one space, and one chip where it is a chip's.
fn one_space(a: &DeviceInfo, b: &DeviceInfo) -> bool {
    a.api != b.api
        && match (a.caps.address_space, b.caps.address_space) {
            (Some(AddressSpace::Process), Some(AddressSpace::Process)) => true,
            (Some(a_in), Some(b_in)) => a_in == b_in && a.physical.same_chip(&b.physical),
            _ => false,
        }
}

/// Whether a route of that kind goes by the address of memory on `from`.
pub(crate) fn by_address(from: &DeviceInfo, to: &DeviceInfo, kind: RouteKind) -> bool {
    let by_its_own = !from.caps.exports.contains(&FdKind::DmaBuf);
    match kind {
        RouteKind::SvmPointer | RouteKind::RawAddress => one_space(from, to),
        RouteKind::DmaBuf => one_space(from, to) && by_its_own,
        _ => false,
    }
}

impl RouteEnds<'_> {
    pub(super) fn one_space(&self) -> bool {
        one_space(self.a.1, self.b.1)
    }

    /// What the allocator gave. Fine-grained SVM is host memory there, and left alone.
    pub(super) fn one_address(&self) -> Option<Route> {
        let memory_kind =
            if self.gives_objects() { MemoryKind::CoarseSvm } else { MemoryKind::Device };
        let why = "no specification speaks of one API's addresses in another";
        self.offers(memory_kind).then(|| self.by(RouteKind::SvmPointer, memory_kind, why))
    }

    /// What a kernel sees as the address of an object.
    pub(super) fn raw_address(&self) -> Option<Route> {
        let why = "no API promises that what a kernel sees as an address means anything elsewhere";
        let there = self.one_space() && self.gives_objects();
        there.then(|| self.by(RouteKind::RawAddress, MemoryKind::Device, why))
    }

    /// A descriptor of what lies at the address: for calls of the other API's that do not know addresses of others.
    pub(super) fn by_dma_buf(&self) -> Option<Route> {
        let caps = [&self.a.1.caps, &self.b.1.caps];
        let there = self.one_space()
            && self.gives_objects()
            && !caps[0].exports.contains(&FdKind::DmaBuf)
            && caps[1].exports.contains(&FdKind::DmaBuf)
            && caps[1].imports.contains(&FdKind::DmaBuf)
            && self.offers(MemoryKind::CoarseSvm);
        let why = "the runtime under both makes a descriptor of what lies at the address";
        there.then(|| self.by(RouteKind::DmaBuf, MemoryKind::CoarseSvm, why))
    }

    /// Whether its memory is objects, but for shared virtual memory.
    fn gives_objects(&self) -> bool {
        self.a.1.caps.memory_kinds.contains(&MemoryKind::CoarseSvm)
    }

    fn by(&self, kind: RouteKind, memory_kind: MemoryKind, why: &str) -> Route {
        let needs = "one chip, and two APIs whose kernels work in one address space";
        let mut route = self.promised(kind, Some(memory_kind), 20, needs, why);
        route.guaranteed = false;
        route.verdict.zero_copy = None;
        route
    }
}
