//! Whether the queues of one device work together: what a program does with one device before it shares anything.
//!
//! A route's experiment has one queue on each device, so that a runtime whose streams cannot wait for each other passes it and
//! fails in the first program that has two.

use super::{
    experiment::{PAGE, Trouble, check_from, write_from},
    subject::{Side, Step, step_model},
};
use onebuf_core::{
    Buffer, Hub,
    topology::{Verdict, VerdictState},
};
use onebuf_hal::{Error, Result};
use std::{collections::VecDeque, thread};

/// Words of a buffer, buffers alive at a time, and rounds over all of them.
const WORDS: usize = 4 * PAGE;
const BUFFERS: usize = 6;
const ROUNDS: u32 = 20;

/// Runs the experiment. Any failure refutes it, with the reason.
pub(super) fn run(hub: &Hub, id: &str, tell: &mut dyn FnMut(&str)) -> Verdict {
    match lives(hub, id, tell) {
        Ok(()) => Verdict {
            state: VerdictState::Proven,
            why: "two queues in turn, and in two threads".into(),
            ..Verdict::default()
        },
        Err(trouble) => trouble.verdict(tell),
    }
}

fn lives(hub: &Hub, id: &str, tell: &mut dyn FnMut(&str)) -> Result<(), Trouble> {
    tell("building the kernels twice");
    let device = hub.device(id)?;
    let sides = [Side::open(&device)?, Side::open(&device)?];
    tell("two queues in turn on many buffers");
    in_turn(&sides).map_err(|trouble| trouble.at("two queues in turn"))?;
    tell("two threads with a queue each");
    let results = thread::scope(|scope| {
        let both = [0, 1].map(|at| {
            let sides = &sides[at];
            scope.spawn(move || by_itself(sides))
        });
        both.map(|thread| thread.join().unwrap_or_else(|_| Err(Error::invalid("a panic").into())))
    });
    for result in results {
        result.map_err(|trouble| trouble.at("two threads"))?;
    }
    tell("one queue waits for the other's fence");
    fences(&sides).map_err(|trouble| trouble.at("fences"))
}

fn new_buffer(side: &Side, seed: u32) -> Result<(Buffer<u32>, Vec<u32>), Trouble> {
    let buffer = side.device.hub().buffer::<u32>(WORDS).shared_with([&side.device]);
    let buffer = buffer.allocate_on(&side.device).build()?;
    let model: Vec<u32> = (0..WORDS as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ seed).collect();
    write_from(side, &buffer, &model)?;
    Ok((buffer, model))
}

fn nth(n: u32) -> Step {
    Step { mul: n.wrapping_mul(2_654_435_761) | 1, add: n ^ 0x5bd1_e995 }
}

/// Both queues change every buffer in turn, without a wait of the host. In each round one buffer is freed under its work.
fn in_turn(sides: &[Side; 2]) -> Result<(), Trouble> {
    let mut buffers = VecDeque::new();
    for seed in 0..BUFFERS as u32 {
        buffers.push_back(new_buffer(&sides[0], seed)?);
    }
    for round in 0..ROUNDS {
        for (buffer, model) in &mut buffers {
            for (side, step) in sides.iter().zip([nth(2 * round), nth(2 * round + 1)]) {
                side.step(buffer, 0, WORDS, step)?;
                step_model(model, step);
            }
        }
        buffers.pop_front();
        buffers.push_back(new_buffer(&sides[0], 100 + round)?);
    }
    for (buffer, model) in &buffers {
        for side in sides {
            check_from(side, buffer, model, "after both queues")?;
        }
    }
    Ok(())
}

/// One queue's work on a buffer of its own, in a thread.
fn by_itself(side: &Side) -> Result<(), Trouble> {
    for seed in 0..BUFFERS as u32 {
        let (buffer, mut model) = new_buffer(side, seed)?;
        for round in 0..ROUNDS {
            side.step(&buffer, 0, WORDS, nth(round))?;
            step_model(&mut model, nth(round));
        }
        check_from(side, &buffer, &model, "of one thread")?;
    }
    Ok(())
}

/// Each queue waits for the other's fence and works on.
fn fences([one, other]: &[Side; 2]) -> Result<(), Trouble> {
    let (buffer, mut model) = new_buffer(one, 7)?;
    for round in 0..ROUNDS {
        for (waits, works) in [(one, other), (other, one)] {
            works.step(&buffer, 0, WORDS, nth(round))?;
            step_model(&mut model, nth(round));
            waits.queue.wait_for(&works.queue.fence())?;
        }
    }
    one.queue.finish()?;
    other.queue.finish()?;
    check_from(one, &buffer, &model, "after fences")
}
