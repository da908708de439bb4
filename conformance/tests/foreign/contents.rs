//! What one side writes the other reads, on every page, for every use of a buffer.

use super::{alone, context, hub, owners, queue, twin, wrap, wrapped};
use onebuf::{Access, Buffer, CopyPolicy, Error, Hub, Queue, prelude::*};
use onebuf_conformance::{
    Side, Step, assert_same,
    class_a::{ClassA, Own},
    pages_apart, random_words, step_model,
};
use onebuf_sys::opencl::{
    ClMem,
    consts::{CL_MEM_ALLOC_HOST_PTR, CL_MEM_COPY_HOST_PTR, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR},
};

/// Seven pages and a part of one.
const N: usize = 7 * 1024 + 100;

/// Class A and onebuf on one memory, and its model.
struct Both<'t> {
    a: &'t ClassA,
    mem: &'t Own<ClMem>,
    buffer: &'t Buffer<u32>,
    side: &'t Side,
    /// Class A's queue, wrapped.
    owners: &'t Queue,
    model: Vec<u32>,
    what: String,
}

impl Both<'_> {
    /// Our work is done: class A checks with its own calls.
    fn seen_by_a(&self, by: &str) {
        self.buffer.hand_to(self.owners).unwrap();
        let seen = self.a.read(&self.a.queue, self.mem, N);
        assert_same(&seen, &self.model, &format!("{}: {by}, seen by class A", self.what));
    }

    /// Class A changes everything with a kernel, without waiting; then reports the fence.
    fn changed_by_a(&mut self, n: u32) {
        self.buffer.hand_to(self.owners).unwrap();
        let before = self.model.clone();
        self.a.step(&self.a.queue, self.mem, N, Step::nth(n), &[]);
        step_model(&mut self.model, Step::nth(n));
        assert_eq!(pages_apart(&before, &self.model).len(), 8, "every page changes");
        self.buffer.written_until(&self.owners.fence()).unwrap();
    }

    fn transfers(&mut self) {
        self.changed_by_a(1);
        assert_same(&self.buffer.to_vec().unwrap(), &self.model, &self.what);
        let words = random_words(11, 1500);
        self.buffer.write_range(3000..4500, &words).unwrap();
        self.model[3000..4500].copy_from_slice(&words);
        self.seen_by_a("a write");
        self.changed_by_a(2);
        self.buffer.fill_range(100..5000, 77).unwrap();
        self.model[100..5000].fill(77);
        self.seen_by_a("a fill");
        self.changed_by_a(3);
        let back = self.buffer.read_async(.., vec![0; N]).unwrap().wait(super::SECONDS).unwrap();
        assert_same(&back, &self.model, &self.what);
        let words = random_words(12, N);
        self.buffer.write_async(.., words.clone()).unwrap().wait(super::SECONDS).unwrap();
        self.model = words;
        self.seen_by_a("a write in the background");
    }

    fn maps(&mut self) {
        self.changed_by_a(4);
        assert_same(&self.buffer.map().unwrap(), &self.model, &self.what);
        let mut map = self.buffer.map_mut().unwrap();
        for (page, word) in map.iter_mut().step_by(1024).enumerate() {
            *word = page as u32;
        }
        map.unmap().unwrap();
        self.model.iter_mut().step_by(1024).enumerate().for_each(|(page, x)| *x = page as u32);
        self.seen_by_a("a map");
        self.buffer.batch().write(5, &[6]).unwrap().write(7000, &[8, 9]).unwrap().flush().unwrap();
        self.model[5] = 6;
        self.model[7000..7002].copy_from_slice(&[8, 9]);
        self.seen_by_a("a batch");
    }

    fn kernels(&mut self) {
        self.changed_by_a(5);
        for n in 20..23 {
            self.side.step(self.buffer, Step::nth(n)).unwrap();
            step_model(&mut self.model, Step::nth(n));
        }
        self.seen_by_a("kernels");
        self.changed_by_a(6);
        assert_same(&self.side.look(self.buffer).unwrap(), &self.model, &self.what);
        let half = 4 * 1024;
        let region = self.buffer.sub_buffer(half.., Access::ReadWrite).unwrap();
        let view = region.write_on(&self.side.queue).unwrap();
        self.side.step_view(view, N - half, Step::nth(24)).unwrap();
        step_model(&mut self.model[half..], Step::nth(24));
        drop(region);
        self.seen_by_a("a region");
    }

    fn copies(&mut self, hub: &Hub) {
        self.changed_by_a(7);
        let other = hub.buffer::<u32>(N).shared_with([&self.side.device]).build().unwrap();
        other.copy_from(0, self.buffer, ..).unwrap();
        assert_same(&other.to_vec().unwrap(), &self.model, &self.what);
        self.side.step(&other, Step::nth(30)).unwrap();
        step_model(&mut self.model, Step::nth(30));
        self.buffer.copy_from(0, &other, ..).unwrap();
        self.seen_by_a("a copy");
    }
}

