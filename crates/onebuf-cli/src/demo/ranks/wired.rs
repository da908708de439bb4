//! Frames whose channels come to the ranks' own ports: all ranks process the same ones.

use super::{
    super::{judge::Judge, wire::PATIENCE},
    host,
    losses::{At, Taken},
    port::{Has, Port},
    rounds::{NUMBERS, Outcome, Said, told},
};
use crate::out::{Failure, Result};
use onebuf::{
    Buffer, Complex32,
    bytemuck::{cast_slice, pod_read_unaligned},
    pipeline::Filled,
};
use onebuf_mpi::World;
use std::time::{Duration, Instant};

/// How long a rank waits for a frame before it tells the others that it has none.
const MOMENT: Duration = Duration::from_millis(50);

/// How long a rank that has failed waits to tell the others.
const FAREWELL: Duration = Duration::from_secs(5);

/// At most so many frames that were left out in a row are shown as incomplete. A sender may skip any number.
const MOST_SHOWN: u64 = 1024;

/// A frame that all ranks have taken, on its way into the pipeline.
struct Next {
    /// Frames before it that were left out: the pipeline counts them.
    left_out: u64,
    /// This rank's channels.
    samples: Option<Vec<Complex32>>,
    /// The channels of all ranks, at rank 0, if the frame is checked.
    whole: Option<Vec<Complex32>>,
}

/// The source of a rank's pipeline.
pub struct Wired<'w> {
    world: &'w World,
    /// `None` on a rank without channels.
    port: Option<&'w Port>,
    said: Buffer<u64>,
    heard: Buffer<u64>,
    left: u64,
    taken: Taken,
    /// Frames before this one are not needed.
    from: At,
    next: Option<Next>,
    /// The pipeline's frame number, which also counts frames that are left out.
    number: u64,
    /// When the ranks last agreed on a frame.
    agreed: Instant,
    /// Why this rank fails in the next round.
    why: Option<Failure>,
    over: bool,
}

impl<'w> Wired<'w> {
    pub fn new(world: &'w World, port: Option<&'w Port>, frames: u64) -> Result<Self> {
        let (hub, numbers) = (host()?, NUMBERS * world.size());
        Ok(Self {
            world,
            port,
            said: hub.buffer(numbers).build()?,
            heard: hub.buffer(numbers).build()?,
            left: frames,
            taken: Taken::default(),
            from: At::default(),
            next: None,
            number: 0,
            agreed: Instant::now(),
            why: None,
            over: false,
        })
    }

    /// Fills this rank's channels of the next frame. `judge` gets the whole frames that it has time for, on rank 0.
    pub fn fill(&mut self, judge: &Judge, memory: &mut [Complex32]) -> Result<Filled> {
        if self.left == 0 {
            self.over = true;
            return Ok(Filled::End);
        }
        if self.next.is_none() {
            let outcome = self.agree(judge)?;
            if outcome != Filled::Frame {
                return Ok(outcome);
            }
        }
        Ok(self.deliver(judge, memory))
    }

    /// The frames that were taken. The source ends.
    pub fn taken(mut self) -> Taken {
        std::mem::take(&mut self.taken)
    }

    /// One round. With [`Filled::Frame`] there is a next frame.
    fn agree(&mut self, judge: &Judge) -> Result<Filled> {
        let said = self.oldest();
        let round = self.exchange(said, judge.is_idle(), self.world.timeout());
        // An error ends the source: this rank has lost the others.
        let (all, checked) = round.inspect_err(|_| self.over = true)?;
        if let Some(port) = self.port {
            port.align(&all);
        }
        match Outcome::of(&all) {
            Outcome::Failed(ranks) => {
                // All ranks know it.
                self.over = true;
                Err(self.why.take().unwrap_or_else(|| stopped(&ranks)))
            }
            Outcome::End => {
                self.over = true;
                Ok(Filled::End)
            }
            Outcome::Again(from) => {
                self.from = self.from.max(from);
                if self.agreed.elapsed() > PATIENCE {
                    let (wait, told) = (PATIENCE.as_secs(), told(&all));
                    let what = format!("no frame was whole at every rank for {wait} s: {told}");
                    self.why = Some(Failure::new(what));
                }
                Ok(Filled::Idle)
            }
            Outcome::Take(at) => self.take(at, checked).map(|()| Filled::Frame),
        }
    }

