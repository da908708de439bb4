//! Kernels and hand-overs under Oclgrind, which interprets them and reports violations of OpenCL's memory
//! rules: accesses out of bounds, races, uninitialised reads, use of mapped regions.
//!
//! It writes to its log, which must stay empty whatever this program's exit status is; see `./dev`.

use onebuf::{
    Access, Arg, Device, Error, Grid, Result, RouteKind, Signature, Source, SyncMethod, args,
};
use onebuf_conformance::{
    GROUP, Machine, Step, assert_same,
    class_a::{ClassA, Handed, visit},
    fresh, kinds, life, note, pairs, second_life, shared, step_model,
};
use std::time::Duration;

/// Each group copies its elements into local memory and writes them out reversed. Launches may have an offset.
const TURN: &str = "
kernel void turn(global uint *p, local uint *given) {
    local uint own[64];
    size_t i = get_local_id(0), n = get_local_size(0), first = get_global_id(0) - i;
    event_t copied = async_work_group_copy(own, p + first, n, (event_t)0);
    wait_group_events(1, &copied);
    given[i] = own[n - 1 - i];
    barrier(CLK_LOCAL_MEM_FENCE);
    p[first + i] = given[i];
}";

/// Both kinds of local memory, in regions, with launch offsets.
fn turn(device: &Device) -> Result<()> {
    const N: usize = 16 * GROUP;
    let signature = Signature::new().each::<u32>(Access::ReadWrite).each_local::<u32>().offsets();
    // SAFETY: each work-item has its own element in all three; groups have GROUP work-items here.
    let turn = unsafe { device.program(&Source::opencl_c(TURN))?.kernel("turn", signature)? };
    let mut model: Vec<u32> = (0..N as u32).collect();
    let buffer = device.hub().buffer::<u32>(N).shared_with([device]).build()?;
    buffer.write_async(.., model.clone())?.wait(Duration::from_secs(20))?;
    let region = buffer.sub_buffer(N / 2.., Access::ReadWrite)?;
    let queue = device.queue()?;
    let (first, count) = (2 * GROUP, 3 * GROUP);
    let grid = Grid::from([count]).local([GROUP]).offset([first]);
    let tile = || Arg::local::<u32>(GROUP);
    queue.launch(&turn, grid, args![buffer.write_on(&queue)?, tile()])?;
    queue.launch(&turn, grid, args![region.write_on(&queue)?, tile()])?;
    for start in [first, N / 2 + first] {
        model[start..start + count].chunks_mut(GROUP).for_each(<[u32]>::reverse);
    }
    assert_same(&buffer.to_vec()?, &model, "turned");
    Ok(())
}

#[test]
fn rules_are_kept() {
    if std::env::var_os("ONEBUF_UNDER_OCLGRIND").is_none() {
        return note("skip: oclgrind: not running under it; `./dev test` does");
    }
    let machine =
        Machine::open(onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default()));
    let device = machine.hub.device("Oclgrind").expect("Oclgrind's platform, and no other");
    assert_eq!(machine.hub.devices().len(), 2, "{:?}", machine.hub);
    life(&device).unwrap();
    second_life(&device, &fresh(&device).unwrap()).unwrap();
    turn(&device).unwrap();
    let a = ClassA::of("Oclgrind").expect("the same platform");
    visit(&machine.hub, &Handed::new(&a)).unwrap();
    for (from, to) in pairs(&machine.sides) {
        for kind in kinds(&machine.hub, from, to) {
            let Some(buffer) = shared(from, to, kind, SyncMethod::SameQueue, 700) else { continue };
            let pending = buffer.write_async(.., vec![5; 700]);
            let mut model = pending.unwrap().wait(Duration::from_secs(20)).unwrap();
            for (n, side) in (0..).zip([from, to, to, from, to, from]) {
                side.step(&buffer, Step::nth(n)).unwrap();
                step_model(&mut model, Step::nth(n));
                // The host reads the contents while the device may still read them.
                let (_view, map) = (buffer.read_on(&side.queue).unwrap(), buffer.map());
                match map {
                    Ok(map) => assert_same(&map, &model, &format!("{kind}")),
                    Err(Error::Unsupported { .. }) => assert_eq!(kind, RouteKind::Staged),
                    Err(error) => panic!("{kind}: {error}"),
                }
            }
        }
    }
}
