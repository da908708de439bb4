//! Threads that keep processors busy, as many as asked for.

use std::{
    hint,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Most busy threads.
pub const MOST: usize = 3;
/// The number that ends the threads.
const OVER: usize = usize::MAX;

/// The threads; they end with it.
pub struct Load {
    busy: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the threads, all idle.
    pub fn start() -> Self {
        let busy = Arc::new(AtomicUsize::new(0));
        let thread = |number| {
            let busy = busy.clone();
            thread::spawn(move || work(number, &busy))
        };
        Self { threads: (0..MOST).map(thread).collect(), busy }
    }

    /// Lets this many of the threads work.
    pub fn change(&self, busy: usize) {
        self.busy.store(busy, Ordering::Relaxed);
    }
}

fn work(number: usize, busy: &AtomicUsize) {
    loop {
        match busy.load(Ordering::Relaxed) {
            OVER => return,
            many if number < many => (0..10_000).for_each(|_| hint::spin_loop()),
            _ => thread::sleep(Duration::from_millis(2)),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.change(OVER);
        for thread in self.threads.drain(..) {
            thread.join().expect("it only counts");
        }
    }
}
