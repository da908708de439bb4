//! Transfers and fences as futures, many at once on one thread, and the same operations with waits.

use crate::{Side, Step, Trial, assert_same, random_words, step_model};
use onebuf::{Buffer, Result};
use std::{
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

const SECONDS: Duration = Duration::from_secs(20);
const N: usize = 5 * 1024 + 3;
type Task<'t, T> = Pin<Box<dyn Future<Output = T> + 't>>;

/// A waker that sends the number of its task.
struct Bell(usize, mpsc::Sender<usize>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // The receiver is gone once all tasks are done.
        let _ = self.1.send(self.0);
    }
}

/// A minimal executor: polls a task only after it was woken.
fn run_all<T>(mut tasks: Vec<Task<'_, T>>) -> Vec<T> {
    let (bell, woken) = mpsc::channel();
    let waker = |task| Waker::from(Arc::new(Bell(task, bell.clone())));
    let wakers: Vec<Waker> = (0..tasks.len()).map(waker).collect();
    let mut done: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
    wakers.iter().for_each(Waker::wake_by_ref);
    while done.iter().any(Option::is_none) {
        let task = woken.recv_timeout(SECONDS).expect("no task was woken in time");
        if done[task].is_some() {
            continue;
        }
        let polled = tasks[task].as_mut().poll(&mut Context::from_waker(&wakers[task]));
        if let Poll::Ready(output) = polled {
            done[task] = Some(output);
        }
    }
    done.into_iter().flatten().collect()
}

/// Writes, runs two kernels and reads back, without blocking the thread.
async fn trip(side: &Side, buffer: &Buffer<u32>, seed: u64) -> Result<()> {
    let mut model = random_words(seed, N);
    let sent = buffer.write_async(.., model.clone())?.await?;
    assert_same(&sent, &model, side.device.id());
    for round in 0..2 {
        side.step(buffer, Step::nth(round))?;
        step_model(&mut model, Step::nth(round));
        side.queue.fence().await?;
    }
    let back = buffer.read_async(.., sent)?.await?;
    assert_same(&back, &model, side.device.id());
    let part = buffer.read_async(7..9, vec![0; 2])?.await?;
    assert_same(&part, &model[7..9], side.device.id());
    Ok(())
}

pub fn many_trips_on_one_thread(t: &Trial<'_>) {
    t.each_device(|side| {
        let sides: Vec<Side> = (0..3).map(|_| Side::open(&side.device).unwrap()).collect();
        let build = |_| t.hub().buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        let buffers: Vec<Buffer<u32>> = (0..6).map(build).collect();
        let trips = buffers.iter().zip(sides.iter().cycle()).zip(0..);
        let trips: Vec<Task<'_, Result<()>>> = trips
            .map(|((buffer, side), seed)| {
                Box::pin(trip(side, buffer, seed)) as Task<'_, Result<()>>
            })
            .collect();
        run_all(trips).into_iter().for_each(|trip| trip.unwrap());
    });
}

/// Runs devices of every kind in one executor: each wakes its own tasks.
pub fn trips_on_every_device_at_once(t: &Trial<'_>) {
    t.together(|| {
        let sides = &t.machine.sides;
        let build =
            |side: &Side| t.hub().buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        let buffers: Vec<Buffer<u32>> = sides.iter().map(build).collect();
        let trips = sides.iter().zip(&buffers).zip(0..);
        let trips: Vec<Task<'_, Result<()>>> = trips
            .map(|((side, buffer), seed)| {
                Box::pin(trip(side, buffer, seed)) as Task<'_, Result<()>>
            })
            .collect();
        run_all(trips).into_iter().for_each(|trip| trip.unwrap());
    });
}

pub fn the_same_by_waiting(t: &Trial<'_>) {
    t.each_device(|side| {
        let buffer = t.hub().buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        let mut model = random_words(1, N);
        let sent = buffer.write_async(.., model.clone()).unwrap().wait(SECONDS).unwrap();
        side.step(&buffer, Step::nth(1)).unwrap();
        let mut reads: Vec<_> =
            (0..4).map(|_| buffer.read_async(.., sent.clone()).unwrap()).collect();
        step_model(&mut model, Step::nth(1));
        for read in reads.iter_mut().rev() {
            assert_same(&read.wait(SECONDS).unwrap(), &model, side.device.id());
        }
    });
}
