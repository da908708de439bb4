//! Buffers and regions as arguments of a launch, and the default queue.

use crate::{GROUP, Side, Step, Trial, assert_same, kernels, step_model};
use onebuf::{Access, Arg, Buffer, Error, Grid, Kernel, Result, Signature, Source, args};

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
