//! clFFT and CLBlast on class A's memory, with onebuf in between: on the same bytes, in the same context and on
//! another platform.

use super::{
    SECONDS, alone, context, hub, owners, queue,
    raw::bits,
    reference::{FFT_ERROR, fft, product, relative_error, samples, small_numbers},
    turner::Turner,
};
use onebuf::{Buffer, Complex32, Device, Hub, bridge, prelude::*};
use onebuf_conformance::{
    absent, assert_same,
    class_a::{ClBlast, ClFft, ClassA, Own, assert_restored},
};
use onebuf_sys::opencl::{ClEvent, ClMem, ClQueue};

/// The most points for which every driver's compiler builds clFFT's kernels.
const POINTS: usize = 1 << 16;

/// A device of another platform than class A's, or the host if there is none.
fn elsewhere(hub: &Hub, a: &ClassA) -> Device {
    let other = |device: &Device| device.info().platform != a.platform;
    hub.select("opencl").into_iter().find(other).unwrap_or_else(|| hub.host())
}

/// Transforms, works on both devices, transforms back; class A does only the two transforms.
fn there_and_back(library: &ClFft, a: &ClassA, hub: &Hub) {
    const I: Complex32 = Complex32::new(0.0, 1.0);
    let x = samples(1, POINTS);
    let mem = a.words(bits(&x));
    let plan = library.plan(a, &a.queue, POINTS);
    let transformed = plan.forward(a.queue.get(), mem.get(), &[]);
    // SAFETY: class A holds a reference, and uses the memory again only after `hand_to`.
    let (fence, builder) =
        unsafe { (hub.wrap_event(transformed.raw()).unwrap(), hub.wrap_buffer(mem.raw())) };
    let second = elsewhere(hub, a);
    let spectrum: Buffer<Complex32> =
        builder.len(POINTS).after(&fence).shared_with([&second]).build().unwrap();
    let (here, there) = (Turner::on(&context(hub, a).device()), Turner::on(&second));
    let expected = fft(&x);
    here.turn(&spectrum, I);
    let once: Vec<_> = expected.iter().map(|x| x * I).collect();
    let error = relative_error(&spectrum.to_vec().unwrap(), &once);
    assert!(error < FFT_ERROR, "{}: {error} after the transform", a.platform);
    assert!(relative_error(&expected, &once) > 0.1, "the control");
    there.turn(&spectrum, I);
    here.turn(&spectrum, I);
    there.turn(&spectrum, I);
    here.turn(&spectrum, I);
    spectrum.hand_to(&queue(hub, &a.queue)).unwrap();
    plan.backward(a.queue.get(), mem.get(), &[]);
    let seen = a.read(&a.queue, &mem, 2 * POINTS);
    let turned: Vec<_> = x.iter().map(|x| x * I).collect();
    let error = relative_error(bytemuck::cast_slice(&seen), &turned);
    assert!(error < FFT_ERROR, "{}: {error} there and back by {second}", a.platform);
    assert!(relative_error(&x, &turned) > 0.1, "the control");
}

#[test]
fn clfft_to_a_second_platform_and_back() {
    let _alone = alone("clFFT");
    let Some(library) = ClFft::open() else { return };
    let owners = owners();
    if owners.len() < 2 {
        absent("a second platform", "the host stands in");
    }
    for a in &owners {
        let hub = hub();
        there_and_back(&library, a, &hub);
    }
}

