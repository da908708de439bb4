//! What is sent. Frames that fit in memory are loaded before the first is sent, so that loading does not slow down sending. A
//! larger file is read while it is sent.

use super::AnySource;
use crate::out::{Failure, Result};
use onebuf::{
    Complex32,
    pipeline::{Filled, Pipeline, sink::Sink},
};

/// The frames.
pub enum Play {
    /// In memory; they repeat.
    Loaded(Vec<Vec<Complex32>>),
    /// Read one by one.
    Streamed(AnySource),
}

impl Play {
    /// Loads up to `most` frames, or all that the source has.
    pub fn load(mut source: AnySource, samples: usize, most: u64) -> Result<Self> {
        let mut loaded = Vec::new();
        while (loaded.len() as u64) < most {
            let mut frame = vec![Complex32::ZERO; samples];
            if source.fill(&mut frame)? == Filled::End {
                break;
            }
            loaded.push(frame);
        }
        Ok(Self::Loaded(loaded))
    }

    /// Sends this many frames, those of the source without a number. `before` gets the number of each before it is sent.
    pub fn run<S: Sink<Complex32> + Send>(
        self,
        sink: &mut S,
        samples: usize,
        limit: Option<u64>,
        before: impl Fn(u64) + Send + Sync,
    ) -> Result<()> {
        match self {
            Self::Loaded(frames) => {
                let many = limit.unwrap_or(frames.len() as u64);
                if frames.is_empty() {
                    return Err(Failure::new("there are no frames to send"));
                }
                for (number, frame) in (0..many).zip(frames.iter().cycle()) {
                    before(number);
                    sink.take(frame, number)?;
                }
                Ok(())
            }
            Self::Streamed(source) => stream(source, sink, samples, limit, before),
        }
    }
}

/// Reads and sends frames at the same time.
fn stream<S: Sink<Complex32> + Send>(
    mut source: AnySource,
    sink: &mut S,
    samples: usize,
    limit: Option<u64>,
    before: impl Fn(u64) + Send + Sync,
) -> Result<()> {
    let hub = onebuf::builder().only(["host"]);
    let hub = hub.verdicts(Default::default()).build()?;
    let mut left = limit.unwrap_or(u64::MAX);
    let fill = move |frame: &mut [Complex32]| match left {
        0 => Ok(Filled::End),
        _ => {
            left -= 1;
            source.fill(frame)
        }
    };
    let take = |frame: &[Complex32], number: u64| {
        before(number);
        sink.take(frame, number)
    };
    Pipeline::builder(3, |_| hub.buffer::<Complex32>(samples).build())
        .feed(fill, |slot| slot)
        .drain(take, |slot| slot)
        .build()?
        .run()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebuf::pipeline::source::Memory;

    fn sent(play: Play, limit: Option<u64>) -> Vec<f32> {
        let mut seen = Vec::new();
        let mut sink = |frame: &[Complex32], _: u64| {
            seen.push(frame[0].re);
            Ok(())
        };
        play.run(&mut sink, 2, limit, |_| ()).unwrap();
        seen
    }

    fn three() -> AnySource {
        let all: Vec<Complex32> = (0..6).map(|at| Complex32::new((at / 2) as f32, 0.0)).collect();
        Box::new(Memory::new(all))
    }

    #[test]
    fn loaded_frames_repeat_up_to_the_limit() {
        let load = |most| Play::load(three(), 2, most).unwrap();
        assert_eq!(sent(load(9), None), [0.0, 1.0, 2.0]);
        assert_eq!(sent(load(9), Some(5)), [0.0, 1.0, 2.0, 0.0, 1.0]);
        assert_eq!(sent(load(2), Some(3)), [0.0, 1.0, 0.0]);
        let none =
            Play::Loaded(Vec::new()).run(&mut |_: &[Complex32], _: u64| Ok(()), 2, None, |_| ());
        assert!(none.is_err());
    }

    #[test]
    fn streamed_frames_are_those_of_the_source() {
        assert_eq!(sent(Play::Streamed(three()), None), [0.0, 1.0, 2.0]);
        assert_eq!(sent(Play::Streamed(three()), Some(2)), [0.0, 1.0]);
    }
}
