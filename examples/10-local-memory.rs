//! 10. Work-group local memory: declared in the kernel, or passed as an argument.
//!
//! `cargo run -p onebuf-examples --example 10-local-memory`
//!
//! A work-group copies its part of a buffer into local memory, works on it there and copies it out. On a
//! DSP that is on-chip instead of external memory.

use onebuf::{Device, Each, Grid, Local, Out, Result, prelude::*};

const GROUP: usize = 64;
const N: usize = 64 * GROUP;

/// Both kernels reverse the elements of each group.
const TEXT: &str = "
#define GROUP 64
kernel void turn_static(global const uint *from, global uint *to) {
    local uint tile[GROUP];                                  // its size is known to the compiler
    size_t i = get_local_id(0), first = get_group_id(0) * GROUP;
    event_t copied = async_work_group_copy(tile, from + first, (size_t)GROUP, (event_t)0);
    wait_group_events(1, &copied);
    to[first + i] = tile[GROUP - 1 - i];
}
kernel void turn_dynamic(global const uint *from, global uint *to, local uint *tile) {
    size_t i = get_local_id(0), n = get_local_size(0), first = get_group_id(0) * n;
    event_t copied = async_work_group_copy(tile, from + first, n, (event_t)0);
    wait_group_events(1, &copied);
    to[first + i] = tile[n - 1 - i];
}";

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    // The host's kernels are Rust functions and need no local memory. Clover's compiler (Mesa 22.3) crashes
    // on `async_work_group_copy`.
    let able =
        |device: &Device| device.info().api.0 == "opencl" && device.info().platform != "Clover";
    let Some(device) = hub.devices().into_iter().find(able) else {
        println!("local memory needs an OpenCL device, and there is none here");
        return Ok(());
    };
    let has = device.info().caps.local_memory_bytes;
    println!("on {device}: {has} bytes of local memory per group");

    let numbers: Vec<u32> = (0..N as u32).collect();
    let from = hub.buffer_from(&numbers).shared_with([&device]).build()?;
    let to = hub.buffer::<u32>(N).shared_with([&device]).build()?;
    let turned: Vec<u32> = numbers.chunks(GROUP).flat_map(|g| g.iter().rev().copied()).collect();
    let grid = Grid::from([N]).local([GROUP]);

    // SAFETY: groups have GROUP items here, and each item has an element in both buffers and in the tile.
    let turn = unsafe { device.kernel::<(Each<&u32>, Each<Out<u32>>)>(TEXT, "turn_static")? };
    turn.launch(grid, (&from, &to))?;
    assert_eq!(to.to_vec()?, turned);

    // Here the size is an argument: `Local::of` sets the number of elements for each group. `Each` checks that it is not
    // smaller than the group.
    to.fill(0)?;
    type Dynamic = (Each<&'static u32>, Each<Out<u32>>, Each<Local<u32>>);
    // SAFETY: each item has an element in both buffers and in the tile.
    let turn = unsafe { device.kernel::<Dynamic>(TEXT, "turn_dynamic")? };
    turn.launch(grid, (&from, &to, Local::of(GROUP)))?;
    assert_eq!(to.to_vec()?, turned);
    println!("the local memory of {} groups turned {N} numbers round, twice", N / GROUP);

    // A request for more local memory than the device has is refused before the driver is called.
    let much = (&from, &to, Local::of(has as usize / 4 + 1));
    println!("refused: {}", turn.launch(grid, much).expect_err("too much"));
    Ok(())
}