/// As `there_and_back`, with separate memory on the second platform: both transfers are requested copies.
fn over_a_bridge(library: &ClFft, a: &ClassA, hub: &Hub) {
    let by = Complex32::new(0.0, -2.0);
    let x = samples(7, POINTS);
    let mem = a.words(bits(&x));
    let plan = library.plan(a, &a.queue, POINTS);
    let transformed = plan.forward(a.queue.get(), mem.get(), &[]);
    // SAFETY: class A holds a reference, and uses the memory again only after `hand_to`.
    let spectrum: Buffer<Complex32> = unsafe {
        let fence = hub.wrap_event(transformed.raw()).unwrap();
        hub.wrap_buffer(mem.raw()).after(&fence).build().unwrap()
    };
    let second = elsewhere(hub, a);
    let there = hub.buffer::<Complex32>(POINTS).shared_with([&second]).build().unwrap();
    let crossing = bridge::copy(&spectrum, .., &there, 0).unwrap();
    Turner::on(&second).turn(&there, by);
    let error = relative_error(
        &there.to_vec().unwrap(),
        &fft(&x).iter().map(|x| x * by).collect::<Vec<_>>(),
    );
    assert!(error < FFT_ERROR, "{}: {error} over the bridge ({crossing})", a.platform);
    bridge::copy(&there, .., &spectrum, 0).unwrap();
    spectrum.hand_to(&queue(hub, &a.queue)).unwrap();
    plan.backward(a.queue.get(), mem.get(), &[]);
    let seen = a.read(&a.queue, &mem, 2 * POINTS);
    let expected: Vec<_> = x.iter().map(|x| x * by).collect();
    let error = relative_error(bytemuck::cast_slice(&seen), &expected);
    assert!(error < FFT_ERROR, "{}: {error} over the bridge and back", a.platform);
    assert!(relative_error(&x, &expected) > 0.1, "the control");
}

#[test]
fn clfft_over_a_bridge_and_back() {
    let _alone = alone("clFFT over a bridge");
    let Some(library) = ClFft::open() else { return };
    for a in owners() {
        over_a_bridge(&library, &a, &hub());
    }
}

#[test]
fn clfft_on_our_queue_and_our_memory() {
    let _alone = alone("clFFT on ours");
    let Some(library) = ClFft::open() else { return };
    for a in owners() {
        let hub = hub();
        let device = context(&hub, &a).device();
        let x = samples(2, POINTS);
        // Memory that onebuf allocated in class A's context.
        let buffer = hub.buffer::<Complex32>(POINTS).shared_with([&device]).init(&x[..]);
        let buffer = buffer.memory_kind(onebuf::MemoryKind::Device).build().unwrap();
        let here = Turner::on(&device);
        // SAFETY: the queue is alive as long as `here`; `Own` releases the extra reference.
        let ours = unsafe { retained(ClQueue(here.queue.raw() as *mut _)) };
        let plan = library.plan(&a, &ours, POINTS);
        here.turn(&buffer, Complex32::new(2.0, 0.0));
        let view = buffer.write_on(&here.queue).unwrap();
        plan.forward(ours.get(), ClMem(view.cl_mem().unwrap()), &[]);
        drop(view);
        here.turn(&buffer, Complex32::new(0.5, 0.0));
        let error = relative_error(&buffer.to_vec().unwrap(), &fft(&x));
        assert!(error < FFT_ERROR, "{}: {error}", a.platform);
        drop(plan);
    }
}

/// Returns a further reference to a queue that another part owns.
///
/// # Safety
/// The queue is alive.
unsafe fn retained(queue: ClQueue) -> Own<ClQueue> {
    // SAFETY: never dropped, so the owner's reference is not released.
    let borrowed = std::mem::ManuallyDrop::new(unsafe { Own::new(queue) });
    Own::clone(&borrowed)
}

const ROWS: usize = 100;

fn matrix(hub: &Hub, mem: &Own<ClMem>) -> Buffer<f32> {
    // SAFETY: class A holds a reference, and uses the memory only through CLBlast, as these tests show.
    unsafe { hub.wrap_buffer(mem.raw()) }.len(ROWS * ROWS).build().unwrap()
}

