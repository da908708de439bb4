//! Class A alone, without onebuf: a failure here is the driver's.

use super::{
    alone, owners,
    reference::{FFT_ERROR, fft, product, relative_error, samples, small_numbers},
};
use onebuf::Complex32;
use onebuf_conformance::{
    Step, assert_same,
    class_a::{ClBlast, ClFft, ClassA, assert_restored, spin_model},
    note, random_words, step_model,
};

/// The bits of numbers, which class A's transfers copy.
pub fn bits(x: &[impl bytemuck::Pod]) -> &[u32] {
    bytemuck::cast_slice(x)
}

#[test]
fn class_a_computes_alone() {
    let _alone = alone("class A alone");
    for a in owners() {
        let mut model = random_words(1, 3000);
        let mem = a.words(&model);
        let before = a.reference_counts(&[&mem], &[]);
        a.step(&a.queue, &mem, 3000, Step::nth(1), &[]);
        step_model(&mut model, Step::nth(1));
        a.spin(&a.queue, &mem, 3000, 12_345, &[]);
        spin_model(&mut model, 12_345);
        assert_same(&a.read(&a.queue, &mem, 3000), &model, &a.platform);
        assert_restored(&before, || a.reference_counts(&[&mem], &[]), &a.platform);
        let more = mem.clone();
        let now = a.reference_counts(&[&mem], &[]);
        assert_ne!(now, before, "{}: the control", a.platform);
        drop(more);
    }
}

#[test]
fn class_a_holds_its_work_up() {
    let _alone = alone("class A's user events");
    for a in owners() {
        let mem = a.words(&[7; 64]);
        let host_signal = a.user_event();
        let done = a.step(&a.queue, &mem, 64, Step::nth(1), &[host_signal.get()]);
        a.flush(&a.queue);
        assert!(!a.is_complete(&done), "{}: nobody opened it", a.platform);
        a.complete(&host_signal);
        a.wait(&[done.get()]);
        assert!(a.is_complete(&done));
    }
}

fn transform(fft_library: &ClFft, a: &ClassA, n: usize) {
    let x = samples(3, n);
    let mem = a.words(bits(&x));
    let plan = fft_library.plan(a, &a.queue, n);
    plan.forward(a.queue.get(), mem.get(), &[]);
    let seen = a.read(&a.queue, &mem, 2 * n);
    let error = relative_error(bytemuck::cast_slice(&seen), &fft(&x));
    assert!(error < FFT_ERROR, "{}: {error} in {n} points", a.platform);
    plan.backward(a.queue.get(), mem.get(), &[]);
    let seen = a.read(&a.queue, &mem, 2 * n);
    let error = relative_error(bytemuck::cast_slice(&seen), &x);
    assert!(error < FFT_ERROR, "{}: {error} in {n} points and back", a.platform);
}

#[test]
fn clfft_transforms_without_onebuf() {
    let _alone = alone("clFFT alone");
    let Some(library) = ClFft::open() else { return };
    for a in owners() {
        for n in [64, 1 << 10, 1 << 16] {
            if n < 1 << 16 && a.platform.starts_with("Intel") {
                note("skip: clFFT of few points: Intel's compiler refuses the kernels it writes");
                continue;
            }
            transform(&library, &a, n);
        }
    }
}

#[test]
fn clblast_multiplies_without_onebuf() {
    const N: usize = 100;
    let _alone = alone("CLBlast alone");
    let Some(library) = ClBlast::open() else { return };
    for a in owners() {
        let (x, y) = (small_numbers(4, N * N), small_numbers(5, N * N));
        let [x_mem, y_mem, z_mem] = [&x, &y, &x].map(|numbers| a.words(bits(numbers)));
        let queue = a.queue.get();
        library.sgemm(queue, N, [x_mem.get(), y_mem.get(), z_mem.get()]);
        let seen = a.read(&a.queue, &z_mem, N * N);
        assert_same(bytemuck::cast_slice(&seen), &product(&x, &y, N), &a.platform);
        library.saxpy(queue, N * N, 2.0, x_mem.get(), y_mem.get());
        let y: Vec<f32> = y.iter().zip(&x).map(|(y, x)| y + 2.0 * x).collect();
        assert_same(bytemuck::cast_slice(&a.read(&a.queue, &y_mem, N * N)), &y, &a.platform);
        let i = Complex32::new(0.0, 1.0);
        library.caxpy(queue, N * N / 2, i, x_mem.get(), y_mem.get());
        let (x, y): (&[Complex32], &[Complex32]) =
            (bytemuck::cast_slice(&x), bytemuck::cast_slice(&y));
        let y: Vec<Complex32> = y.iter().zip(x).map(|(y, x)| y + i * x).collect();
        let seen = a.read(&a.queue, &y_mem, N * N);
        assert_same(bytemuck::cast_slice(&seen), &y, &a.platform);
    }
}
