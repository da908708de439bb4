//! Routes by the address that kernels see, between two APIs that work in one address space on one chip.
//!
//! No specification covers them, so none is guaranteed. The allocating API determines what is passed on: memory whose address its
//! contract defines (SVM, or device memory of an API whose kernels take addresses), or an object, whose address only a kernel
//! can determine.

use super::RouteEnds;
use crate::topology::Route;
use onebuf_hal::{AddressSpace, DeviceInfo, FdKind, MemoryKind, RouteKind};

/// Whether kernels of two APIs see the same memory at the same address: one address space and, if it is a chip's, one chip.
fn one_space(a: &DeviceInfo, b: &DeviceInfo) -> bool {
    a.api != b.api
        && match (a.caps.address_space, b.caps.address_space) {
            (Some(AddressSpace::Process), Some(AddressSpace::Process)) => true,
            (Some(a_in), Some(b_in)) => a_in == b_in && a.physical.same_chip(&b.physical),
            _ => false,
        }
}

/// Whether a route of this kind passes on the address of memory on `from`.
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

    /// By the address that the allocator returned. Fine-grained SVM is not used: it is host memory there.
    pub(super) fn one_address(&self) -> Option<Route> {
        let memory_kind =
            if self.gives_objects() { MemoryKind::CoarseSvm } else { MemoryKind::Device };
        let why = "no specification speaks of one API's addresses in another";
        self.offers(memory_kind).then(|| self.by(RouteKind::SvmPointer, memory_kind, why))
    }

    /// By the address at which a kernel sees an object.
    pub(super) fn raw_address(&self) -> Option<Route> {
        let why = "no API guarantees that an address seen by its kernels is valid in another API";
        let there = self.one_space() && self.gives_objects();
        there.then(|| self.by(RouteKind::RawAddress, MemoryKind::Device, why))
    }

    /// By a descriptor of the memory at the address, for calls of the other API that do not accept foreign addresses.
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

    /// Whether the allocating API's memory consists of objects, apart from shared virtual memory.
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
