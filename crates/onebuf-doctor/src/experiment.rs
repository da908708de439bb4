//! One experiment: does memory of one device, accessed from another by this route, have the same bytes, on every page, in
//! both directions, with interleaved work, and at what cost?
//!
//! Changing the experiment requires a higher [`EXPERIMENT_VERSION`](onebuf_core::identity::EXPERIMENT_VERSION).

use super::subject::{Side, Sides, Step, Unit, step_model};
use bytemuck::Pod;
use onebuf_core::{
    Buffer, BufferBuilder, Hub,
    internals::declared_sync_methods,
    topology::{Envelope, Verdict, VerdictState},
};
use onebuf_graft::NEVER_RUN;
use onebuf_hal::{AddressSpace, Error, MemoryKind, Result, RouteKind, SyncMethod};

pub(super) const PAGE: usize = 4096;
pub(super) const MIB: usize = 1 << 20;
/// The largest size at which every byte is checked.
const LARGE: usize = 64 * MIB;

/// The sizes at which sharing is checked: one byte, one page, odd sizes, around the huge-page size, large.
pub const SIZES: [usize; 8] =
    [1, PAGE, 10_007, 5 * PAGE + 4, 2 * MIB - PAGE, 2 * MIB, 2 * MIB + PAGE, 64 * MIB];

/// Bytes that a check reads at a time: whole pages.
const CHECK_BYTES: usize = 2 * MIB;

/// Consecutive hand-overs without a wait. An order that only usually holds fails here.
const ROUNDS: usize = 100;

/// The stage that is reported when a wait timed out. The doctor then checks whether the helper could run meanwhile.
pub(super) const TIMED_OUT: &str = "a wait timed out";

/// Why there is no proof.
pub(super) enum Trouble {
    /// It could not be tried, for lack of resources. That says nothing about the route.
    NotTried(String),
    /// It was tried and failed.
    Failed(String),
    /// It was tried, and a wait timed out.
    TimedOut(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            // A driver that fails to allocate little is not short of memory.
            Error::OutOfMemory { asked, .. } if asked > MIB as u64 => {
                Trouble::NotTried(format!("not tried: {error}"))
            }
            // The kernels are the experiment's own. A compiler that fails on them, for example because the disk is full, says
            // nothing about the route.
            Error::Build { .. } => Trouble::NotTried(format!("not tried: {error}")),
            Error::Timeout { .. } => Trouble::TimedOut(error.to_string()),
            _ => Trouble::Failed(error.to_string()),
        }
    }
}

impl Trouble {
    /// Adds where it happened.
    pub(super) fn at(self, place: &str) -> Self {
        self.map(|why| format!("{place}: {why}"))
    }

    /// Appends earlier failures.
    fn and(self, before: &str) -> Self {
        self.map(|why| why + before)
    }

    /// Changes the reason of what was tried.
    fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Trouble::Failed(why) => Trouble::Failed(change(why)),
            Trouble::TimedOut(why) => Trouble::TimedOut(change(why)),
            not_tried => not_tried,
        }
    }

    /// The reason, if it was tried.
    fn reason(&self) -> Option<&str> {
        match self {
            Trouble::NotTried(_) => None,
            Trouble::Failed(why) | Trouble::TimedOut(why) => Some(why),
        }
    }

    pub(super) fn verdict(self, tell: &mut dyn FnMut(&str)) -> Verdict {
        let (state, why) = match self {
            Trouble::NotTried(why) => (VerdictState::Declared, why),
            Trouble::Failed(why) => (VerdictState::Refuted, why),
            Trouble::TimedOut(why) => {
                tell(TIMED_OUT);
                (VerdictState::Refuted, why)
            }
        };
        Verdict { state, why, ..Verdict::default() }
    }
}

/// Tries whether a route shares memory. Any failure refutes it, with the reason. A proof says nothing about costs.
pub(super) fn share(
    hub: &Hub,
    sides: &mut Sides,
    ids: [&str; 2],
    kind: RouteKind,
    reach: u64,
    tell: &mut dyn FnMut(&str),
) -> Verdict {
    let opened = Experiment::open(hub, sides, ids, kind, tell);
    let made = opened.and_then(|mut experiment| experiment.shares(reach));
    let verdict = made.unwrap_or_else(|trouble| trouble.verdict(tell));
    // The end of a proof comes with its costs.
    if verdict.state == VerdictState::Proven { verdict } else { remarked(hub, ids, verdict) }
}

