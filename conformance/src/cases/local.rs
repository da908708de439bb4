//! Work-group local memory, declared in the kernel or passed with the launch, filled by the group.

use crate::{Ending, GROUP, Side, Trial, assert_same, random_words, two_texts};
use onebuf::{Access, Arg, Error, Grid, Kernel, Result, Signature, args};

const N: usize = 40 * GROUP;

/// Each group copies its elements into local memory and writes them out reversed.
const TEXT: &str = "
kernel void turn_static(global const uint *from, global uint *to) {
    local uint tile[64];
    size_t i = get_local_id(0), first = get_group_id(0) * 64;
    event_t copied = async_work_group_copy(tile, from + first, (size_t)64, (event_t)0);
    wait_group_events(1, &copied);
    to[first + i] = tile[63 - i];
}
kernel void turn_dynamic(global const uint *from, global uint *to, local uint *tile) {
    size_t i = get_local_id(0), n = get_local_size(0), first = get_group_id(0) * n;
    event_t copied = async_work_group_copy(tile, from + first, n, (event_t)0);
    wait_group_events(1, &copied);
    to[first + i] = tile[n - 1 - i];
}
kernel void double_out(global const uint *from, global uint *to, local uint *tile) {
    size_t i = get_local_id(0), n = get_local_size(0), first = get_group_id(0) * n;
    tile[i] = from[first + i] * 2u;
    barrier(CLK_LOCAL_MEM_FENCE);
    event_t copied = async_work_group_copy(to + first, tile, n, (event_t)0);
    wait_group_events(1, &copied);
}";

/// The kernels for CUDA and HIP, where the launch's local memory is not a parameter and the group copies by hand.
const LIKE_CUDA: &str = "
kernel void turn_static(const uint *from, uint *to) {
    __shared__ uint tile[64];
    size_t i = get_local_id(0), first = get_group_id(0) * 64;
    tile[i] = from[first + i];
    __syncthreads();
    to[first + i] = tile[63 - i];
}
extern __shared__ uint given[];
kernel void turn_dynamic(const uint *from, uint *to) {
    size_t i = get_local_id(0), n = get_local_size(0), first = get_group_id(0) * n;
    given[i] = from[first + i];
    __syncthreads();
    to[first + i] = given[n - 1 - i];
}
kernel void double_out(const uint *from, uint *to) {
    size_t i = get_local_id(0), n = get_local_size(0), first = get_group_id(0) * n;
    given[n - 1 - i] = from[first + n - 1 - i] * 2u;
    __syncthreads();
    to[first + i] = given[i];
}";

fn kernel(side: &Side, name: &str, is_given: bool) -> Result<Kernel> {
    let signature = Signature::new().each::<u32>(Access::Read).each::<u32>(Access::Write);
    let signature = if is_given { signature.each_local::<u32>() } else { signature };
    // SAFETY: every launch here has groups of GROUP work-items, each with an element in both buffers and in the tile.
    unsafe { side.device.program(&two_texts(TEXT, LIKE_CUDA))?.kernel(name, signature) }
}

/// Runs a check on each device that has groups and whose compiler accepts the kernels above. Clover 22.3 aborts the
/// process at `async_work_group_copy`, by an assertion about opaque pointers.
fn each_grouped(t: &Trial<'_>, check: impl Fn(&Side)) {
    t.each_device(|side| {
        let info = side.device.info();
        if info.caps.local_memory_bytes == 0 {
            return Ending::not_applicable("the device has no group-local memory");
        }
        if info.platform == "Clover" {
            return Ending::Skipped("its compiler aborts on group copies".into());
        }
        check(side);
        Ending::Passed
    });
}

pub fn groups_copy_in_and_out_together(t: &Trial<'_>) {
    each_grouped(t, |side| {
        let id = side.device.id();
        let data = random_words(1, N);
        let turned: Vec<u32> =
            data.chunks(GROUP).flat_map(|group| group.iter().rev().copied()).collect();
        let doubled: Vec<u32> = data.iter().map(|x| x.wrapping_mul(2)).collect();
        assert_ne!(turned, data, "the control");
        let build = || t.hub().buffer::<u32>(N).shared_with([&side.device]);
        let (from, to) = (build().init(&data[..]).build().unwrap(), build().build().unwrap());
        let (queue, grid) = (&side.queue, Grid::from([N]).local([GROUP]));
        let cases = [
            ("turn_static", false, &turned),
            ("turn_dynamic", true, &turned),
            ("double_out", true, &doubled),
        ];
        for (name, is_given, model) in cases {
            let kernel = kernel(side, name, is_given).unwrap_or_else(|e| panic!("{id}: {e}"));
            to.fill(0).unwrap();
            let (from, to_view) = (from.read_on(queue).unwrap(), to.write_on(queue).unwrap());
            let launched = match is_given {
                true => queue.launch(&kernel, grid, args![from, to_view, Arg::local::<u32>(GROUP)]),
                false => queue.launch(&kernel, grid, args![from, to_view]),
            };
            launched.unwrap_or_else(|e| panic!("{id} {name}: {e}"));
            assert_same(&to.to_vec().unwrap(), model, &format!("{id} {name}"));
        }
    });
}

/// Whether a text contains this number, or it rounded up: CUDA's and HIP's local arguments start at aligned offsets.
fn names_about(text: &str, number: u64) -> bool {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    numbers.any(|found| (number..number + 64).contains(&found))
}

pub fn more_than_a_group_has_is_refused_with_the_numbers(t: &Trial<'_>) {
    each_grouped(t, |side| {
        let kernel = kernel(side, "turn_dynamic", true).unwrap();
        let build = || t.hub().buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        let (from, to) = (build(), build());
        let (queue, grid) = (&side.queue, Grid::from([N]).local([GROUP]));
        let has = side.device.info().caps.local_memory_bytes;
        let asked = has / 4 + 1;
        for count in [asked as usize, usize::MAX / 2] {
            let views = (from.read_on(queue).unwrap(), to.write_on(queue).unwrap());
            let refused =
                queue.launch(&kernel, grid, args![views.0, views.1, Arg::local::<u32>(count)]);
            let Err(Error::InvalidArgument(why)) = refused else { panic!("{side:?}: {refused:?}") };
            assert!(why.contains(&has.to_string()), "{why}");
            assert!(count > 1 << 40 || names_about(&why, 4 * asked), "{why}");
            assert!(why.contains("turn_dynamic") && why.contains("local memory"), "{why}");
        }
        // Nothing was started, and no guard is held.
        assert_same(&to.to_vec().unwrap(), &[0; N], side.device.id());
        drop(to.write_on(queue).unwrap());
    });
}
