//! The exact calls of the libraries, their handles, and devices without libraries.

use super::{each, journal};
use onebuf::{
    Buffer, Complex32, Device, Error, Probe, Queue, Result,
    fake::FakeConfig,
    libs::{Blas, Columns, Fft, Fft1d, Gemm, Library, Op, Solver, Square},
    prelude::*,
};

fn make(device: &Device, len: usize) -> Buffer<Complex32> {
    let buffer = device.hub().buffer::<Complex32>(len).shared_with([device]).build().unwrap();
    buffer
        .write(&(0..len).map(|i| Complex32::new(i as f32 + 1.0, 0.5)).collect::<Vec<_>>())
        .unwrap();
    buffer
}

fn product(
    queue: &Queue,
    gemm: &Gemm<Complex32>,
    [a, b, c]: [&Buffer<Complex32>; 3],
) -> Result<()> {
    let (x, y, mut z) = (a.read_on(queue)?, b.read_on(queue)?, c.write_on(queue)?);
    Blas::on(queue)?.gemm(gemm, &x, &y, &mut z)
}

#[test]
fn products_have_the_arguments_that_were_given() {
    each(|api, builder| {
        let hub = builder.build().unwrap();
        let device = hub.device(api).unwrap();
        let (a, b, c) = (make(&device, 64), make(&device, 64), make(&device, 64));
        let queue = device.queue().unwrap();
        let plain = Gemm::new(2, 3, 4);
        let rich = plain.a(Op::Transpose).b(Op::Adjoint).lda(5).ldb(6).ldc(7);
        let rich = rich.alpha(Complex32::new(2.0, -1.0)).beta(Complex32::new(0.0, 0.5));
        product(&queue, &plain, [&a, &b, &c]).unwrap();
        product(&queue, &rich, [&a, &b, &c]).unwrap();
        let (name, ops) = match api {
            "cuda" => ("cublasCgemm_v2", ["0 0", "1 2"]),
            _ => ("rocblas_cgemm", ["111 111", "112 113"]),
        };
        let wanted = [
            "blas create".to_owned(),
            "blas stream".to_owned(),
            format!("{name} op {} size 2 3 4 ld 2 4 2 alpha 1+0i beta 0+0i", ops[0]),
            format!("{name} op {} size 2 3 4 ld 5 6 7 alpha 2-1i beta 0+0.5i", ops[1]),
        ];
        assert_eq!(journal(), wanted, "the handle is made once");
    });
}

#[test]
fn transforms_have_the_arguments_that_were_given() {
    each(|api, builder| {
        let hub = builder.build().unwrap();
        let device = hub.device(api).unwrap();
        let (x, y, queue) = (make(&device, 64), make(&device, 64), device.queue().unwrap());
        let fft = Fft::on(&queue).unwrap();
        let forward =
            |x: &Buffer<_>| fft.transform(&Fft1d::forward(20, 3), &mut x.write_on(&queue)?);
        forward(&x).unwrap();
        forward(&y).unwrap();
        let inverse = Fft1d::inverse(20, 3);
        fft.transform_into(&inverse, &x.read_on(&queue).unwrap(), &mut y.write_on(&queue).unwrap())
            .unwrap();
        let lines = journal();
        let lines: Vec<_> =
            lines.iter().map(String::as_str).filter(|l| *l != "rocfft_setup").collect();
        let cuda = [
            "fft create",
            "cufftMakePlanMany 20 batch 3 kind 0x29",
            "fft stream",
            "cufftExecC2C in place direction -1",
            "cufftExecC2C in place direction -1",
            "cufftExecC2C elsewhere direction 1",
        ];
        let create = |kind| {
            [
                "fft create".to_owned(),
                format!("rocfft_plan_create 20 batch 3 kind {kind} precision 0"),
            ]
        };
        let run = |way| format!("rocfft_execute in place direction {way}");
        let info = ["info create", "info stream"].map(str::to_owned);
        let hip =
            [&create(0)[..], &info, &[run(-1), run(-1)], &create(1), &info, &[run(1)]].concat();
        if api == "cuda" {
            assert_eq!(lines, cuda)
        } else {
            assert_eq!(lines, hip)
        };
    });
}

#[test]
fn systems_have_the_arguments_that_were_given() {
    each(|api, builder| {
        let hub = builder.build().unwrap();
        let device = hub.device(api).unwrap();
        let (a, b, c) = (make(&device, 15), make(&device, 12), make(&device, 9));
        a.write(
            &[1.0, 0.0, 0.0, 9.0, 9.0, 0.0, 2.0, 0.0, 9.0, 9.0, 0.0, 0.0, 4.0, 9.0, 9.0]
                .map(Complex32::from),
        )
        .unwrap();
        let queue = device.queue().unwrap();
        let solver = Solver::on(&queue).unwrap();
        let lu = solver.factor(Square::new(3).ld(5), &mut a.write_on(&queue).unwrap()).unwrap();
        let factors = a.read_on(&queue).unwrap();
        let columns = Columns::new(2).ld(4);
        solver
            .solve(&lu, Op::Adjoint, &factors, columns, &mut b.write_on(&queue).unwrap())
            .unwrap();
        solver.invert(&lu, &factors, &mut c.write_on(&queue).unwrap()).unwrap();
        let cuda = [
            "solver create",
            "solver stream",
            "cusolverDnCgetrf 3 ld 5",
            "cusolverDnCgetrs op 2 3 columns 2 ld 5 4",
            "blas create",
            "blas stream",
            "cublasCcopy_v2 3 step 1 4",
            "cusolverDnCgetrs op 0 3 columns 3 ld 5 3",
        ];
        let hip = [
            "blas create",
            "blas stream",
            "rocsolver_cgetrf 3 ld 5",
            "rocsolver_cgetrs op 113 3 columns 2 ld 5 4",
            "rocblas_ccopy 3 step 1 4",
            "rocsolver_cgetrs op 111 3 columns 3 ld 5 3",
        ];
        let lines = journal();
        if api == "cuda" {
            assert_eq!(lines, cuda)
        } else {
            assert_eq!(lines, hip)
        };
        drop(factors);
        let found = c.to_vec().unwrap();
        assert_eq!([found[0], found[4], found[8]].map(|z| z.re), [1.0, 0.5, 0.25]);
    });
}