/// Ends the reason with a remark if onebuf has never run such a pair.
fn remarked(hub: &Hub, ids: [&str; 2], mut verdict: Verdict) -> Verdict {
    if is_experimental(hub, ids) {
        verdict.why.push_str(&format!("; {NEVER_RUN}"));
    }
    verdict
}

/// Measures what a route costs, by the given sync method and those below it. The rest of the verdict is that of [`share`].
pub(super) fn time(
    hub: &Hub,
    sides: &mut Sides,
    ids: [&str; 2],
    kind: RouteKind,
    sync: SyncMethod,
    tell: &mut dyn FnMut(&str),
) -> Verdict {
    let opened = Experiment::open(hub, sides, ids, kind, tell);
    let made = opened.and_then(|mut experiment| {
        experiment.sync = Some(sync);
        experiment.costs()
    });
    let verdict = made.unwrap_or_else(|trouble| trouble.verdict(tell));
    remarked(hub, ids, verdict)
}

/// Whether two devices share the address space of a vendor's runtime. onebuf has never run such a pair on hardware.
fn is_experimental(hub: &Hub, ids: [&str; 2]) -> bool {
    let space = |id| hub.device(id).ok().and_then(|device| device.info().caps.address_space);
    let [from, to] = ids.map(space);
    ids[0] != ids[1] && from == to && matches!(from, Some(AddressSpace::Runtime(_)))
}

/// Two devices, a route, and the state of the experiment.
pub(super) struct Experiment<'e> {
    pub(super) hub: &'e Hub,
    pub(super) from: Side,
    pub(super) to: Side,
    pub(super) kind: RouteKind,
    /// The largest buffer that both devices can allocate.
    pub(super) limit: usize,
    /// A lower sync method, after a better one failed.
    pub(super) sync: Option<SyncMethod>,
    /// A memory kind other than the planner's choice.
    memory_kind: Option<MemoryKind>,
    seed: u64,
    pub(super) tell: &'e mut dyn FnMut(&str),
}

impl<'e> Experiment<'e> {
    fn open(
        hub: &'e Hub,
        sides: &mut Sides,
        [from, to]: [&str; 2],
        kind: RouteKind,
        tell: &'e mut dyn FnMut(&str),
    ) -> Result<Self, Trouble> {
        tell("building the kernels");
        let near = hub.device(from)?;
        let (far, to) = match from == to {
            // A second context of the same device, as another library would create it.
            true => {
                let far = hub.second_device(&near)?;
                (far.clone(), Side::open(&far)?)
            }
            false => {
                let far = hub.device(to)?;
                (far.clone(), sides.open(&far)?)
            }
        };
        // A memory kind that plans do not choose by themselves must be requested.
        let mut routes = hub.topology().between(near.index(), far.index()).iter();
        let memory_kind =
            routes.find(|route| route.kind == kind).and_then(|route| route.memory_kind);
        let memory_kind = memory_kind.filter(|memory_kind| memory_kind.is_asked_for());
        let from = sides.open(&near)?;
        let limit = limit(&from).min(limit(&to)) as usize;
        Ok(Self { hub, from, to, kind, limit, sync: None, memory_kind, seed: fresh_seed(), tell })
    }

    fn shares(&mut self, reach: u64) -> Result<Verdict, Trouble> {
        self.control()?;
        let mut not_by = String::new();
        while let Err(trouble) = self.sharing() {
            // The memory may work while the sync method fails: retries with lower methods, down to host waits.
            let sync_method = self.planned()?;
            let (Some(reason), Some(lower)) = (trouble.reason(), self.lower(sync_method)) else {
                return Err(trouble.and(&not_by));
            };
            if matches!(trouble, Trouble::TimedOut(_)) {
                (self.tell)(TIMED_OUT);
            }
            self.sync = Some(lower);
            not_by = format!("{not_by}; not by {sync_method}: {reason}");
        }
        self.other_memory_kinds()?;
        let max_bytes = self.reach(reach)?;
        Ok(Verdict {
            state: VerdictState::Proven,
            why: format!("every page, both directions, interleaved{not_by}"),
            sync: Some(self.planned()?),
            envelope: Some(Envelope {
                min_bytes: SIZES[0] as u64,
                max_bytes,
                sizes: self.sizes().map(|size| size as u64).collect(),
            }),
            ..Verdict::default()
        })
    }

