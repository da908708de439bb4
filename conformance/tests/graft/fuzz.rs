//! Mutated texts: never a panic, and never an accepted text with OpenCL constructs left in it.

use crate::{GRAFTED, REFUSED};
use onebuf::graft::rewrite;
use onebuf_conformance::Random;

const ROUNDS: usize = 1500;

/// Fragments with a meaning in PTX.
const PIECES: [&str; 24] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    ":",
    "<",
    ">",
    "\"",
    "/*",
    "//",
    "@",
    "\0",
    "ä",
    "%envreg3",
    "%envreg10",
    ".ptr .shared",
    ".reqntid 0",
    ".param .u64",
    "onebuf_local",
    "99999999999999999999",
];

fn mutate(text: &str, random: &mut Random) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + random.below(4) {
        let (at, len) = (random.below(bytes.len().max(1)), 1 + random.below(40));
        let end = (at + len).min(bytes.len());
        match random.below(4) {
            0 => drop(bytes.drain(at.min(end)..end)),
            1 => bytes.truncate(at.max(1)),
            2 => {
                let piece = PIECES[random.below(PIECES.len())].bytes();
                bytes.splice(at..at, piece).for_each(drop);
            }
            _ => {
                let (copy, to) = (bytes[at.min(end)..end].to_vec(), random.below(bytes.len() + 1));
                bytes.splice(to..to, copy).for_each(drop);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn broken_texts_are_refused_or_rewritten_whole() {
    let small = GRAFTED.iter().chain(&REFUSED).filter(|(_, ptx)| ptx.len() < 20_000);
    let small: Vec<_> = small.collect();
    let (mut random, mut accepted) = (Random::new(8), 0);
    for round in 0..ROUNDS {
        let (name, ptx) = small[round % small.len()];
        let broken = mutate(ptx, &mut random);
        let Ok(text) = rewrite(&broken) else { continue };
        accepted += 1;
        let code: String =
            text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
        // In a multi-line comment or a string it is harmless.
        if !broken.contains("/*") && !broken.contains('"') {
            assert!(!code.contains("%envreg"), "{name}, round {round}\n{broken}");
        }
    }
    assert!(accepted > ROUNDS / 50 && accepted < ROUNDS, "{accepted} of {ROUNDS} accepted");
}
