//! The experiment that decides whether MPI is given a device's memory.
//!
//! Two ranks of one machine send messages of many sizes, in both directions, between the device's memory and that of the device or the
//! host, and compare every word. Before each message every page at the receiver is wrong, and a second message has one wrong word on
//! purpose, which must be found where it is. Then the same message is timed with device memory and staged.

use crate::{
    direct::{By, home_of},
    transport::Way,
    world::World,
};
use onebuf::{
    Buffer, Device, MemoryKind,
    topology::{Envelope, Verdict, VerdictState},
};
use onebuf_hal::{Error, Result};
use std::time::Instant;

/// What [`World::try_device_memory`] has found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// Proven if MPI may be given this device's memory, with the measured bandwidth and the sizes.
    pub verdict: Verdict,
    /// The bandwidth of the staged route, if it was measured.
    pub staged_gb_per_s: Option<f64>,
}

/// Sizes in bytes, on both sides of the limits at which MPI libraries change their way.
const SIZES: [usize; 9] =
    [4, 4096, 4100, 12_288, 65_540, 262_144, (1 << 20) + 4, 8 << 20, 64 << 20];

/// The smallest page.
const PAGE_WORDS: usize = 1024;

/// Messages that are timed each way.
const TIMED: usize = 7;

/// Tags: of messages that are checked, and of those that are timed.
const TAGS: [i32; 2] = [11, 12];

/// Where a message comes from and goes to.
const PLACES: [[Place; 2]; 3] =
    [[Place::Device, Place::Device], [Place::Device, Place::Host], [Place::Host, Place::Device]];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Device,
    Host,
}

/// One message of the experiment.
#[derive(Clone, Copy, Debug)]
struct Trial {
    words: usize,
    sender: usize,
    places: [Place; 2],
    round: usize,
}

impl Trial {
    /// The word at a place: another one in every trial.
    fn word(&self, at: usize) -> u32 {
        let Self { words, sender, places, round } = *self;
        let place = |place| u32::from(place == Place::Device);
        let seed = [words as u32, sender as u32, place(places[0]), place(places[1]), round as u32];
        let seed = seed
            .into_iter()
            .fold(0x9e37_79b9u32, |all, one| (all ^ one).wrapping_mul(0x85eb_ca6b).rotate_left(13));
        (at as u32).wrapping_mul(2_654_435_761).wrapping_add(seed)
    }

    fn all(&self) -> Vec<u32> {
        (0..self.words).map(|at| self.word(at)).collect()
    }

    /// The word that the second message has wrong.
    fn odd(&self) -> usize {
        (self.word(self.words) as usize) % self.words
    }

    fn describe(&self) -> String {
        let [from, to] = self.places.map(|place| format!("{place:?}").to_lowercase());
        let (bytes, sender) = (4 * self.words, self.sender);
        format!("{bytes} bytes from {from} memory of rank {sender} to {to} memory")
    }
}

/// Which words are wrong: how many, and the first.
fn wrong(found: &[u32], wanted: impl Fn(usize) -> u32) -> (usize, Option<usize>) {
    let mut all = found.iter().enumerate().filter(|(at, word)| **word != wanted(*at));
    let first = all.next().map(|(at, _)| at);
    (usize::from(first.is_some()) + all.count(), first)
}

/// One rank's side.
struct Side<'w> {
    world: &'w World,
    device: &'w Device,
}

