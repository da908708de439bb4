//! 5. Fences and transfers are futures.
//!
//! `cargo run -p onebuf-examples --example 05-async`
//!
//! They wake their task from the driver's completion callback, and work with any executor. The one here
//! is minimal: the thread parks until the waker unparks it.

use onebuf::Result;
use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake},
    thread::{self, Thread},
};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let device = hub.device("opencl").unwrap_or_else(|missing| {
        println!("{missing}");
        hub.host()
    });
    println!("on {device}");
    let buffer = hub.buffer::<u64>(1 << 20).shared_with([&device]).build()?;

    let sum = block_on(async {
        // An asynchronous transfer owns its vector until it completes, so the memory cannot be
        // freed too early. Awaiting it returns the vector.
        let numbers: Vec<u64> = (0..1 << 20).collect();
        let numbers = buffer.write_async(.., numbers)?.await?;

        // Later work on the buffer waits for the write by itself. The fence of the last write can also be awaited.
        if let Some(fence) = buffer.fence() {
            fence.await?;
        }

        // Reads into the same vector, without another allocation.
        let numbers = buffer.read_async(.., numbers)?.await?;
        Ok::<_, onebuf::Error>(numbers.iter().sum::<u64>())
    })?;
    assert_eq!(sum, (1 << 20) * ((1 << 20) - 1) / 2);
    println!("the sum is {sum}");
    Ok(())
}
