//! Buffers and regions as arguments of a launch, the default queue, and kernels with typed parameters.

use crate::{GROUP, Side, Step, Trial, assert_same, kernels, step_model, two_texts};
use onebuf::{
    Access, Arg, Buffer, Each, Error, Grid, Kernel, Out, Result, Signature, Source, Value, args,
    prelude::*,
};

/// A half of them is a multiple of every device's alignment.
const N: usize = 32 * GROUP;

/// The arguments of a step over the whole buffer.
fn arguments(buffer: &Buffer<u32>, step: Step) -> [Arg<'_>; 5] {
    args![buffer, 0u32, buffer.len() as u32, step.mul, step.add]
}

fn grid() -> Grid {
    Grid::from([N]).local([GROUP])
}

pub fn buffers_and_regions_are_arguments(t: &Trial<'_>) {
    t.each_device(|side| {
        let (id, kernel, other) = (side.device.id(), side.kernel(), side.device.queue().unwrap());
        let mut model: Vec<u32> = (0..N as u32).collect();
        let buffer = t.hub().buffer_from(&model).shared_with([&side.device]).build().unwrap();
        for round in 0..4 {
            let steps = [1, 2, 3].map(|n| Step::nth(10 * round + n));
            kernel.launch(grid(), arguments(&buffer, steps[0])).unwrap();
            other.launch(kernel, grid(), arguments(&buffer, steps[1])).unwrap();
            // The view was released: another queue takes one at once.
            drop(buffer.write_on(&side.queue).unwrap());
            let all = arguments(&buffer, steps[2]);
            let fence = other.launch_fenced(kernel, grid(), &all).unwrap();
            drop(buffer.write_on(&side.queue).unwrap());
            drop(all);
            fence.wait(t.hub().timeout()).unwrap();
            steps.into_iter().for_each(|step| step_model(&mut model, step));
        }
        let region = buffer.sub_buffer(N / 2.., Access::ReadWrite).unwrap();
        let (step, half) = (Step::nth(7), (N / 2) as u32);
        kernel.launch(grid(), args![&region, 0u32, half, step.mul, step.add]).unwrap();
        step_model(&mut model[N / 2..], step);
        assert_same(&buffer.to_vec().unwrap(), &model, id);
    });
}

fn copy(side: &Side) -> Result<Kernel> {
    let copy = kernels(
        "kernel void copy(global const uint *from, global uint *to) {
            to[get_global_id(0)] = from[get_global_id(0)];
        }",
    );
    let copy: Source = copy.with_native("copy", |args| {
        let (from, to) = args.pair::<u32, u32>(0, 1)?;
        to.copy_from_slice(from);
        Ok(())
    });
    let signature = Signature::new().buffer::<u32>(Access::Read).buffer::<u32>(Access::Write);
    // SAFETY: work-item i touches element i of each, and every launch here has N items and N elements.
    unsafe { side.device.program(&copy)?.kernel("copy", signature) }
}

pub fn a_launch_takes_the_view_that_its_parameter_declares(t: &Trial<'_>) {
    t.each_device(|side| {
        let (id, copy) = (side.device.id(), copy(side).unwrap());
        let buffer = |word: u32| {
            t.hub().buffer_from(vec![word; N]).shared_with([&side.device]).build().unwrap()
        };
        let (from, to) = (buffer(3), buffer(4));
        // Readers share: a read guard of another queue is no hindrance for `from`, but is one for `to`.
        let reads = from.read_on(&side.queue).unwrap();
        copy.launch([N], args![&from, &to]).unwrap();
        let busy = copy.launch([N], args![&to, &from]);
        assert!(matches!(busy, Err(Error::Busy { .. })), "{id}: {busy:?}");
        drop(reads);
        // The refused launch has left no view behind.
        copy.launch([N], args![&to, &from]).unwrap();
        // One buffer as both is refused: no view to write beside one to read.
        let both = copy.launch([N], args![&from, &from]);
        assert!(matches!(both, Err(Error::Busy { .. })), "{id}: {both:?}");
        assert_eq!(
            (from.to_vec().unwrap(), to.to_vec().unwrap()),
            (vec![3; N], vec![3; N]),
            "{id}"
        );
        // Views and buffers can be mixed.
        let queue = side.device.default_queue().unwrap();
        let mut view = to.write_on(&queue).unwrap();
        queue.launch(&copy, [N], args![&from, &mut view]).unwrap();
        queue.launch(&copy, [N], args![&from, view]).unwrap();
        to.fill(0).unwrap();
    });
}

