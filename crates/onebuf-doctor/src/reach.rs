//! Large buffers: every page is touched, at the cost of one word each.

use super::{
    experiment::{Experiment, MIB, PAGE, Trouble},
    subject::{Page, step_model},
};
use onebuf_core::Buffer;
use onebuf_hal::{Error, RouteKind};

/// The size up to which every page is touched by default, where memory allows it.
pub const DEFAULT_REACH: u64 = 1 << 30;

/// Pages that a check reads at a time: they stay in the processor's cache.
const CHECK_PAGES: usize = 2 * MIB / PAGE;

/// Below this size it is not worth halving.
const LEAST: usize = 128 * MIB;

impl Experiment<'_> {
    /// Touches every page of a buffer of this many bytes from both sides, once each. Returns the size reached: less if there
    /// is no memory for more. By default staged routes are not tried with large buffers: onebuf itself copies these, in
    /// chunks that the smaller sizes have, and no plan asks how far they were tested.
    pub(super) fn reach(&mut self, bytes: u64) -> Result<u64, Trouble> {
        let large = self.large();
        if self.kind == RouteKind::Staged && bytes <= DEFAULT_REACH {
            return Ok(large as u64);
        }
        let mut pages = self.limit.min(usize::try_from(bytes).unwrap_or(usize::MAX)) / PAGE;
        while pages * PAGE > large {
            (self.tell)(&format!("reaching {} bytes", pages * PAGE));
            match self.builder::<Page>(pages).build() {
                Ok(buffer) => {
                    let at = |trouble: Trouble| trouble.at(&format!("at {} bytes", pages * PAGE));
                    self.touch(&buffer).map_err(at)?;
                    return Ok((pages * PAGE) as u64);
                }
                Err(Error::OutOfMemory { .. }) if pages * PAGE >= LEAST => pages /= 2,
                Err(Error::OutOfMemory { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(large as u64)
    }

    /// Kernels of both change one word of every page in turn: each computes from what the other left there. Then one side
    /// reads everything.
    fn touch(&mut self, buffer: &Buffer<Page>) -> Result<(), Trouble> {
        let mut model = vec![0u32; buffer.len()];
        let steps = [self.step(), self.step(), self.step()];
        for (step, side) in steps.into_iter().zip([&self.to, &self.from, &self.to]) {
            (self.tell)("touching every page");
            side.step_pages(buffer, step)?;
            step_model(&mut model, step);
        }
        let mut sides = [&self.from, &self.to].into_iter();
        let Some(reader) = sides.find(|side| buffer.transfers_on(&side.queue)) else {
            return Err(Trouble::Failed("neither API reads the memory".into()));
        };
        let mut pages = vec![[0; PAGE / 4]; CHECK_PAGES.min(model.len())];
        for (at, words) in model.chunks(CHECK_PAGES).enumerate() {
            // Frequent reports keep a slow device from looking hung.
            (self.tell)("checking every page");
            let (first, seen) = (at * CHECK_PAGES, &mut pages[..words.len()]);
            buffer.read_through_at(&reader.queue, first, seen)?;
            let is_good =
                |(page, word): (&Page, &u32)| page[0] == *word && page[1..].iter().all(|&x| x == 0);
            if let Some(bad) = seen.iter().zip(words).position(|both| !is_good(both)) {
                let text = format!("page {} of {} differs", first + bad, model.len());
                return Err(Trouble::Failed(text));
            }
        }
        Ok(())
    }
}