impl World {
    /// Tries whether this MPI can be given a device's memory. Both ranks of a world of two call it, for the same device of the same
    /// machine, with messages of up to `reach` bytes. An MPI that claims what it cannot do may end the process: `begins` is called right
    /// before the first message, to store [`DeviceMemory::unfinished`] there. The verdict counts where it is stored
    /// ([`DeviceMemory::store_in`]), for worlds whose ranks then agree on it ([`World::use_device_memory`]).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are two ranks of one machine; those of building buffers. What fails in messages refutes the
    /// claim instead.
    pub fn try_device_memory(
        &self,
        device: &Device,
        reach: u64,
        begins: impl FnOnce(),
    ) -> Result<DeviceMemory> {
        if self.size() != 2 || !self.ranks().is_here(1 - self.rank()) {
            return Err(Error::invalid("the experiment needs two ranks of one machine"));
        }
        let nothing = |why: String| {
            let verdict = Verdict { why, ..Verdict::default() };
            Ok(DeviceMemory { verdict, staged_gb_per_s: None })
        };
        // Both ranks go on, or none does: each hears what the other has.
        let side = Side { world: self, device };
        let mapped =
            self.claims(device) && side.buffer(1).is_ok_and(|one| one.maps_in_place(false));
        let uuid = device.info().physical.uuid;
        let own = format!("{} {mapped} {uuid:02x?}", self.gpu_claim());
        let other = self.other_side(own.clone());
        if !self.claims(device) {
            return nothing(format!("{}, so its memory is staged", self.gpu_claim()));
        }
        if own != other || uuid.is_none() {
            return nothing(format!("the ranks do not have one chip: {own}; {other}"));
        }
        if mapped {
            return nothing("the host maps this memory, and MPI is given it in place".into());
        }
        begins();
        let sizes: Vec<usize> =
            SIZES.into_iter().filter(|size| *size as u64 <= reach.max(4096)).collect();
        let tried = side.all(&sizes);
        let own = match &tried {
            Ok(Ok(_)) => String::new(),
            Ok(Err(wrong)) => wrong.clone(),
            Err(error) => error.to_string(),
        };
        let other = self.other_side(own.clone());
        let found = match tried {
            Ok(Ok(buffer)) if other.is_empty() => {
                side.bandwidths(&buffer).map_err(|error| error.to_string())
            }
            _ => Err(if own.is_empty() { other } else { own }),
        };
        Ok(judged(found, &sizes))
    }

    /// What the other rank has found; empty if all was right.
    fn other_side(&self, own: String) -> String {
        let both = |_| -> Result<Vec<u8>> {
            let mut other = Vec::new();
            for root in 0..2 {
                let all = self.collect(own.clone().into_bytes(), root, self.timeout())?;
                other = all.map_or(other, |all| all[1 - self.rank()].clone());
            }
            Ok(other)
        };
        match both(()) {
            Ok(other) => String::from_utf8_lossy(&other).into_owned(),
            Err(error) => format!("the other rank did not tell what it found: {error}"),
        }
    }
}

impl DeviceMemory {
    /// The device's verdict for a world's library, as far as one is stored.
    pub fn stored(world: &World, device: &Device) -> Option<Verdict> {
        device.hub().verdicts().find_mpi(node(device), world.library_key())
    }

    /// Stores it. Hubs that are discovered afterwards use it.
    pub fn store_in(
        &self,
        verdicts: &mut onebuf::doctor::Verdicts,
        world: &World,
        device: &Device,
    ) {
        verdicts.insert_mpi(node(device), world.library_key(), self.verdict.clone());
    }

    /// A verdict that was [stored](Self::stored).
    pub fn of(verdict: Verdict) -> Self {
        Self { verdict, staged_gb_per_s: None }
    }

    /// A refutation, to be stored before the experiment: an MPI that ends the process leaves it.
    pub fn unfinished() -> Self {
        let why = "the experiment did not end: MPI may have crashed in it".into();
        let verdict = Verdict { state: VerdictState::Refuted, why, ..Verdict::default() };
        Self { verdict, staged_gb_per_s: None }
    }
}

fn node(device: &Device) -> &onebuf::topology::Node {
    device.hub().topology().node(device.index())
}