#[test]
fn a_queue_has_one_handle_and_destroys_it_once() {
    each(|api, builder| {
        let probe = Probe::new();
        let hub = builder.probe(probe.clone()).build().unwrap();
        let device = hub.device(api).unwrap();
        let (a, b, c) = (make(&device, 4), make(&device, 4), make(&device, 4));
        let queues = [device.queue().unwrap(), device.queue().unwrap()];
        for queue in queues.iter().chain(&queues) {
            product(&queue.clone(), &Gemm::new(2, 2, 2), [&a, &b, &c]).unwrap();
        }
        assert_eq!(probe.live()["blas"], 2);
        let [first, second] = queues;
        // Dropped with work in flight, which the stub would not tolerate if the handle were destroyed.
        product(&first, &Gemm::new(2, 2, 2), [&a, &b, &c]).unwrap();
        drop(first);
        // The buffers were used on the queue, and may keep it until another queue uses them.
        product(&second, &Gemm::new(2, 2, 2), [&a, &b, &c]).unwrap();
        drop((a, b, c, second));
        assert_eq!(probe.live().get("blas"), None, "{:?}", probe.live());
        let lines = journal();
        let count = |what| lines.iter().filter(|line| *line == what).count();
        assert_eq!((count("blas create"), count("blas destroy")), (2, 2));
        drop((device, hub));
        assert!(probe.live().is_empty(), "{:?}", probe.live());
    });
}

#[test]
fn old_plans_make_room_for_new_ones() {
    each(|api, builder| {
        let probe = Probe::new();
        let hub = builder.probe(probe.clone()).build().unwrap();
        let device = hub.device(api).unwrap();
        let (x, queue) = (make(&device, 64), device.queue().unwrap());
        let fft = Fft::on(&queue).unwrap();
        let run = |len| fft.transform(&Fft1d::forward(len, 1), &mut x.write_on(&queue).unwrap());
        (1..=40).for_each(|len| run(len).unwrap());
        assert_eq!(probe.live()["fft"], 32);
        journal();
        (20..=40).for_each(|len| run(len).unwrap());
        assert!(
            journal().iter().all(|line| line.contains("in place")),
            "the latest are still there"
        );
        drop((x, queue, fft, device, hub));
        assert!(probe.live().is_empty(), "{:?}", probe.live());
    });
}

#[test]
fn a_library_that_is_not_there_is_said_to_be() {
    each(|api, builder| {
        let [blas, fft, solver] = match api {
            "cuda" => [Library::CuBlas, Library::CuFft, Library::CuSolver],
            _ => [Library::RocBlas, Library::RocFft, Library::RocSolver],
        };
        let builder = builder.math_library(blas, "/nonexistent/blas.so");
        let hub =
            builder.math_library(fft, "none").math_library(solver, "libc.so.6").build().unwrap();
        let queue = hub.device(api).unwrap().queue().unwrap();
        match Blas::on(&queue) {
            Err(Error::Unavailable { what, tried, reason }) => {
                assert!(what.contains("blas") && reason.contains("ONEBUF_"), "{what}: {reason}");
                assert_eq!(tried, ["/nonexistent/blas.so"]);
            }
            other => panic!("{other:?}"),
        }
        let said = Fft::on(&queue).unwrap_err().to_string();
        assert!(said.contains("switched off"), "{said}");
        let said = Solver::on(&queue).unwrap_err().to_string();
        assert!(said.contains("libc.so.6 lacks"), "{said}");
    });
}

#[test]
fn a_device_without_libraries_says_what_helps() {
    let builder = onebuf::builder().only(["host"]);
    let hub = builder.verdicts(Default::default()).fake(FakeConfig::default()).build().unwrap();
    let queue = hub.device("fake").unwrap().queue().unwrap();
    let said = [
        Blas::on(&queue).unwrap_err(),
        Fft::on(&queue).unwrap_err(),
        Solver::on(&queue).unwrap_err(),
    ];
    for error in said {
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("on fake:0 needs a queue of the host, CUDA or HIP"), "{said}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_the_library_is_called() {
    each(|api, builder| {
        let hub = builder.build().unwrap();
        let device = hub.device(api).unwrap();
        let (a, b, c) = (make(&device, 4), make(&device, 4), make(&device, 3));
        let queue = device.queue().unwrap();
        let blas = Blas::on(&queue).unwrap();
        let other = device.queue().unwrap();
        journal();
        let said = product(&queue, &Gemm::new(2, 2, 2), [&a, &b, &c]).unwrap_err().to_string();
        assert!(said.contains("`c`: the call needs 4 elements, the view has 3"), "{said}");
        let (x, y, mut z) =
            (a.read_on(&other).unwrap(), b.read_on(&queue).unwrap(), c.write_on(&queue).unwrap());
        let said = blas.gemm(&Gemm::new(1, 1, 1), &x, &y, &mut z).unwrap_err().to_string();
        assert!(said.contains("`a`: the view was taken on another queue"), "{said}");
        assert_eq!(journal(), [""; 0]);
    });
}