#[test]
fn clblast_on_class_as_queue_and_then_on_ours() {
    let _alone = alone("CLBlast");
    let Some(library) = ClBlast::open() else { return };
    for a in owners() {
        let hub = hub();
        let [x, y] = [3, 4].map(|seed| small_numbers(seed, ROWS * ROWS));
        let mems = [&x, &y, &x].map(|numbers| a.words(bits(numbers)));
        let [x_mem, y_mem, z_mem] = &mems;
        let before = a.reference_counts(&[x_mem, y_mem, z_mem], &[]);
        {
            // Class A multiplies on its own queue, and passes the event.
            let done = library.sgemm(a.queue.get(), ROWS, mems.each_ref().map(Own::get));
            // SAFETY: class A holds a reference.
            let done = unsafe { hub.wrap_event(done.raw()) }.unwrap();
            let [a_x, a_y, a_z] = mems.each_ref().map(|mem| matrix(&hub, mem));
            a_z.written_until(&done).unwrap();
            a_x.read_until(&done).unwrap();
            a_y.read_until(&done).unwrap();
            let z = product(&x, &y, ROWS);
            assert_same(&a_z.to_vec().unwrap(), &z, &a.platform);
            assert_ne!(z, x, "the control");
            // Then CLBlast multiplies with our queue and our views.
            let ours = hub.queue_for(&a_z).unwrap();
            let views = (a_x.read_on(&ours).unwrap(), a_z.read_on(&ours).unwrap());
            let to = a_y.write_on(&ours).unwrap();
            let handles = [views.0.cl_mem(), views.1.cl_mem(), to.cl_mem()];
            let handles = handles.map(|mem| ClMem(mem.unwrap()));
            let event = library.sgemm(ClQueue(ours.raw() as *mut _), ROWS, handles);
            drop((views, to));
            let expected = product(&x, &z, ROWS);
            let seen = a_y.to_vec().unwrap();
            let largest = expected.iter().fold(0.0, |most: f32, x| most.max(*x));
            let apart = seen.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f32::max) <= largest * 1e-5, "{}", a.platform);
            a.wait(&[event.get()]);
            // Class A continues with what we wrote.
            a_y.hand_to(&queue(&hub, &a.queue)).unwrap();
            library.saxpy(a.queue.get(), ROWS * ROWS, 1.0, x_mem.get(), y_mem.get());
            let after = a.read(&a.queue, y_mem, ROWS * ROWS);
            let sum: Vec<f32> = seen.iter().zip(&x).map(|(y, x)| y + x).collect();
            assert_same(bytemuck::cast_slice(&after), &sum, &a.platform);
        }
        drop(hub);
        // CLBlast caches programs, which hold references; only the counts of buffers are exact.
        let now = || a.reference_counts(&[x_mem, y_mem, z_mem], &[]).buffers;
        let start = std::time::Instant::now();
        while now() != before.buffers {
            assert!(start.elapsed() < SECONDS, "{}: {:?}", a.platform, now());
        }
    }
}

#[test]
fn complex_axpy_on_wrapped_memory() {
    let _alone = alone("CLBlast, complex");
    let Some(library) = ClBlast::open() else { return };
    for a in owners() {
        let hub = hub();
        let (n, by) = (1000, Complex32::new(0.0, 1.0));
        let whole = |seed| bits(&small_numbers(seed, 2 * n)).to_vec();
        let (x, y) = (whole(5), whole(6));
        let (x_mem, y_mem) = (a.words(&x), a.words(&y));
        let before = a.reference_counts(&[&x_mem, &y_mem], &[]);
        // SAFETY: class A holds references, and does nothing meanwhile.
        let (bx, buffer) = unsafe {
            let x: Buffer<Complex32> = hub.wrap_buffer(x_mem.raw()).build().unwrap();
            (x, hub.wrap_buffer::<Complex32>(y_mem.raw()).build().unwrap())
        };
        let here = Turner::on(&context(&hub, &a).device());
        here.turn(&buffer, by);
        let (from, to) = (bx.read_on(&here.queue).unwrap(), buffer.write_on(&here.queue).unwrap());
        let queue = ClQueue(here.queue.raw() as *mut _);
        let (from_mem, to_mem) = (ClMem(from.cl_mem().unwrap()), ClMem(to.cl_mem().unwrap()));
        let done: Own<ClEvent> = library.caxpy(queue, n, by, from_mem, to_mem);
        drop((from, to));
        here.turn(&buffer, by);
        let [x, y]: [&[Complex32]; 2] = [bytemuck::cast_slice(&x), bytemuck::cast_slice(&y)];
        let model: Vec<_> = x.iter().zip(y).map(|(x, y)| (y * by + by * x) * by).collect();
        assert_same(&buffer.to_vec().unwrap(), &model, &a.platform);
        drop((done, bx, buffer, here, hub));
        drop(ClBlast::open());
        assert_restored(&before, || a.reference_counts(&[&x_mem, &y_mem], &[]), &a.platform);
    }
}
