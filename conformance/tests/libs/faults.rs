//! Everything again with each call failing in turn: nothing leaks, nothing hangs, and the next run works.

use super::{each, journal, stubbed};
use onebuf::{
    Complex32, Device, Error, Probe, Result,
    libs::{Blas, Columns, Fft, Fft1d, Gemm, Op, Solver, Square},
};
use onebuf_conformance::note;

const N: usize = 20;

/// Uses every call of the libraries.
fn life(device: &Device) -> Result<()> {
    let make = |len: usize| device.hub().buffer::<Complex32>(len).shared_with([device]).build();
    let (x, y, z) = (make(N * N)?, make(N * N)?, make(N * N)?);
    let mut contents = vec![Complex32::new(0.5, 0.25); N * N];
    (0..N).for_each(|i| contents[i * (N + 1)] = Complex32::new(N as f32, 0.0));
    x.write(&contents)?;
    y.write(&contents)?;
    let queue = device.queue()?;
    let (fft, blas, solver) = (Fft::on(&queue)?, Blas::on(&queue)?, Solver::on(&queue)?);
    fft.transform_into(&Fft1d::forward(N, N), &x.read_on(&queue)?, &mut y.write_on(&queue)?)?;
    let (a, b) = (x.read_on(&queue)?, y.read_on(&queue)?);
    blas.gemm(&Gemm::new(N, N, N), &a, &b, &mut z.write_on(&queue)?)?;
    drop((a, b));
    let lu = solver.factor(Square::new(N), &mut x.write_on(&queue)?)?;
    let factors = x.read_on(&queue)?;
    solver.solve(&lu, Op::None, &factors, Columns::new(N), &mut z.write_on(&queue)?)?;
    solver.invert(&lu, &factors, &mut y.write_on(&queue)?)?;
    drop(factors);
    z.to_vec().map(drop)
}

/// The library calls that `life` makes.
const CALLS: [&[&str]; 2] = [
    &[
        "cublasCreate_v2",
        "cublasSetStream_v2",
        "cublasCgemm_v2",
        "cublasCcopy_v2",
        "cufftCreate",
        "cufftMakePlanMany",
        "cufftSetStream",
        "cufftExecC2C",
        "cusolverDnCreate",
        "cusolverDnSetStream",
        "cusolverDnCgetrf_bufferSize",
        "cusolverDnCgetrf",
        "cusolverDnCgetrs",
    ],
    &[
        "rocblas_create_handle",
        "rocblas_set_stream",
        "rocblas_cgemm",
        "rocblas_ccopy",
        "rocfft_plan_create",
        "rocfft_plan_get_work_buffer_size",
        "rocfft_execution_info_create",
        "rocfft_execution_info_set_stream",
        "rocfft_execution_info_set_work_buffer",
        "rocfft_execute",
        "rocsolver_cgetrf",
        "rocsolver_cgetrs",
    ],
];

#[test]
fn a_call_that_fails_is_named_and_the_next_life_works() {
    each(|api, _| {
        for call in CALLS[usize::from(api == "hip")] {
            let probe = Probe::new();
            let builder = stubbed(api).expect("it was there before").probe(probe.clone());
            let hub = builder.build().unwrap();
            let device = hub.device(api).unwrap();
            probe.fail_always(call, 7);
            match life(&device) {
                Err(Error::Driver { call: said, code: 7, api, name }) => {
                    assert_eq!(said, *call);
                    assert!(call.starts_with(api) && name != "unknown", "{api}: {call}: {name}");
                }
                other => panic!("{call} failed: {other:?}"),
            }
            assert_eq!(probe.failed(), Some(*call));
            probe.reset();
            life(&device).unwrap_or_else(|error| panic!("after {call}: {error}"));
            drop((device, hub));
            assert!(probe.live().is_empty(), "{call} failed: {:?} left", probe.live());
        }
    });
}

/// Driver calls fail too, in whatever order waits bring them.
#[test]
fn lives_whose_calls_fail() {
    each(|api, builder| {
        life(&builder.build().unwrap().device(api).unwrap()).unwrap();
        let mut n = 1;
        loop {
            let probe = Probe::new();
            let builder = stubbed(api).expect("it was there before").probe(probe.clone());
            let hub = builder.build().unwrap();
            let device = hub.device(api).unwrap();
            // Codes that no library or driver treats as the end of a context.
            probe.fail_nth(n, [3, 8, 14][n as usize % 3]);
            let outcome = life(&device);
            let Some(call) = probe.failed() else {
                outcome.unwrap_or_else(|error| panic!("nothing failed, yet {error}"));
                break;
            };
            let what = format!("{api}: call {n}, {call}, failed: {outcome:?}");
            assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
            if n % 7 == 0 {
                life(&device)
                    .unwrap_or_else(|error| panic!("{what}; then it does not work: {error}"));
            }
            drop((device, hub));
            assert!(probe.live().is_empty(), "{what}: {:?} left", probe.live());
            journal(); // discarded, because the stub's journal is limited
            n += 1;
        }
        note(&format!("{api}: {n} calls swept"));
        assert!(n > 60, "{n} calls are no life");
    });
}
