//! Pools of buffers that two devices share.

use onebuf::{
    BufferBuilder, CopyPolicy, Error, HubBuilder, MemoryKind, Pool, RouteKind, SyncMethod,
    doctor::Verdicts,
};
use onebuf_conformance::{
    Machine, Side, Step, assert_same, fakes, forged_zero_copy, kinds, machine, pairs, random_words,
    step_model,
};

const N: usize = 5_000;

fn request<'i>(from: &'i Side, to: &Side) -> BufferBuilder<'i, u32> {
    let request = from.device.hub().buffer::<u32>(N).shared_with([&from.device, &to.device]);
    request.allocate_on(&from.device)
}

/// Several uses, each with turns of both devices, checked.
fn lives(pool: &Pool, request: &BufferBuilder<'_, u32>, from: &Side, to: &Side, count: u64) {
    for life in 0..count {
        let mut model = random_words(life, N);
        let buffer = pool.get(&request.clone().init(&model[..])).unwrap();
        for (turn, side) in (0..).zip([to, from, to]) {
            side.step(&buffer, Step::nth(turn)).unwrap();
            step_model(&mut model, Step::nth(turn));
        }
        let what = format!("{} -> {}, life {life}", from.device, to.device);
        assert_same(&from.look(&buffer).unwrap(), &model, &what);
        assert_same(&buffer.to_vec().unwrap(), &model, &what);
    }
}

#[test]
fn every_route_of_every_pair() {
    let machine = machine();
    for (from, to) in pairs(&machine.sides) {
        for kind in kinds(&machine.hub, from, to) {
            let pool = Pool::new(&machine.hub);
            let request =
                request(from, to).route(kind).sync(SyncMethod::HostWait).trust_declared(true);
            match pool.prepare(&request, 1) {
                // The driver's mapping is not aligned as the other driver requires.
                Err(Error::Unsupported { needs, .. }) if needs.contains("align") => continue,
                prepared => prepared.unwrap(),
            }
            lives(&pool, &request, from, to, 3);
            let what = format!("{} -> {} {kind}", from.device, to.device);
            assert_eq!((pool.statistics().made, pool.statistics().hits), (1, 3), "{what}");
        }
    }
}

/// A hub with the same devices and a forged verdict that every route that is not staged is free of copies.
fn with_forged(machine: &Machine) -> Machine {
    let builder = fakes().into_iter().fold(onebuf::builder(), HubBuilder::fake);
    let verdicts = forged_zero_copy(&machine.hub);
    Machine::open(builder.without(["vulkan", "gl"]).verdicts(verdicts))
}

/// For devices on which that verdict is true: PoCL, and a fake device that uses host pages.
#[test]
fn forged_routes_imply_nothing_over_many_lives() {
    let base = machine();
    let machine = with_forged(&base);
    let host = machine.side("host");
    let honest = |side: &&Side| {
        let info = side.device.info();
        info.platform == "Portable Computing Language" || info.name == "sharing pages"
    };
    let implied = || machine.hub.ledger().implied_bytes();
    for side in machine.sides.iter().filter(honest) {
        let pool = Pool::new(&machine.hub);
        let request =
            request(host, side).copies(CopyPolicy::Forbid).memory_kind(MemoryKind::HostPages);
        lives(&pool, &request, host, side, 20);
        assert_eq!(implied(), 0, "{}: {}", side.device, machine.hub.ledger());
        assert_eq!(pool.statistics().made, 1, "{}", side.device);
    }
    // The negative control: the ledger counts staged copies.
    let side = machine.sides.iter().find(honest).unwrap();
    let pool = Pool::new(&machine.hub);
    lives(&pool, &request(host, side).route(RouteKind::Staged), host, side, 2);
    assert!(implied() >= 2 * 4 * N as u64, "{}", machine.hub.ledger());
}

/// A driver that copies at a hand-over copies the whole allocation, and the ledger counts that.
#[test]
fn hidden_copies_are_counted_whole() {
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Verdicts::default());
    let machine = Machine::open(builder.fake(fakes()[0].clone()));
    let (host, fake) = (machine.side("host"), machine.side("fake:0"));
    let pool = Pool::new(&machine.hub);
    let request = request(host, fake).route(RouteKind::HostPointer).trust_declared(true);
    let buffer = pool.get(&request).unwrap();
    let before = machine.hub.ledger().implied_bytes();
    // Taken from the fake device, and returned to it.
    host.step(&buffer, Step::nth(1)).unwrap();
    fake.step(&buffer, Step::nth(2)).unwrap();
    let class = onebuf::pool::SizeClasses::<onebuf::pool::Fresh>::class_of(N * 4) as u64;
    assert!(class > N as u64 * 4);
    let implied = machine.hub.ledger().implied_bytes() - before;
    assert_eq!(implied, 2 * class, "{}", machine.hub.ledger());
}