pub fn a_buffer_that_does_not_fit_is_refused_by_name(t: &Trial<'_>) {
    t.each_device(|side| {
        let (copy, hub) = (copy(side).unwrap(), t.hub());
        let words = hub.buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        let floats = hub.buffer::<f32>(N).shared_with([&side.device]).build().unwrap();
        let constant = hub.buffer::<u32>(N).shared_with([&side.device]).access(Access::Read);
        let constant = constant.build().unwrap();
        let region = words.sub_buffer(.., Access::Write).unwrap();
        let refusals = [
            (args![&words, &floats], "argument 1 of kernel `copy`: a buffer of f32 where"),
            (args![&words, &constant], "argument 1 of kernel `copy`: a buffer made for read where"),
            (args![&region, &words], "argument 0 of kernel `copy`: a buffer made for write where"),
            (args![&words, 1u32], "argument 1 of kernel `copy`: a value of type u32"),
        ];
        for (wrong, why) in refusals {
            match copy.launch([N], wrong) {
                Err(Error::InvalidArgument(said)) if said.starts_with(why) => {}
                other => panic!("{}: {other:?} is not: {why}", side.device),
            }
        }
        let short = copy.launch([N], args![&words]);
        assert!(matches!(short, Err(Error::InvalidArgument(_))), "{short:?}");
        // Nothing stays taken.
        words.fill(1).unwrap();
        drop(words.write_on(&side.queue).unwrap());
    });
}

pub fn a_device_has_one_default_queue(t: &Trial<'_>) {
    t.each_device(|side| {
        let id = side.device.id();
        let open = || side.device.default_queue().unwrap();
        let (first, again) = (open(), t.hub().device(id).unwrap().default_queue().unwrap());
        assert_eq!(first.raw(), again.raw(), "{id}");
        assert_eq!(first.spec().order, onebuf::QueueOrder::InOrder, "{id}");
        // A view belongs to one queue: a launch by the other handle accepts it, one on another queue does not.
        let buffer = t.hub().buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        let step = Step::nth(1);
        let arguments =
            |queue| args![buffer.write_on(queue).unwrap(), 0u32, N as u32, step.mul, step.add];
        again.launch(side.kernel(), grid(), arguments(&first)).unwrap();
        side.kernel().launch(grid(), arguments(&first)).unwrap();
        let refused = side.queue.launch(side.kernel(), grid(), arguments(&first));
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{id}: {refused:?}");
        let mut model = vec![0; N];
        (0..2).for_each(|_| step_model(&mut model, step));
        assert_same(&buffer.to_vec().unwrap(), &model, id);
    });
}

/// `to` gets what it had, times `by`, plus `from` and `more`; `was` gets what it had.
fn weigh() -> Source {
    let weigh = "kernel void weigh(global const uint *from, global uint *to, global uint *was, uint by, uint more) {
        size_t i = get_global_id(0);
        was[i] = to[i];
        to[i] = to[i] * by + from[i] + more;
    }";
    kernels(weigh).with_native("weigh", |args| {
        let (by, more) = (args.value::<u32>(3)?, args.value::<u32>(4)?);
        args.pair::<u32, u32>(1, 2).map(|(to, was)| was.copy_from_slice(to))?;
        let (from, to) = args.pair::<u32, u32>(0, 1)?;
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *to * by + from + more);
        Ok(())
    })
}

