//! 15. Library calls between kernels: transforms, a matrix product and a linear system on any device.
//!
//! `cargo run -p onebuf-examples --example 15-libraries`

use onebuf::{
    Complex32, CopyPolicy, Result,
    libs::{Blas, Columns, Fft, Fft1d, Gemm, Op, Solver, Square},
};

/// Samples per channel; below, the numbers of channels and beams.
const N: usize = 1024;
const CHANNELS: usize = 16;
const BEAMS: usize = 4;

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    // The calls are the same with cuFFT and cuBLAS, with rocFFT and rocBLAS, and on the CPU.
    let has_libraries = |id: &&str| {
        let queue = hub.device(id).and_then(|device| device.queue());
        queue
            .and_then(|queue| Blas::on(&queue).and(Fft::on(&queue)).and(Solver::on(&queue)))
            .is_ok()
    };
    let id = ["cuda", "hip"].into_iter().find(has_libraries).unwrap_or("host");
    let device = hub.device(id)?;
    let queue = device.queue()?;
    println!("on {device}, {}", device.info().name);

    let make = |len| {
        let buffer = hub.buffer::<Complex32>(len).shared_with([&device]);
        buffer.copies(CopyPolicy::Forbid).build()
    };
    let (signal, weights, beams) = (make(N * CHANNELS)?, make(CHANNELS * BEAMS)?, make(N * BEAMS)?);
    // Each channel holds a tone in a different frequency bin; beam b selects channel b.
    let tone = |i: usize| {
        let turns = (i / N + 1) as f32 * (i % N) as f32 / N as f32;
        Complex32::from_polar(1.0, std::f32::consts::TAU * turns)
    };
    signal.write(&(0..N * CHANNELS).map(tone).collect::<Vec<_>>())?;
    let listens =
        |i: usize| if i % CHANNELS == i / CHANNELS { Complex32::ONE } else { Complex32::ZERO };
    weights.write(&(0..CHANNELS * BEAMS).map(listens).collect::<Vec<_>>())?;

    // Columns are channels: [N x CHANNELS] times [CHANNELS x BEAMS]. Each view waits for earlier work on its buffer.
    Fft::on(&queue)?.transform(&Fft1d::forward(N, CHANNELS), &mut signal.write_on(&queue)?)?;
    let product = Gemm::new(N, BEAMS, CHANNELS).alpha((1.0 / N as f32).into());
    let (x, w) = (signal.read_on(&queue)?, weights.read_on(&queue)?);
    Blas::on(&queue)?.gemm(&product, &x, &w, &mut beams.write_on(&queue)?)?;

    let spectrum = beams.to_vec()?;
    for beam in 0..BEAMS {
        let line = &spectrum[beam * N..(beam + 1) * N];
        let peak = (0..N).max_by(|&a, &b| line[a].norm().total_cmp(&line[b].norm())).unwrap_or(0);
        assert_eq!(peak, beam + 1);
    }
    println!("beams 0 to {} found the tones in lines 1 to {BEAMS}", BEAMS - 1);

    // A small system, 2 a = 2 and a + 4 b = 9, in column-major order like all matrices here.
    let (a, b) = (make(4)?, make(2)?);
    a.write(&[2.0, 1.0, 0.0, 4.0].map(Complex32::from))?;
    b.write(&[2.0, 9.0].map(Complex32::from))?;
    let solver = Solver::on(&queue)?;
    let lu = solver.factor(Square::new(2), &mut a.write_on(&queue)?)?;
    let (factors, mut sides) = (a.read_on(&queue)?, b.write_on(&queue)?);
    solver.solve(&lu, Op::None, &factors, Columns::new(1), &mut sides)?;
    drop(sides);
    println!("and the solution is {:?}", b.to_vec()?.iter().map(|z| z.re).collect::<Vec<_>>());
    println!("{}", hub.ledger());
    Ok(())
}