/// The verdict, from the bandwidths of both routes, or from what was wrong at a rank.
fn judged(found: Result<[f64; 2], String>, sizes: &[usize]) -> DeviceMemory {
    let all_sizes: Vec<u64> = sizes.iter().map(|size| *size as u64).collect();
    let envelope = all_sizes.first().zip(all_sizes.last()).map(|(min, max)| Envelope {
        min_bytes: *min,
        max_bytes: *max,
        sizes: all_sizes.clone(),
    });
    let refuted = |why: String| Verdict { state: VerdictState::Refuted, why, ..Verdict::default() };
    let [direct, staged] = match found {
        Ok(found) => found,
        Err(why) => return DeviceMemory { verdict: refuted(why), staged_gb_per_s: None },
    };
    let figures = format!("{direct:.2} GB/s, and {staged:.2} GB/s staged");
    let verdict = match direct < staged {
        true => refuted(format!("right, but slower than the staged route: {figures}")),
        false => Verdict {
            state: VerdictState::Proven,
            zero_copy: Some(true),
            why: format!("every page, both directions: {figures}"),
            gb_per_s: Some(direct),
            envelope,
            ..Verdict::default()
        },
    };
    DeviceMemory { verdict, staged_gb_per_s: Some(staged) }
}

impl Side<'_> {
    fn buffer(&self, words: usize) -> Result<Buffer<u32>> {
        let builder = self.device.hub().buffer(words).shared_with([self.device]);
        builder.allocate_on(self.device).memory_kind(MemoryKind::Device).build()
    }

    /// All trials, and the largest buffer. What is wrong is text.
    fn all(&self, sizes: &[usize]) -> Result<Result<Buffer<u32>, String>> {
        let (mut first, mut largest) = (None, None);
        for size in sizes {
            let words = size / 4;
            let device = self.buffer(words)?;
            let host = self.device.hub().buffer::<u32>(words).build()?;
            for (places, sender) in PLACES.into_iter().flat_map(|places| [(places, 0), (places, 1)])
            {
                for round in 0..2 {
                    let trial = Trial { words, sender, places, round };
                    let found = self.try_one(&trial, &device, &host)?;
                    first = first.or(found);
                }
            }
            largest = Some(device);
        }
        match (first, largest) {
            (Some(wrong), _) => Ok(Err(wrong)),
            (None, Some(buffer)) => Ok(Ok(buffer)),
            (None, None) => Ok(Err("no size was tried".into())),
        }
    }

    /// One trial. The result is what is wrong, at the receiver.
    fn try_one(
        &self,
        trial: &Trial,
        device: &Buffer<u32>,
        host: &Buffer<u32>,
    ) -> Result<Option<String>> {
        let sends = self.world.rank() == trial.sender;
        let place = trial.places[usize::from(!sends)];
        let buffer = if place == Place::Device { device } else { host };
        let by = if place == Place::Device { By::Device } else { By::Host };
        let about = |what: String| Some(format!("{}: {what}", trial.describe()));
        if sends {
            buffer.write(&trial.all())?;
            self.message(Way::Send, buffer, by)?;
            let odd = trial.odd();
            buffer.write_range(odd..=odd, &[!trial.word(odd)])?;
            self.message(Way::Send, buffer, by)?;
            return Ok(None);
        }
        let inverse: Vec<u32> = trial.all().into_iter().map(|word| !word).collect();
        buffer.write(&inverse)?;
        let before = wrong(&buffer.to_vec()?, |at| trial.word(at));
        let copied = || buffer.hub().ledger().implied_bytes();
        let copied_before = copied();
        self.message(Way::Receive, buffer, by)?;
        let copied = copied() - copied_before;
        let came = wrong(&buffer.to_vec()?, |at| trial.word(at));
        self.message(Way::Receive, buffer, by)?;
        let control = wrong(&buffer.to_vec()?, |at| trial.word(at));
        let page = |at: usize| at / PAGE_WORDS;
        Ok(match (before.0, came, control) {
            (all, ..) if all != trial.words => about("the control before it failed".into()),
            (_, (many, Some(at)), _) => {
                about(format!("{many} words are wrong, the first in page {}", page(at)))
            }
            (.., (1, Some(at))) if at == trial.odd() && copied == 0 => None,
            _ if copied > 0 => about(format!("{copied} bytes were copied by the host")),
            (.., (many, at)) => about(format!(
                "a wrong word in page {} was not found: {many} at {at:?}",
                page(trial.odd())
            )),
        })
    }

    fn message(&self, way: Way, buffer: &Buffer<u32>, by: By) -> Result<()> {
        self.tagged(way, buffer, by, TAGS[0])
    }

    fn tagged(&self, way: Way, buffer: &Buffer<u32>, by: By, tag: i32) -> Result<()> {
        let (world, before) = (self.world, self.world.device_bytes());
        let mut flight = world.tagged(way, buffer.into(), 1 - world.rank(), tag, by)?;
        flight.wait(world.timeout())?;
        if by == By::Device && world.device_bytes() == before {
            let device = &home_of(buffer).id;
            return Err(Error::unsupported(format!("memory of {device} for MPI"), "an address"));
        }
        Ok(())
    }

    /// The bandwidth from device to device memory, of MPI itself and of the staged route.
    fn bandwidths(&self, buffer: &Buffer<u32>) -> Result<[f64; 2]> {
        let (mut times, queue) = ([Vec::new(), Vec::new()], self.device.default_queue()?);
        let way = if self.world.rank() == 0 { Way::Send } else { Way::Receive };
        for turn in 0..2 * TIMED + 2 {
            let by = if turn % 2 == 0 { By::Device } else { By::Host };
            self.world.barrier(self.world.timeout())?;
            let began = Instant::now();
            self.tagged(way, buffer, by, TAGS[1])?;
            queue.finish()?;
            // Both ranks have the message.
            self.world.barrier(self.world.timeout())?;
            if turn >= 2 {
                times[turn % 2].push(began.elapsed());
            }
        }
        let bytes = (buffer.len() * 4) as f64;
        Ok(times.map(|mut all| {
            all.sort_unstable();
            bytes / all[all.len() / 2].as_secs_f64() / 1e9
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIAL: Trial =
        Trial { words: 3000, sender: 0, places: [Place::Device, Place::Host], round: 0 };

    #[test]
    fn every_trial_has_its_own_words() {
        let other = [
            Trial { round: 1, ..TRIAL },
            Trial { sender: 1, ..TRIAL },
            Trial { places: [Place::Host, Place::Device], ..TRIAL },
            Trial { places: [Place::Device; 2], ..TRIAL },
        ];
        for other in other {
            let (many, _) = wrong(&other.all(), |at| TRIAL.word(at));
            assert_eq!(many, 3000, "{other:?}");
        }
        assert!(TRIAL.odd() < 3000);
        assert!(TRIAL.describe().starts_with("12000 bytes from device memory of rank 0 to host"));
    }

    #[test]
    fn a_wrong_word_is_found_where_it_is() {
        let mut found = TRIAL.all();
        assert_eq!(wrong(&found, |at| TRIAL.word(at)), (0, None));
        found[2047] ^= 1;
        assert_eq!(wrong(&found, |at| TRIAL.word(at)), (1, Some(2047)));
    }

    #[test]
    fn a_claim_is_proven_by_both_ranks_and_a_better_bandwidth() {
        let judged =
            |found: Result<[f64; 2], &str>| judged(found.map_err(str::to_owned), &[4, 4096]);
        let good = judged(Ok([20.0, 5.0]));
        assert!(good.verdict.proven_for(4096) && !good.verdict.proven_for(4097));
        assert_eq!(good.staged_gb_per_s, Some(5.0));
        let state = |found: DeviceMemory| (found.verdict.state, found.verdict.why);
        let (refuted, why) = state(judged(Ok([0.3, 5.0])));
        assert!(refuted == VerdictState::Refuted && why.contains("slower"), "{why}");
        let (refuted, why) = state(judged(Err("page 3")));
        assert!(refuted == VerdictState::Refuted && why == "page 3", "{why}");
        assert_eq!(DeviceMemory::unfinished().verdict.state, VerdictState::Refuted);
    }
}
