//! A sink's disk is full: the run ends with an error that says so, and the same frames go to another file.

use crate::Chaos;
use onebuf::{
    Hub,
    pipeline::{Failure, Pipeline, Report, sink, source},
};
use std::{fs, path::Path};

const N: usize = 20_000;
const FRAMES: u64 = 5;

fn store(hub: &Hub, words: &[u32], path: &Path) -> Result<Report, Failure> {
    Pipeline::builder(3, |_| hub.buffer::<u32>(N).build())
        .feed(source::Memory::new(words.to_vec()).times(FRAMES), |slot| slot)
        .drain(sink::File::create(path).unwrap(), |slot| slot)
        .build()
        .unwrap()
        .run()
}

pub fn is_full(chaos: &mut Chaos<'_>) {
    let hub = &chaos.machine.hub;
    let words: Vec<u32> = (0..N).map(|_| chaos.random.word()).collect();
    // Linux's device whose every write ends with ENOSPC.
    let failure = store(hub, &words, Path::new("/dev/full")).unwrap_err();
    assert!(failure.to_string().contains("No space left"), "{failure}");
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(store(hub, &words, file.path()).unwrap().frames, FRAMES);
    let frame: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(fs::read(file.path()).unwrap() == frame.repeat(FRAMES as usize), "the file's contents");
    chaos.figures.full_disks += 1;
    chaos.figures.frames += FRAMES;
}
