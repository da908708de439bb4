//! A buffer of the library, shared by all Python objects that are parts of it, and its loan to the host. Loans to devices are in `loan` and `lend`.
//!
//! The host has at most one guard of a buffer. NumPy arrays, DLPack consumers and maps are users of it: the first opens the guard,
//! and the last closes it, on whatever thread that happens, with or without the interpreter.
//!
//! # Safety
//! Guards and regions borrow from a [`Root`] inside an `Arc`. The guard is a field of the root that is dropped before the buffer;
//! regions hold the `Arc` and drop it last.

use crate::{
    ending::detached,
    error::{Fault, Result},
    later::Locked,
    layout::Layout,
    loan::Loan,
    wait,
};
use onebuf::{
    Buffer, Device, Error, Map, MapMut, Queue, RouteKind, SubBuffer, SyncMethod, plan::Hop,
    topology::DeviceIx,
};
use pyo3::prelude::*;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

/// All buffers, so that the interpreter's end can wait for the work on them.
static ALL: Mutex<Vec<Weak<Root>>> = Mutex::new(Vec::new());

/// A buffer, and what the host does with it.
pub(crate) struct Root {
    side: Mutex<Side>,
    pub buffer: Whose,
    /// Neither the host nor kernels may write it: its producer said so.
    pub read_only: bool,
    /// Whether the memory is another library's, on a device.
    pub is_wrapped: bool,
    /// The devices that the buffer is shared with, found at the first use.
    devices: OnceLock<Vec<Device>>,
    /// The stream of another library that used it last.
    pub stream: Mutex<Option<(DeviceIx, usize, Queue)>>,
    /// The device whose kernels used it last.
    last: AtomicUsize,
}

/// A buffer of this process alone, or one that an attachment to another process keeps as well.
pub(crate) enum Whose {
    Own(Buffer<u8>),
    Attached(Arc<Buffer<u8>>),
}

impl From<Buffer<u8>> for Whose {
    fn from(buffer: Buffer<u8>) -> Self {
        Whose::Own(buffer)
    }
}

impl From<Arc<Buffer<u8>>> for Whose {
    fn from(buffer: Arc<Buffer<u8>>) -> Self {
        Whose::Attached(buffer)
    }
}

impl std::ops::Deref for Whose {
    type Target = Buffer<u8>;

    fn deref(&self) -> &Buffer<u8> {
        match self {
            Whose::Own(buffer) => buffer,
            Whose::Attached(buffer) => buffer,
        }
    }
}

/// Who has the buffer besides kernels: the host, or one device.
#[derive(Default)]
pub(crate) struct Side {
    lease: Option<Lease>,
    pub loan: Option<Loan>,
    /// The number of the next user.
    pub next: u64,
}

impl Side {
    /// Refuses a device while the host or another device has the buffer, with a message that names the borrower. Several may read.
    pub fn check(&mut self, device: &Device, writes: bool) -> Result<()> {
        self.awake();
        let busy = |said: String, what: &str| {
            let id = device.id();
            Err(Fault::busy(format!("{said}, so {id} cannot use it: drop the {what} first")))
        };
        match (&self.lease, &self.loan) {
            (Some(lease), _) if lease.writable || writes => {
                busy(lease.said(), "arrays and maps made from it")
            }
            (_, Some(loan)) if loan.device().index() == device.index() => Ok(()),
            (_, Some(loan)) if loan.writable() || writes => {
                busy(loan.said(), "arrays and views made from it")
            }
            _ => Ok(()),
        }
    }

    /// Ends a loan without users.
    pub fn awake(&mut self) {
        if self.loan.as_ref().is_some_and(Loan::is_at_rest) {
            self.loan = None;
        }
    }

    /// Refuses the host while a device has the buffer.
    fn check_host(&mut self, writes: bool) -> Result<()> {
        self.awake();
        match &self.loan {
            Some(loan) if loan.writable() || writes => Err(Fault::busy(format!(
                "{}, so the host cannot use it: drop the arrays and views made from it first",
                loan.said()
            ))),
            _ => Ok(()),
        }
    }
}