    fn costs(&mut self) -> Result<Verdict, Trouble> {
        let cost = self.cost_by_best_sync_method()?;
        Ok(Verdict {
            state: VerdictState::Proven,
            zero_copy: cost.zero_copy,
            why: cost.why,
            sync: Some(self.planned()?),
            handoff_us: Some(cost.handoff_us),
            gb_per_s: Some(cost.gb_per_s),
            ..Verdict::default()
        })
    }

    /// Tries a route that serves several memory kinds with each, because they are allocated and exported by different calls.
    fn other_memory_kinds(&mut self) -> Result<(), Trouble> {
        let memory_kind = MemoryKind::Exportable;
        let has_it = self.from.device.info().caps.memory_kinds.contains(&memory_kind);
        if self.kind != RouteKind::Peer || !has_it {
            return Ok(());
        }
        self.memory_kind = Some(memory_kind);
        self.sharing().map_err(|trouble| trouble.at(&memory_kind.to_string()))?;
        self.memory_kind = None;
        Ok(())
    }

    /// The sizes that both devices can allocate.
    fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let limit = self.limit;
        SIZES.into_iter().filter(move |&size| size <= limit)
    }

    /// The largest size at which every byte is checked, in whole pages.
    pub(super) fn large(&self) -> usize {
        LARGE.min(self.limit / PAGE * PAGE)
    }

    /// A buffer that is allocated on `from` and shared with `to` by the route.
    pub(super) fn shared<T: Pod>(&self, elements: usize) -> Result<Buffer<T>, Trouble> {
        Ok(self.builder(elements).build()?)
    }

    pub(super) fn builder<T: Pod>(&self, elements: usize) -> BufferBuilder<'_, T> {
        let builder =
            self.hub.buffer::<T>(elements).shared_with([&self.from.device, &self.to.device]);
        let builder = builder.allocate_on(&self.from.device).route(self.kind).trust_declared(true);
        let builder = self.memory_kind.into_iter().fold(builder, BufferBuilder::memory_kind);
        match self.sync {
            Some(sync_method) => builder.sync(sync_method),
            None => builder,
        }
    }

    /// The sync method between the two devices.
    pub(super) fn planned(&self) -> Result<SyncMethod, Trouble> {
        let plan = self.builder::<u32>(PAGE).plan()?;
        let hop = plan.routes.iter().find(|hop| hop.to == self.to.device.index());
        let planned = hop.map_or(SyncMethod::HostWait, |hop| hop.sync);
        Ok(self.sync.map_or(planned, |forced| planned.max(forced)))
    }

    /// The next lower sync method across APIs.
    pub(super) fn lower(&self, sync_method: SyncMethod) -> Option<SyncMethod> {
        let ends = [&self.from, &self.to].map(|side| side.device.index());
        let mut tried = declared_sync_methods(self.hub.topology(), ends, self.kind);
        tried.find(|lower| *lower > sync_method)
    }

    /// Tests sizes, sub-ranges, two buffers at once, and many hand-overs.
    fn sharing(&mut self) -> Result<(), Trouble> {
        for bytes in self.sizes() {
            match bytes % 4 {
                0 => self.share::<u32>(bytes / 4),
                _ => self.share::<u8>(bytes),
            }
            .map_err(|trouble| trouble.at(&format!("at {bytes} bytes")))?;
        }
        (self.tell)("sharing two buffers at once");
        self.share_two().map_err(|trouble| trouble.at("two buffers at once"))?;
        (self.tell)("handing over many times");
        self.share_often().map_err(|trouble| trouble.at(&format!("{ROUNDS} rounds")))
    }

    fn share<T: Unit>(&mut self, elements: usize) -> Result<(), Trouble> {
        let bytes = elements * size_of::<T>();
        self.stage(bytes, "the first writes");
        let buffer = self.shared::<T>(elements)?;
        let mut model = self.random::<T>(elements);
        write_from(&self.from, &buffer, &model)?;
        self.look(&buffer, &mut model, "written by the first, read by the second")?;
        if bytes == LARGE {
            // The small sizes have shown the rest.
            self.stage(bytes, "kernels in turn");
            self.step_both(&buffer, &mut model, 0, elements)?;
            return check_from(&self.from, &buffer, &model, "after kernels, read by the first");
        }
        self.stage(bytes, "the second writes");
        self.write_from_second(&buffer, &mut model)?;
        check_from(&self.from, &buffer, &model, "written by the second, read by the first")?;
        for _ in 0..2 {
            self.stage(bytes, "kernels in turn");
            self.step_both(&buffer, &mut model, 0, elements)?;
        }
        self.stage(bytes, "kernels on a part");
        self.step_both(&buffer, &mut model, elements / 3, (elements / 3).max(1))?;
        check_from(&self.from, &buffer, &model, "after kernels in turn, read by the first")?;
        self.look(&buffer, &mut model, "after kernels in turn, read by the second")
    }

    /// Checks what the second device reads: through its own API or, if that does not support the memory, by a kernel whose
    /// result the first reads.
    fn look<T: Unit>(
        &mut self,
        buffer: &Buffer<T>,
        model: &mut [T],
        when: &str,
    ) -> Result<(), Trouble> {
        if buffer.transfers_on(&self.to.queue) {
            return check_from(&self.to, buffer, model, when);
        }
        self.step_second(buffer, model)?;
        check_from(&self.from, buffer, model, &format!("{when}, by a kernel"))
    }

    /// Writes everything from the second device, by its API or by a kernel.
    fn write_from_second<T: Unit>(
        &mut self,
        buffer: &Buffer<T>,
        model: &mut Vec<T>,
    ) -> Result<(), Trouble> {
        if buffer.transfers_on(&self.to.queue) {
            *model = self.random::<T>(model.len());
            return write_from(&self.to, buffer, model);
        }
        self.step_second(buffer, model)
    }

    fn step_second<T: Unit>(&mut self, buffer: &Buffer<T>, model: &mut [T]) -> Result<(), Trouble> {
        let step = self.step();
        self.to.step(buffer, 0, model.len(), step)?;
        step_model(model, step);
        Ok(())
    }

    /// Reports the next step. Frequent reports keep a slow device from looking hung.
    fn stage(&mut self, bytes: usize, what: &str) {
        (self.tell)(&format!("sharing {bytes} bytes: {what}"));
    }

    /// Runs a kernel on each side, ordered by onebuf alone.
    fn step_both<T: Unit>(
        &mut self,
        buffer: &Buffer<T>,
        model: &mut [T],
        first: usize,
        n: usize,
    ) -> Result<(), Trouble> {
        let steps = [self.step(), self.step()];
        for (side, step) in [&self.from, &self.to].into_iter().zip(steps) {
            side.step(buffer, first, n, step)?;
            step_model(&mut model[first..first + n], step);
        }
        Ok(())
    }

    fn share_two(&mut self) -> Result<(), Trouble> {
        let elements = MIB.min(self.large()) / 4;
        let buffers = [self.shared::<u32>(elements)?, self.shared::<u32>(elements)?];
        let mut models = [self.random(elements), self.random(elements)];
        for (buffer, model) in buffers.iter().zip(&models) {
            let knows = buffer.transfers_on(&self.to.queue);
            write_from(if knows { &self.to } else { &self.from }, buffer, model)?;
        }
        for _ in 0..2 {
            for (buffer, model) in buffers.iter().zip(&mut models) {
                self.step_both(buffer, model, 0, elements)?;
            }
        }
        let mut both = buffers.iter().zip(&models);
        both.try_for_each(|(buffer, model)| {
            check_from(&self.from, buffer, model, "read by the first")
        })
    }

    fn share_often(&mut self) -> Result<(), Trouble> {
        let elements = 16 * PAGE / 4;
        let buffer = self.shared::<u32>(elements)?;
        let mut model = self.random(elements);
        write_from(&self.from, &buffer, &model)?;
        for _ in 0..ROUNDS {
            self.step_both(&buffer, &mut model, 0, elements)?;
        }
        self.look(&buffer, &mut model, "read by the second")
    }

    /// Runs the same work on two separate buffers. The check must find differences on every page.
    fn control(&mut self) -> Result<(), Trouble> {
        (self.tell)("making sure that the check can fail");
        let elements = 16 * PAGE / 4;
        // In each device's plainest memory kind. Its other kinds are not tested here.
        let own = |side: &Side| {
            let builder = self.hub.buffer::<u32>(elements).shared_with([&side.device]);
            let plainest = side.device.info().caps.memory_kinds.iter().copied().max();
            let builder = builder.allocate_on(&side.device);
            let builder = plainest.into_iter().fold(builder, BufferBuilder::memory_kind);
            builder.build()
        };
        let buffers = [own(&self.from)?, own(&self.to)?];
        let mut model = self.random::<u32>(elements);
        for (side, buffer) in [&self.from, &self.to].into_iter().zip(&buffers) {
            write_from(side, buffer, &model)?;
        }
        let step = self.step();
        self.from.step(&buffers[0], 0, elements, step)?;
        step_model(&mut model, step);
        check_from(&self.from, &buffers[0], &model, "a device's own buffer")?;
        let seen = read_from(&self.to, &buffers[1])?;
        let pages = seen.chunks(PAGE / 4).zip(model.chunks(PAGE / 4));
        match pages.filter(|(seen, model)| seen == model).count() {
            0 => Ok(()),
            same => Err(Trouble::Failed(format!(
                "the experiment is broken: {same} pages of two separate buffers agree"
            ))),
        }
    }

    /// Step parameters: an odd, therefore invertible, multiplier and an addend.
    pub(super) fn step(&mut self) -> Step {
        Step { mul: self.next() | 1, add: self.next() }
    }

    fn random<T: Unit>(&mut self, elements: usize) -> Vec<T> {
        let seed = self.next();
        (0..elements as u32).map(|i| T::from_bits(mix(seed ^ mix(i)))).collect()
    }

    fn next(&mut self) -> u32 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 32) as u32
    }
}

