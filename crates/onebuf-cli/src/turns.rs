//! The turns of `onebuf share` and `onebuf attach`: each side writes words that are unique to this round, and the other
//! checks every page.

mod kernels;
mod page;

use crate::out::{Failure, Result};
use kernels::Kernels;
use onebuf::{Buffer, Device, Hub};
use page::PAGE_WORDS;
pub use page::pages;
use serde_json::{Value, json};

/// Words that the host writes and reads at a time.
const CHUNK_WORDS: usize = 256 * PAGE_WORDS;

/// The word at an index in one hand-over of one visit. It does not repeat soon.
pub fn word(seed: u32, index: u32) -> u32 {
    (index ^ seed).wrapping_mul(0x2c1b_3c6d).rotate_left(13)
}

fn seed(session: u64, round: u64) -> u32 {
    (session as u32).wrapping_mul(0x9e37_79b9) ^ (round as u32).wrapping_mul(0x85eb_ca6b)
}

/// Counts of what one side has checked of the other side's words.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageCounts {
    pub rounds: u64,
    pub pages_checked: u64,
    pub pages_wrong: u64,
}

impl PageCounts {
    pub fn words(&self) -> String {
        let PageCounts { rounds, pages_checked, pages_wrong } = self;
        let s = if *rounds == 1 { "" } else { "s" };
        format!("{rounds} round{s}, {pages_checked} pages checked, {pages_wrong} wrong")
    }

    pub fn add_to(&self, object: &mut Value) {
        object["rounds"] = json!(self.rounds);
        object["pages_checked"] = json!(self.pages_checked);
        object["pages_wrong"] = json!(self.pages_wrong);
    }
}

/// Which devices write and check, in turn; the host if none is named.
pub struct Hands(Vec<Hand>);

enum Hand {
    Host,
    Device(Box<Kernels>),
}

impl Hands {
    pub fn open(hub: &Hub, selectors: &[String]) -> Result<(Self, Vec<Device>)> {
        let devices: Vec<Device> =
            selectors.iter().map(|selector| hub.device(selector)).collect::<onebuf::Result<_>>()?;
        let hand = |device: &Device| match device.id() {
            "host" => Ok(Hand::Host),
            _ => Kernels::build(device).map(|kernels| Hand::Device(Box::new(kernels))),
        };
        let mut hands = devices.iter().map(hand).collect::<onebuf::Result<Vec<_>>>()?;
        if hands.is_empty() {
            hands.push(Hand::Host);
        }
        Ok((Self(hands), devices))
    }

    fn of(&self, round: u64) -> &Hand {
        &self.0[(round / 2) as usize % self.0.len()]
    }

    /// Writes every word of a hand-over.
    pub fn write(&self, buffer: &Buffer<u32>, session: u64, round: u64) -> onebuf::Result<()> {
        let seed = seed(session, round);
        match self.of(round) {
            Hand::Device(kernels) => kernels.write(buffer, seed),
            Hand::Host => chunks(buffer.len()).try_for_each(|(from, to)| {
                let words: Vec<u32> = (from..to).map(|i| word(seed, i as u32)).collect();
                buffer.write_range(from..to, &words)
            }),
        }
    }

    /// Checks every word, and counts the pages.
    pub fn check(
        &self,
        buffer: &Buffer<u32>,
        session: u64,
        round: u64,
        seen: &mut PageCounts,
    ) -> onebuf::Result<()> {
        let seed = seed(session, round);
        let wrong = match self.of(round) {
            Hand::Device(kernels) => kernels.wrong_pages(buffer, seed)?,
            Hand::Host => wrong_pages(buffer, seed)?,
        };
        seen.rounds += 1;
        seen.pages_checked += pages(buffer.len()) as u64;
        seen.pages_wrong += wrong as u64;
        Ok(())
    }
}

fn chunks(words: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..words).step_by(CHUNK_WORDS).map(move |from| (from, (from + CHUNK_WORDS).min(words)))
}

fn wrong_pages(buffer: &Buffer<u32>, seed: u32) -> onebuf::Result<usize> {
    let mut wrong = 0;
    for (from, to) in chunks(buffer.len()) {
        let mut words = vec![0; to - from];
        buffer.read_range(from..to, &mut words)?;
        let right = |(i, seen): (usize, &u32)| *seen == word(seed, i as u32);
        let pages = (from..).step_by(PAGE_WORDS).zip(words.chunks(PAGE_WORDS));
        wrong += pages.filter(|(first, page)| !(*first..).zip(*page).all(right)).count();
    }
    Ok(wrong)
}

/// How the devices access the buffer, by id and route.
pub fn devices_json(buffer: &Buffer<u32>) -> Value {
    let topology = buffer.hub().topology();
    let hops = buffer.plan().routes.iter();
    hops.map(|hop| json!({ "id": topology.node(hop.to).id, "kind": hop.kind })).collect()
}

/// Wrong pages are a failure, whichever side wrote them.
pub fn judge(seen: &PageCounts) -> Result<()> {
    match seen.pages_wrong {
        0 => Ok(()),
        wrong => Err(Failure::new(format!(
            "{wrong} of {} pages were not what the other process wrote",
            seen.pages_checked
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(words: usize) -> Buffer<u32> {
        let hub = onebuf::builder().only(["host"]);
        let hub = hub.verdicts(Default::default()).build().unwrap();
        hub.buffer(words).build().unwrap()
    }

    #[test]
    fn every_page_counts() {
        let words = CHUNK_WORDS + PAGE_WORDS + 3;
        let (hands, buffer) = (Hands(vec![Hand::Host]), buffer(words));
        hands.write(&buffer, 1, 4).unwrap();
        let check = |session, round| {
            let mut seen = PageCounts::default();
            hands.check(&buffer, session, round, &mut seen).unwrap();
            assert_eq!(seen.pages_checked, 258);
            seen.pages_wrong
        };
        assert_eq!(check(1, 4), 0);
        // Another round, or another visit: no word matches.
        assert_eq!((check(1, 6), check(2, 4)), (258, 258));
        for at in [0, CHUNK_WORDS, words - 1] {
            let mut one = [0];
            buffer.read_range(at..=at, &mut one).unwrap();
            buffer.write_range(at..=at, &[!one[0]]).unwrap();
            assert_eq!(check(1, 4), 1, "word {at}");
            buffer.write_range(at..=at, &one).unwrap();
        }
    }
}