#[test]
fn both_sides_see_the_same_bytes() {
    let _alone = alone("contents");
    for a in owners() {
        let hub = hub();
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        let owners = queue(&hub, &a.queue);
        for flags in [CL_MEM_COPY_HOST_PTR, CL_MEM_USE_HOST_PTR, CL_MEM_ALLOC_HOST_PTR] {
            let model = random_words(flags, N);
            let mut pages = vec![0u32; N + 1024];
            let start = pages.as_ptr().align_offset(4096);
            pages[start..start + N].copy_from_slice(&model);
            let host = match flags {
                CL_MEM_ALLOC_HOST_PTR => std::ptr::null_mut(),
                _ => pages[start..].as_mut_ptr().cast(),
            };
            // SAFETY: N words, alive until after the buffer.
            let mem = unsafe { a.buffer(CL_MEM_READ_WRITE | flags, 4 * N, host) };
            if flags == CL_MEM_ALLOC_HOST_PTR {
                a.write(&a.queue, &mem, &model);
            }
            let (buffer, what) = (wrapped(&hub, &mem), format!("{} {flags:#x}", a.platform));
            let (side, owners) = (&side, &owners);
            let (a, mem, buffer) = (&a, &mem, &buffer);
            let mut both = Both { a, mem, buffer, side, owners, model, what };
            both.transfers();
            both.maps();
            both.kernels();
            both.copies(&hub);
        }
    }
}

#[test]
fn work_in_the_owners_context_copies_nothing() {
    let _alone = alone("the ledger");
    for a in owners() {
        let hub = hub();
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        let mut model = random_words(8, N);
        let mem = a.words(&model);
        let owners = queue(&hub, &a.queue);
        let buffer = wrap(&hub, &mem).copies(CopyPolicy::Forbid).build().unwrap();
        for n in 0..4 {
            side.step(&buffer, Step::nth(n)).unwrap();
            buffer.hand_to(&owners).unwrap();
            a.step(&a.queue, &mem, N, Step::nth(n + 10), &[]);
            buffer.written_until(&owners.fence()).unwrap();
            step_model(&mut model, Step::nth(n));
            step_model(&mut model, Step::nth(n + 10));
        }
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
        assert_eq!(hub.ledger().implied_bytes(), 0, "{}", a.platform);
        assert_eq!(hub.ledger().asked_bytes(), 0, "{}", a.platform);
        drop(buffer);
        // The control: a device of another context needs copies, and they are counted.
        let other = Side::open(&twin(&hub, &a)).unwrap();
        let staged = wrap(&hub, &mem).shared_with([&other.device]);
        let staged = staged.route(onebuf::RouteKind::Staged).build().unwrap();
        other.step(&staged, Step::nth(40)).unwrap();
        step_model(&mut model, Step::nth(40));
        assert_same(&other.look(&staged).unwrap(), &model, &a.platform);
        assert!(hub.ledger().implied_bytes() >= 4 * N as u64, "{}: the control", a.platform);
        drop(staged);
        // When the wrap is dropped, the newest contents are in the owner's memory.
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
    }
}

