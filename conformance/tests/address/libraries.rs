//! HIP's libraries on memory that OpenCL allocated and wrote.

use super::*;
use onebuf::{
    Complex32, Result,
    libs::{Blas, Fft, Fft1d, Gemm, Library, Solver, Square},
    prelude::*,
};

plays! {
    libraries_work_in_place: in_place("amd");
}

const ROWS: usize = 24;

/// A matrix product, an out-of-place transform of it and a matrix inverse, all on a HIP queue.
fn work(rig: &Rig, make: &dyn Fn(&[Complex32]) -> Buffer<Complex32>) -> Result<Vec<Complex32>> {
    let queue = &rig.hip.queue;
    let numbers = |seed| -> Vec<Complex32> {
        let words = random_words(seed, ROWS * ROWS).into_iter();
        words.map(|word| Complex32::new((word % 97) as f32 / 97.0, (word % 31) as f32)).collect()
    };
    let mut matrix = numbers(3);
    (0..ROWS).for_each(|i| matrix[i * (ROWS + 1)] += Complex32::new(1000.0, 0.0));
    let (a, b, c) = (make(&numbers(1)), make(&numbers(2)), make(&numbers(4)));
    let (spectra, square, inverse) = (make(&numbers(5)), make(&matrix), make(&numbers(6)));
    let product = Gemm::new(ROWS, ROWS, ROWS);
    Blas::on(queue)?.gemm(
        &product,
        &a.read_on(queue)?,
        &b.read_on(queue)?,
        &mut c.write_on(queue)?,
    )?;
    let plan = Fft1d::forward(ROWS, ROWS);
    Fft::on(queue)?.transform_into(&plan, &c.read_on(queue)?, &mut spectra.write_on(queue)?)?;
    let solver = Solver::on(queue)?;
    let lu = solver.factor(Square::new(ROWS), &mut square.write_on(queue)?)?;
    solver.invert(&lu, &square.read_on(queue)?, &mut inverse.write_on(queue)?)?;
    Ok([c.to_vec()?, spectra.to_vec()?, square.to_vec()?, inverse.to_vec()?].concat())
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn in_place() {
    let library = cuda_stub().unwrap().to_string_lossy().into_owned();
    let libraries = [Library::RocBlas, Library::RocFft, Library::RocSolver];
    let with = |builder: HubBuilder, which| builder.math_library(which, &library);
    let rig = Rig::over(libraries.into_iter().fold(onebuf::builder(), with));
    let devices = [&rig.cl.device, &rig.hip.device];
    let own = |contents: &[Complex32]| {
        let builder = rig.hub.buffer(contents.len()).shared_with([&rig.hip.device]);
        builder.init(contents.to_vec()).build().unwrap()
    };
    let expected = work(&rig, &own).unwrap();
    assert!(expected.iter().any(|x| x.norm() > 1.0));
    for kind in [RouteKind::SvmPointer, RouteKind::RawAddress, RouteKind::DmaBuf] {
        let theirs = |contents: &[Complex32]| {
            let builder = rig.hub.buffer(contents.len()).shared_with(devices);
            let builder = builder.allocate_on(&rig.cl.device).route(kind).trust_declared(true);
            builder.init(contents.to_vec()).build().unwrap()
        };
        let found = work(&rig, &theirs).unwrap();
        assert!(found == expected, "by {kind}");
    }
    assert_eq!(rig.hub.ledger().implied_bytes(), 0);
    rig.end();
}