/// The host's guard, and its users by number.
struct Lease {
    guard: Guard,
    data: *mut u8,
    writable: bool,
    users: BTreeMap<u64, &'static str>,
}

// SAFETY: the pointer is only handed out; the guard may be sent between threads like any map.
unsafe impl Send for Lease {}

/// A map whose lifetime is extended: see the head of this file.
enum Guard {
    Read(#[expect(dead_code, reason = "kept for its drop")] Map<'static, u8>),
    Write(MapMut<'static, u8>),
}

impl Guard {
    fn take(root: &Arc<Root>, write: bool) -> Result<(Self, *mut u8)> {
        // SAFETY: the buffer neither moves nor ends before the guard, which is stored in a field that is dropped earlier.
        let Root { buffer, .. }: &'static Root = unsafe { &*Arc::as_ptr(root) };
        if write {
            let mut map = buffer.map_mut()?;
            let data = map.as_mut_ptr();
            return Ok((Guard::Write(map), data));
        }
        let map = buffer.map()?;
        let data = map.as_ptr().cast_mut();
        Ok((Guard::Read(map), data))
    }

    fn close(self) -> Result<()> {
        match self {
            Guard::Read(_) => Ok(()),
            Guard::Write(map) => Ok(map.unmap()?),
        }
    }
}

impl Root {
    pub fn new(buffer: impl Into<Whose>, read_only: bool) -> Arc<Self> {
        Self::of(buffer.into(), read_only, false)
    }

    /// A buffer over another library's memory on a device.
    pub fn wrapped(buffer: Buffer<u8>, read_only: bool) -> Arc<Self> {
        Self::of(buffer.into(), read_only, true)
    }

    fn of(buffer: Whose, read_only: bool, is_wrapped: bool) -> Arc<Self> {
        let (side, stream) = (Mutex::default(), Mutex::default());
        let (devices, last) = (OnceLock::new(), AtomicUsize::new(usize::MAX));
        let root = Arc::new(Self { side, buffer, read_only, is_wrapped, devices, stream, last });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // Now and then, those that are gone are left out.
        if all.len() >= 64 && all.len().is_power_of_two() {
            all.retain(|root| root.strong_count() > 0);
        }
        all.push(Arc::downgrade(&root));
        root
    }

    /// All buffers that exist.
    pub fn all() -> Vec<Arc<Self>> {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn side(&self) -> Locked<'_, Side> {
        Locked::new(&self.side)
    }

    /// Waits, without the interpreter and until a signal, for work that the host's next access waits for.
    pub fn settle(&self, py: Python<'_>, write: bool) -> Result<()> {
        {
            let mut side = self.side();
            side.check_host(write)?;
            if side.lease.is_some() {
                return Ok(());
            }
        }
        let fence = if write { self.buffer.uses() } else { self.buffer.fence() };
        wait::for_work(py, fence, self.buffer.hub().timeout())
    }

    /// Lends the buffer to the host, or adds a user to the loan.
    pub fn lend(
        self: &Arc<Self>,
        py: Python<'_>,
        write: bool,
        who: &'static str,
    ) -> Result<HostUse> {
        if write && self.read_only {
            return Err(read_only());
        }
        self.settle(py, write)?;
        detached(py, || self.lend_now(write, who))
    }

    fn lend_now(self: &Arc<Self>, write: bool, who: &'static str) -> Result<HostUse> {
        let mut side = self.side();
        side.check_host(write)?;
        if let Some(lease) = side.lease.as_ref().filter(|lease| write && !lease.writable) {
            return Err(Fault::busy(format!("{}: the host has it for reading only", lease.said())));
        }
        if side.lease.is_none() {
            let (guard, data) = Guard::take(self, write)?;
            side.lease = Some(Lease { guard, data, writable: write, users: BTreeMap::new() });
        }
        let number = side.next;
        side.next += 1;
        let lease = side.lease.as_mut().ok_or_else(|| Fault::busy("the host's map has ended"))?;
        lease.users.insert(number, who);
        Ok(HostUse { root: Some(self.clone()), number, data: lease.data, writable: write })
    }

    /// Ends a user's loan; the last one closes the guard.
    fn give_back(&self, number: u64) -> Result<()> {
        let mut side = self.side();
        let Some(lease) = &mut side.lease else { return Ok(()) };
        lease.users.remove(&number);
        if !lease.users.is_empty() {
            return Ok(());
        }
        let lease = side.lease.take();
        // With the lock held: the next user's guard must not meet this one.
        lease.map_or(Ok(()), |lease| lease.guard.close())
    }

    /// Refuses kernels while the host or another device has the buffer, with a message that names the borrower.
    pub fn check_kernel(&self, device: &Device, writes: bool) -> Result<()> {
        if writes && self.read_only {
            return Err(read_only());
        }
        self.side().check(device, writes)
    }

    /// The devices that the buffer is shared with, in their order; the one that has the memory if it is shared with none.
    pub fn devices(&self) -> &[Device] {
        self.devices.get_or_init(|| {
            let (hub, plan) = (self.buffer.hub(), self.buffer.plan());
            let find = |ix: DeviceIx| hub.device(&hub.topology().node(ix).id).ok();
            let all: Vec<_> = plan.routes.iter().filter_map(|hop| find(hop.to)).collect();
            if all.is_empty() { find(plan.allocate_on).into_iter().collect() } else { all }
        })
    }

    /// Waits, without the interpreter and until a signal, where a hand-over to the device would wait on this thread: before a staged copy, and
    /// where the host joins the two queues.
    pub fn settle_for(&self, py: Python<'_>, device: DeviceIx, write: bool) -> Result<()> {
        let routes = &self.buffer.plan().routes;
        if routes.len() < 2 || !self.moves_to(device) {
            return Ok(());
        }
        let waits = |hop: &Hop| hop.kind == RouteKind::Staged || hop.sync == SyncMethod::HostWait;
        if routes.iter().any(waits) {
            self.side().awake();
            let fence = if write { self.buffer.uses() } else { self.buffer.fence() };
            wait::for_work(py, fence, self.buffer.hub().timeout())?;
        }
        self.moved_to(device);
        Ok(())
    }

    /// As [`Root::settle_for`], or [`Root::settle`] for the host.
    pub fn settle_on(&self, py: Python<'_>, device: &Device, write: bool) -> Result<()> {
        match device.info().api.0 {
            "host" => self.settle(py, write),
            _ => self.settle_for(py, device.index(), write),
        }
    }

    /// Whether another device used the buffer last.
    fn moves_to(&self, device: DeviceIx) -> bool {
        self.last.load(Ordering::Relaxed) != device.get()
    }

    /// Notes that a device uses the buffer next, after a wait for the one before.
    fn moved_to(&self, device: DeviceIx) {
        self.last.store(device.get(), Ordering::Relaxed);
    }

    /// Whether a device has the buffer's memory at that address.
    pub fn is_at(&self, address: usize) -> bool {
        self.is_wrapped || self.side().loan.as_ref().is_some_and(|loan| loan.address() == address)
    }

    /// The number of users of the device that has the buffer.
    pub fn device_users(&self) -> usize {
        self.side().loan.as_ref().map_or(0, Loan::users)
    }

    /// The number of the host's users, for tests and messages.
    pub fn host_users(&self) -> usize {
        self.side().lease.as_ref().map_or(0, |lease| lease.users.len())
    }

    /// Copies bytes out, through the host's map if there is one.
    ///
    /// # Safety
    /// `to` is valid for writes of as many bytes as the range has.
    pub unsafe fn read(&self, range: Range<usize>, to: *mut u8) -> Result<()> {
        let mut side = self.side();
        side.check_host(false)?;
        match &side.lease {
            // SAFETY: the range is inside the buffer, which the map covers; the caller's promise.
            Some(lease) => unsafe { lease.data.add(range.start).copy_to(to, range.len()) },
            None => {
                // SAFETY: the caller's promise.
                let to = unsafe { std::slice::from_raw_parts_mut(to, range.len()) };
                self.buffer.read_range(range, to)?;
            }
        }
        Ok(())
    }

    /// Copies bytes in, through the host's map if there is one.
    ///
    /// # Safety
    /// `from` is valid for reads of as many bytes as the range has.
    pub unsafe fn write(&self, range: Range<usize>, from: *const u8) -> Result<()> {
        if self.read_only {
            return Err(read_only());
        }
        let mut side = self.side();
        side.check_host(true)?;
        match &side.lease {
            Some(lease) if !lease.writable => {
                Err(Fault::busy(format!("{}: the host has it for reading only", lease.said())))
            }
            Some(lease) => {
                // SAFETY: the range is inside the buffer, which the map covers; the caller's promise.
                unsafe { lease.data.add(range.start).copy_from(from, range.len()) };
                Ok(())
            }
            None => {
                // SAFETY: the caller's promise.
                let from = unsafe { std::slice::from_raw_parts(from, range.len()) };
                Ok(self.buffer.write_range(range, from)?)
            }
        }
    }
}

impl Root {
    /// Whether the host has the buffer.
    pub fn is_leased(&self) -> bool {
        self.side().lease.is_some()
    }

    /// Refuses what needs the buffer to itself while anything else has it, with a message that names the borrower.
    pub fn check_free(&self, writes: bool) -> Result<()> {
        if writes && self.read_only {
            return Err(read_only());
        }
        let mut side = self.side();
        side.check_host(true)?;
        match &side.lease {
            Some(lease) => Err(Fault::busy(format!(
                "{}: drop the arrays and maps made from it first",
                lease.said()
            ))),
            None => Ok(()),
        }
    }
}

impl Lease {
    /// Who has the buffer.
    fn said(&self) -> String {
        let mut names: Vec<_> = self.users.values().copied().collect();
        names.sort_unstable();
        names.dedup();
        format!("the buffer is lent to the host ({})", names.join(", "))
    }
}

pub(crate) fn read_only() -> Fault {
    Error::unsupported("writing this buffer", "memory that its producer did not mark as read-only")
        .into()
}

/// A user of the host's guard. Dropping it ends the use, on any thread.
pub(crate) struct HostUse {
    /// Empty after `close`.
    root: Option<Arc<Root>>,
    number: u64,
    pub data: *mut u8,
    pub writable: bool,
}

// SAFETY: the pointer is only handed out, and giving a use back is allowed on any thread.
unsafe impl Send for HostUse {}
// SAFETY: as above; nothing is changed through a reference.
unsafe impl Sync for HostUse {}

impl HostUse {
    /// Ends the use, and says whether what the host wrote has reached the buffer.
    pub fn close(mut self) -> Result<()> {
        self.root.take().map_or(Ok(()), |root| root.give_back(self.number))
    }
}

impl Drop for HostUse {
    fn drop(&mut self) {
        if let Some(root) = self.root.take() {
            // The library has logged what was lost.
            let _ = root.give_back(self.number);
        }
    }
}

/// A part of a buffer that kernels can get: a region, with the buffer that it is part of. The region is dropped first.
pub(crate) struct Region {
    pub part: SubBuffer<'static, u8>,
    /// Its first byte in the buffer.
    pub start: usize,
    _of: Arc<Root>,
}

impl Region {
    pub fn new(root: &Arc<Root>, layout: &Layout) -> Result<Self> {
        // SAFETY: the buffer lies behind the `Arc` that this keeps, and is dropped after the region.
        let Root { buffer, .. }: &'static Root = unsafe { &*Arc::as_ptr(root) };
        let part = buffer.sub_buffer(layout.span(), buffer.access())?;
        Ok(Self { part, start: layout.span().start, _of: root.clone() })
    }
}