#[test]
fn every_route_to_every_other_device() {
    let _alone = alone("routes");
    for a in owners() {
        let hub = hub();
        let home = Side::open(&context(&hub, &a).device()).unwrap();
        let mut tried = 0;
        for device in hub.devices() {
            if device.index() == home.device.index() {
                continue;
            }
            let other = Side::open(&device).unwrap();
            for route in hub.topology().between(home.device.index(), device.index()) {
                let what = format!("{} -> {device} by {}", a.platform, route.kind);
                let mut model = random_words(9, N);
                let mem = a.words(&model);
                let builder = wrap(&hub, &mem).shared_with([&device]);
                let buffer = match builder.route(route.kind).trust_declared(true).build() {
                    // The owner chose the memory kind, and the driver its address.
                    Err(Error::Unsupported { needs, .. })
                        if needs.contains("works only with") || needs.contains("align") =>
                    {
                        continue;
                    }
                    other => other.unwrap_or_else(|e| panic!("{what}: {e}")),
                };
                for (n, side) in (0..).zip([&other, &home, &other, &other, &home, &other]) {
                    side.step(&buffer, Step::nth(n)).unwrap_or_else(|e| panic!("{what}: {e}"));
                    step_model(&mut model, Step::nth(n));
                }
                let owners = queue(&hub, &a.queue);
                buffer.hand_to(&owners).unwrap();
                assert_same(&a.read(&a.queue, &mem, N), &model, &what);
                a.step(&a.queue, &mem, N, Step::nth(50), &[]);
                step_model(&mut model, Step::nth(50));
                buffer.written_until(&owners.fence()).unwrap();
                assert_same(&other.look(&buffer).unwrap(), &model, &what);
                other.step(&buffer, Step::nth(51)).unwrap();
                step_model(&mut model, Step::nth(51));
                drop(buffer);
                assert_same(&a.read(&a.queue, &mem, N), &model, &what);
                tried += 1;
            }
        }
        assert!(tried >= hub.devices().len() - 2, "{}: {tried} routes", a.platform);
    }
}

#[test]
fn odd_sizes() {
    let _alone = alone("odd sizes");
    for a in owners() {
        let hub = hub();
        let (device, owners) = (context(&hub, &a).device(), queue(&hub, &a.queue));
        for bytes in [1, 3, 63, 4095, 4097, (2 << 20) + 5] {
            let what = format!("{}: {bytes} bytes", a.platform);
            let model: Vec<u8> =
                random_words(bytes as u64, bytes).iter().map(|w| *w as u8).collect();
            // SAFETY: no host pointer; class A uses the buffer only as written here.
            let mem = unsafe { a.buffer(CL_MEM_READ_WRITE, bytes, std::ptr::null_mut()) };
            // SAFETY: as above.
            let builder = || unsafe { hub.wrap_buffer::<u8>(mem.raw()) };
            let wide = builder().shared_with([&hub.host()]).build().unwrap();
            assert_eq!(wide.len(), bytes);
            wide.write(&model).unwrap();
            assert_same(&builder().build().unwrap().to_vec().unwrap(), &model, &what);
            let copy = hub.buffer::<u8>(bytes).shared_with([&device]).build().unwrap();
            copy.copy_from(0, &wide, ..).unwrap();
            assert_same(&copy.map().unwrap(), &model, &what);
            wide.fill(9).unwrap();
            wide.hand_to(&owners).unwrap();
            if bytes >= 4 {
                let words = a.read(&a.queue, &mem, bytes / 4);
                assert!(words.iter().all(|word| *word == 0x0909_0909), "{what}");
            }
            assert!(wide.map().unwrap().iter().all(|byte| *byte == 9), "{what}");
        }
    }
}