    /// What this rank says in the next round.
    fn oldest(&mut self) -> Said {
        if self.why.is_some() {
            return Said::Failed;
        }
        match self.port.map(|port| port.oldest(self.from, MOMENT)) {
            None => Said::Any,
            Some(Has::Nothing) => Said::Waits,
            Some(Has::Frame(at, common)) => Said::Has(at, common),
            Some(Has::End) => Said::Ended,
            Some(Has::Failure(error)) => {
                self.why = Some(error.into());
                Said::Failed
            }
        }
    }

    /// Tells all ranks, and hears what each of them says, and whether rank 0 checks the next frame.
    fn exchange(&mut self, said: Said, idle: bool, timeout: Duration) -> Result<(Vec<Said>, bool)> {
        let [what, at, common] = said.encode();
        let word = [what << 1 | u64::from(idle), at, common];
        self.said.write(&word.repeat(self.world.size()))?;
        self.world.all_to_all(&self.said, &self.heard)?.wait(timeout)?;
        let heard = self.heard.to_vec()?;
        let words = heard.chunks_exact(NUMBERS);
        let all = words.map(|word| Said::decode([word[0] >> 1, word[1], word[2]])).collect();
        Ok((all, heard[0] & 1 == 1))
    }

    fn take(&mut self, at: At, checked: bool) -> Result<()> {
        let left_out = self.taken.note(at).min(MOST_SHOWN);
        (self.from, self.agreed) = (At::of_raw(at.raw() + 1), Instant::now());
        let samples = self.port.map(|port| port.take(at)).transpose()?;
        let whole = if checked { self.gather(samples.as_deref())? } else { None };
        self.next = Some(Next { left_out, samples, whole });
        Ok(())
    }

    /// Sends this rank's channels to rank 0, which computes what to expect.
    fn gather(&self, samples: Option<&[Complex32]>) -> Result<Option<Vec<Complex32>>> {
        let own = cast_slice(samples.unwrap_or_default()).to_vec();
        let all = self.world.collect(own, 0, self.world.timeout())?;
        let samples = |own: &Vec<u8>| {
            let each = own.chunks_exact(size_of::<Complex32>());
            each.map(pod_read_unaligned).collect::<Vec<Complex32>>()
        };
        Ok(all.map(|all| all.iter().flat_map(samples).collect()))
    }

    /// Gives the pipeline what was left out, one by one, and then the frame.
    fn deliver(&mut self, judge: &Judge, memory: &mut [Complex32]) -> Filled {
        let Some(mut next) = self.next.take() else { return Filled::Idle };
        let number = self.number;
        self.number += 1;
        if next.left_out > 0 {
            next.left_out -= 1;
            self.next = Some(next);
            return Filled::Incomplete;
        }
        self.left -= 1;
        if let Some(whole) = next.whole {
            judge.sees(number, &whole);
        }
        if let (Some(port), Some(samples)) = (self.port, next.samples) {
            memory[..samples.len()].copy_from_slice(&samples);
            port.give_back(samples);
        }
        Filled::Frame
    }
}

/// Tells the other ranks that this one's pipeline has failed or was never built, unless its source has ended. They would wait for it.
impl Drop for Wired<'_> {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.over, true) && !self.world.has_failed() {
            // The reason is told in any case.
            let _ = self.exchange(Said::Failed, false, FAREWELL.min(self.world.timeout()));
        }
    }
}

fn stopped(ranks: &[usize]) -> Failure {
    let ranks: Vec<String> = ranks.iter().map(|rank| format!("rank {rank}")).collect();
    Failure::new(format!("{} stopped receiving", ranks.join(" and ")))
}