pub fn typed_kernels_take_what_their_types_say(t: &Trial<'_>) {
    type Weigh = (Each<&'static u32>, Each<&'static mut u32>, Each<Out<u32>>, u32, Value<u32>);
    t.each_device(|side| {
        // SAFETY: work-item i touches element i of each.
        let weigh = unsafe { side.device.kernel::<Weigh>(weigh(), "weigh").unwrap() };
        let (id, queue) = (side.device.id(), &side.queue);
        let buffer = |word: u32| {
            t.hub().buffer_from(vec![word; N]).shared_with([&side.device]).build().unwrap()
        };
        let (from, to, was) = (buffer(3), buffer(4), buffer(0));
        weigh.launch([N], (&from, &to, &was, 10, Value(5))).unwrap();
        assert_eq!(
            (to.to_vec().unwrap(), was.to_vec().unwrap()),
            (vec![48; N], vec![4; N]),
            "{id}"
        );
        // Views, and a region.
        let region = was.sub_buffer(.., Access::Write).unwrap();
        let (reads, mut writes) = (from.read_on(queue).unwrap(), to.write_on(queue).unwrap());
        let fence =
            weigh.launch_fenced(queue, [N], (&reads, &mut writes, &region, 1, Value(0))).unwrap();
        fence.wait(t.hub().timeout()).unwrap();
        weigh.launch_on(queue, [N], (reads, writes, &region, 2, Value(0))).unwrap();
        assert_eq!(
            (to.to_vec().unwrap(), was.to_vec().unwrap()),
            (vec![105; N], vec![51; N]),
            "{id}"
        );
        // As a plain kernel, whose arguments are checked when it is launched.
        queue.launch(&weigh, [N], args![&from, &to, &was, 0u32, 0u32]).unwrap();
        assert_eq!(to.to_vec().unwrap(), [3; N], "{id}");
        let wrong = queue.launch(&weigh, [N], args![&from, &to, &was, 0f32, 0u32]);
        assert!(matches!(wrong, Err(Error::InvalidArgument(_))), "{id}: {wrong:?}");
    });
}

pub fn more_work_items_than_elements_are_refused(t: &Trial<'_>) {
    t.each_device(|side| {
        let signature = Signature::new().each::<u32>(Access::Read).each::<u32>(Access::ReadWrite);
        let signature = signature.buffer::<u32>(Access::Write).value::<u32>().value::<u32>();
        let program = side.device.program(&weigh()).unwrap();
        // SAFETY: work-item i touches element i of each; the third is as long as the second here.
        let kernel = unsafe { program.kernel("weigh", signature.clone()).unwrap() };
        // SAFETY: as above.
        let offset = unsafe { program.kernel("weigh", signature.offsets()).unwrap() };
        let buffer =
            |n: usize| t.hub().buffer::<u32>(n).shared_with([&side.device]).build().unwrap();
        let (short, long) = (buffer(GROUP), buffer(2 * GROUP));
        let cases = [
            (&kernel, Grid::from([GROUP]), &short, &long, None),
            (&kernel, Grid::from([2 * GROUP]), &short, &long, Some(0)),
            (&kernel, Grid::from([2 * GROUP]), &long, &short, Some(1)),
            (&kernel, Grid::from([GROUP, 2]), &long, &short, Some(1)),
            (&kernel, Grid::from([2, 1, GROUP]), &short, &long, Some(0)),
            (&kernel, Grid::from([usize::MAX, 3]), &long, &long, Some(0)),
            (&offset, Grid::from([GROUP]).offset([GROUP]), &short, &long, Some(0)),
            (&offset, Grid::from([GROUP]).offset([1]), &long, &short, Some(1)),
        ];
        for (kernel, grid, from, to, refused) in cases {
            let was = buffer(2 * GROUP);
            let launched = kernel.launch(grid, args![from, to, &was, 1u32, 1u32]);
            match (launched, refused) {
                (Ok(()), None) => {}
                (Err(Error::InvalidArgument(why)), Some(index)) => {
                    let about = format!("kernel `weigh` refuses this launch: argument {index} has");
                    assert!(why.starts_with(&about), "{}: {why}", side.device);
                }
                (other, _) => panic!("{} {grid:?}: {other:?}", side.device),
            }
        }
    });
}

pub fn a_groups_memory_has_an_element_for_each_of_its_items(t: &Trial<'_>) {
    t.each_device(|side| {
        let source = two_texts("kernel void none(local uint *x) {}", "kernel void none() {}");
        let program = side.device.program(&source.with_native("none", |_| Ok(()))).unwrap();
        let signature = || Signature::new().each_local::<u32>();
        // SAFETY: nothing is launched: every launch below is refused for the group's size.
        let kernel = unsafe { program.kernel("none", signature()).unwrap() };
        let grid = Grid::from([4 * GROUP]);
        let cases = [
            (grid, GROUP, "give the group's size"),
            (grid.local([GROUP]), GROUP - 1, "there are 64 work-items in a group"),
            (
                Grid::from([GROUP, 4]).local([GROUP, 2]),
                GROUP,
                "there are 128 work-items in a group",
            ),
        ];
        for (grid, count, why) in cases {
            match kernel.launch(grid, [Arg::local::<u32>(count)]) {
                Err(Error::InvalidArgument(said)) if said.contains(why) => {}
                other => panic!("{}: {other:?} is not: {why}", side.device),
            }
        }
    });
}
