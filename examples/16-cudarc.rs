//! 16. Using another library: the crate `cudarc` calls cuBLAS with onebuf's memory and stream.
//!
//! `cargo run -p onebuf-examples --example 16-cudarc`

use cudarc::{
    cublas::{result as blas, sys},
    driver::{self, CudaContext},
};
use onebuf::{Queue, ReadView, WriteView};
use std::error::Error;

const N: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let hub = onebuf::discover()?;
    let Ok(device) = hub.device("cuda:0") else {
        println!("no CUDA device here: nothing for cudarc to do");
        return Ok(());
    };
    // cudarc panics if a library is missing, so check first.
    // SAFETY: opens the two libraries if they are installed, and calls nothing in them.
    if !unsafe { driver::sys::is_culib_present() && sys::is_culib_present() } {
        println!("no cuBLAS here: nothing for cudarc to do");
        return Ok(());
    }
    let make = || hub.buffer::<f32>(N * N).shared_with([&device]).build();
    let (a, b, c) = (make()?, make()?, make()?);
    a.write(&[2.0; N * N])?;
    b.write(&[3.0; N * N])?;

    // Both use the device's primary context, so addresses and streams are valid in either library.
    let context = CudaContext::new(0)?;
    context.bind_to_thread()?;
    let queue = device.queue()?;
    let (x, y, mut z) = (a.read_on(&queue)?, b.read_on(&queue)?, c.write_on(&queue)?);
    multiply(&queue, &x, &y, &mut z)?;
    drop((x, y, z)); // dropping the views records the queue point after cuBLAS's work

    assert!(c.to_vec()?.iter().all(|&x| x == 6.0 * N as f32));
    println!("cudarc multiplied on {device}, in place: {}", hub.ledger());
    Ok(())
}

/// Computes C = A B with cudarc.
fn multiply(
    queue: &Queue,
    a: &ReadView<'_, f32>,
    b: &ReadView<'_, f32>,
    c: &mut WriteView<'_, f32>,
) -> Result<(), Box<dyn Error>> {
    let (n, none) = (N as i32, sys::cublasOperation_t::CUBLAS_OP_N);
    let (alpha, beta) = (1.0f32, 0.0f32);
    let handle = blas::create_handle()?;
    // SAFETY: each view has N x N numbers and was taken on this stream, which lives as long as the queue. The handle
    // is destroyed once, and cuBLAS then waits for its work.
    unsafe {
        let (a, b, c) = (a.cuda_ptr()? as _, b.cuda_ptr()? as _, c.cuda_ptr()? as _);
        let done = blas::set_stream(handle, queue.raw() as _).and_then(|()| {
            blas::sgemm(handle, none, none, n, n, n, &alpha, a, n, b, n, &beta, c, n)
        });
        blas::destroy_handle(handle)?;
        Ok(done?)
    }
}