/// The largest buffer that a device can allocate.
fn limit(side: &Side) -> u64 {
    side.device.info().caps.max_alloc_bytes
}

pub(super) fn write_from<T: Unit>(
    side: &Side,
    buffer: &Buffer<T>,
    model: &[T],
) -> Result<(), Trouble> {
    Ok(buffer.write_through(&side.queue, model)?)
}

fn read_from<T: Unit>(side: &Side, buffer: &Buffer<T>) -> Result<Vec<T>, Trouble> {
    Ok(buffer.read_through(&side.queue)?)
}

/// Reads everything through one side's own API and compares every element.
pub(super) fn check_from<T: Unit>(
    side: &Side,
    buffer: &Buffer<T>,
    model: &[T],
    when: &str,
) -> Result<(), Trouble> {
    // In pieces that stay in the processor's cache.
    let piece = CHECK_BYTES / size_of::<T>();
    let mut seen = vec![T::from_bits(0); piece.min(model.len())];
    for (at, model) in model.chunks(piece).enumerate() {
        let seen = &mut seen[..model.len()];
        buffer.read_through_at(&side.queue, at * piece, seen)?;
        if let Some(text) = differing_pages(seen, model, at * CHECK_BYTES / PAGE) {
            return Err(Trouble::Failed(format!("{when}: {text}")));
        }
    }
    Ok(())
}

/// Describes which pages of a piece differ. The piece begins with page `before` of the buffer.
fn differing_pages<T: Unit>(seen: &[T], model: &[T], before: usize) -> Option<String> {
    if seen == model {
        return None;
    }
    let per_page = PAGE / size_of::<T>();
    let pages = seen.chunks(per_page).zip(model.chunks(per_page));
    let bad: Vec<usize> =
        pages.enumerate().filter(|(_, (a, b))| a != b).map(|(page, _)| page).collect();
    let first = *bad.first()?;
    let at = (first * per_page..seen.len()).find(|&i| seen[i] != model[i])?;
    let total = before + seen.len().div_ceil(per_page);
    Some(format!(
        "page {} of {total} differs ({} in all): byte {} is {:#x} instead of {:#x}",
        before + first,
        bad.len(),
        before * PAGE + at * size_of::<T>(),
        seen[at],
        model[at]
    ))
}

fn mix(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// New data each time, so that stale data from an earlier run cannot match.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |t| t.as_nanos() as u64) ^ u64::from(std::process::id()) << 40
}
