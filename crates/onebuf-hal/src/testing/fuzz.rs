//! Inputs for parsers: valid inputs, changed in ways that keep most of their structure, some of them grown to hundreds of
//! kilobytes. Each must be parsed within the parser's limits of memory and time.
//!
//! `ONEBUF_FUZZ` sets the number of inputs per parser, and `ONEBUF_FUZZ_SEED` the seed of their sequence. An input that fails
//! is written to the directory for temporary files.

use super::meter::{Taken, measure};
use std::{env, fs, time::Duration};

/// Inputs per parser, unless `ONEBUF_FUZZ` is set.
const INPUTS: usize = 600;
/// One of this many inputs is large.
const LARGE_EACH: usize = 12;
const SMALL_BYTES: usize = 4 << 10;
/// Size of the large inputs.
pub const LARGE_BYTES: usize = 192 << 10;
/// Time limit of a parser. The slowest takes 1 µs per byte without optimisation: only superlinear work takes ten times
/// as long.
const TIME: Duration = Duration::from_millis(100);
const TIME_PER_BYTE: Duration = Duration::from_micros(10);

/// A small random number generator (splitmix64); the same seed gives the same sequence.
pub struct Random(u64);

impl Random {
    /// Starts the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.number().checked_rem(n as u64).unwrap_or(0) as usize
    }

    /// One of the elements.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A value at which parsers often fail, or a random one.
    fn odd(&mut self) -> u64 {
        let known = [0, 1, 2, 3, 4, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
        if self.below(4) == 0 { self.number() } else { *self.of(&known) }
    }
}

/// Memory limit of a parser: this many bytes for each byte of its input, plus a constant.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Bytes of memory per byte of input.
    pub per_byte: usize,
    /// Bytes of memory in addition.
    pub fixed: usize,
}

impl Bound {
    /// Fails if parsing the input exceeded the limit at its peak, or four times the limit in total.
    #[track_caller]
    pub fn check(self, what: &str, input: &[u8], taken: Taken) {
        let most = self.per_byte * input.len() + self.fixed;
        if taken.peak > most || taken.all > 4 * most {
            fail(what, input, &format!("{taken}, and {most} bytes are its bound"));
        }
    }
}

/// A parser and its inputs.
pub struct Target<'t> {
    /// The name of what it parses.
    pub name: &'t str,
    /// Its memory limit.
    pub bound: Bound,
    /// Creates an input of at most about this many bytes.
    pub input: &'t dyn Fn(&mut Random, usize) -> Vec<u8>,
    /// Parses an input; returns whether it was accepted.
    pub parse: &'t dyn Fn(&[u8]) -> bool,
}

impl Target<'_> {
    /// Runs the parser on its inputs. Some must be accepted and some rejected; otherwise the inputs test little.
    #[track_caller]
    pub fn run(&self) {
        let number = |name| env::var(name).ok().map(|n| n.parse().expect("a number"));
        let inputs = number("ONEBUF_FUZZ").unwrap_or(INPUTS as u64);
        let seed = number("ONEBUF_FUZZ_SEED").unwrap_or(1);
        let (mut random, mut accepted, mut worst) = (Random::new(seed), 0, (0, 0));
        for round in 0..inputs {
            let large = round % LARGE_EACH as u64 == 0;
            let input = (self.input)(&mut random, if large { LARGE_BYTES } else { SMALL_BYTES });
            let (is_accepted, taken) = self.measure(&input);
            accepted += u64::from(is_accepted);
            let len = input.len().max(SMALL_BYTES);
            worst =
                (worst.0.max(taken.peak / len), worst.1.max(taken.time.as_nanos() as usize / len));
        }
        let (name, (bytes, nanos)) = (self.name, worst);
        println!(
            "{name}: {accepted} of {inputs} accepted; at most {bytes} bytes and {nanos} ns per byte"
        );
        assert!(accepted > 0 && accepted < inputs, "{name}: {accepted} of {inputs} accepted");
    }

    #[track_caller]
    fn measure(&self, input: &[u8]) -> (bool, Taken) {
        let (accepted, mut taken) = measure(|| (self.parse)(input));
        self.bound.check(self.name, input, taken);
        let most = TIME + TIME_PER_BYTE * input.len() as u32;
        // Other processes may have disturbed one measurement, but not three.
        for _ in 0..2 {
            if taken.time <= most {
                return (accepted, taken);
            }
            taken.time = taken.time.min(measure(|| (self.parse)(input)).1.time);
        }
        if taken.time > most {
            fail(self.name, input, &format!("{taken}, and {most:?} is its bound"));
        }
        (accepted, taken)
    }
}

#[track_caller]
fn fail(what: &str, input: &[u8], why: &str) -> ! {
    let file = env::temp_dir().join(format!("onebuf-{}.input", what.replace(' ', "-")));
    let kept =
        fs::write(&file, input).map_or_else(|why| why.to_string(), |()| file.display().to_string());
    panic!("{what}, {} bytes of input: {why} ({kept})", input.len());
}

/// The units of an input, which are repeated, removed and exchanged as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Bytes.
    Bytes,
    /// Words, punctuation and white space.
    Text,
    /// SPIR-V instructions after a header of five words.
    Spirv,
}

type Units = Vec<Vec<u8>>;

impl Form {
    /// Returns one of the seeds, with random changes.
    pub fn changed(self, random: &mut Random, seeds: &[Vec<u8>], most: usize) -> Vec<u8> {
        let mut units = self.split(random.of(seeds).as_slice());
        for _ in 0..random.below(6) {
            self.change(random, &mut units, seeds, most);
        }
        let mut input = units.concat();
        input.truncate(most.max(input.len().min(SMALL_BYTES)));
        input
    }

    fn split(self, input: &[u8]) -> Units {
        let mut units = Units::new();
        let mut rest = input;
        while !rest.is_empty() {
            let len = match self {
                Form::Bytes => 1,
                Form::Text => {
                    let word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_%.".contains(byte);
                    rest.iter().position(|byte| !word(byte)).unwrap_or(rest.len()).max(1)
                }
                Form::Spirv if units.is_empty() => 20,
                Form::Spirv => {
                    rest.get(2..4).map_or(1, |n| 4 * usize::from(n[0]) + 1024 * usize::from(n[1]))
                }
            };
            let (unit, behind) = rest.split_at(len.clamp(1, rest.len()));
            units.push(unit.to_vec());
            rest = behind;
        }
        units
    }

    fn change(self, random: &mut Random, units: &mut Units, seeds: &[Vec<u8>], most: usize) {
        // The header of a module stays in place.
        let first = usize::from(self == Form::Spirv).min(units.len());
        if units.len() <= first {
            return;
        }
        let at = first + random.below(units.len() - first);
        match random.below(6) {
            0 => drop(units.remove(at)),
            1 => {
                let other = first + random.below(units.len() - first);
                units.swap(at, other);
            }
            2 => {
                let other = self.split(random.of(seeds).as_slice());
                let from = first + random.below(other.len().saturating_sub(first));
                units.extend(other.get(from).cloned());
            }
            3 => self.alter(random, units, at),
            _ => {
                let len = 1 + random.below(12.min(units.len() - at));
                repeat(units, at, len, random.below(most));
            }
        }
    }

    fn alter(self, random: &mut Random, units: &mut Units, at: usize) {
        let any = random.below(units.len());
        let other = units[any].clone();
        match self {
            Form::Bytes => units[at] = vec![random.odd() as u8],
            Form::Text if random.below(3) == 0 => units[at] = random.odd().to_string().into_bytes(),
            Form::Text => units[at] = other,
            Form::Spirv => alter_instruction(random, &mut units[at], &other),
        }
    }
}

/// Repeats a run of units until it has about `bytes` bytes.
fn repeat(units: &mut Units, at: usize, len: usize, bytes: usize) {
    let run: Units = units[at..at + len].to_vec();
    let each = run.iter().map(Vec::len).sum::<usize>().max(1);
    let times = bytes / each;
    units.splice(at..at, (0..times).flat_map(|_| run.clone()));
}

/// Replaces an operand, or appends operands, some taken from another instruction.
fn alter_instruction(random: &mut Random, unit: &mut Vec<u8>, other: &[u8]) {
    let operands = &other[4.min(other.len())..];
    let word = match random.below(2) {
        0 if operands.len() >= 4 => operands[4 * random.below(operands.len() / 4)..][..4].to_vec(),
        _ => (random.odd() as u32).to_le_bytes().to_vec(),
    };
    match unit.len() / 4 {
        2.. if random.below(3) > 0 => {
            let at = 4 + 4 * random.below(unit.len() / 4 - 1);
            unit[at..at + 4].copy_from_slice(&word);
        }
        1.. => {
            unit.extend(word.repeat(1 + random.below(300)));
            let words = (unit.len() / 4).min(0xffff) as u16;
            unit.truncate(4 * usize::from(words));
            unit[2..4].copy_from_slice(&words.to_le_bytes());
        }
        _ => {}
    }
}
