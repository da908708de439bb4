//! The text of a Stockham transform in OpenCL C: one power of two, by one work-group.
//!
//! ```text
//!   LOAD ──► butterflies in registers ──► exchange in local memory ──► turns, butterflies ──► … ──► STORE
//! ```
//!
//! The Stockham algorithm sorts as it goes, so no permutation is left. All values of a work-item are in registers with
//! names of their own, so no compiler has to resolve an index. The macros `LOAD(i)` and `STORE(j, value)` define where
//! values come from and go to.

use crate::setup::single;
use onebuf::{Complex32, Complex64};
use std::{
    f64::consts::TAU,
    fmt::{self, Write},
};

/// The largest butterfly: sixteen complex numbers fit well into registers.
const LARGEST_LOG: u32 = 4;

/// `x` is the local array, `t` the work-item's number within its transform. `turns` are exp(-2 pi i k / LEN). In the
/// forward direction a quarter turn is a product with -i.
pub const HEAD: &str = "
float2 times(float2 a, float2 b) { return (float2)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
#define FLY(a, b) { float2 d = a - b; a += b; b = d; }
#define FLY_QUARTER(a, b) { float2 d = a - b; a += b; b = (float2)(d.y, -d.x); }
#define FLY_TURN(a, b, re, im) { float2 d = a - b; a += b; b = times(d, (float2)(re, im)); }
";

/// The parameters of a group's transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stockham {
    /// Points of a transform.
    pub length: usize,
    /// Number of transforms that a group computes side by side.
    pub columns: usize,
    /// Butterflies of a work-item in the first pass: two if a group would be too large otherwise.
    pub butterflies: usize,
    /// Real and imaginary parts are exchanged one after the other: half the local memory, twice the barriers.
    pub split: bool,
    /// One place in seventeen of the local array is unused, so that power-of-two strides use all banks of a GPU.
    pub padded: bool,
    /// Samples after a transform's own that the local array holds, too, before the first pass. Not if it is `split`.
    pub ahead: usize,
}

impl Stockham {
    /// The radix of each pass: as few passes as possible, as even as possible, the largest first.
    fn radices(&self) -> Vec<usize> {
        let log = self.length.ilog2();
        let passes = log.div_ceil(LARGEST_LOG).max(1);
        (0..passes).map(|pass| 1 << ((log + passes - 1 - pass) / passes)).collect()
    }

    /// Points of a work-item.
    fn per_item(&self) -> usize {
        self.radices()[0] * self.butterflies
    }

    /// Work-items of a transform.
    pub fn items(&self) -> usize {
        self.length / self.per_item()
    }

    /// Work-items of a group.
    pub fn group(&self) -> usize {
        self.items() * self.columns
    }

    /// Places of the local array; zero if a work-item has all values.
    pub fn places(&self) -> usize {
        let points = self.length * self.columns;
        let exchanged = if self.padded { points + points / 16 } else { points };
        match self.items() {
            1 => 0,
            _ if self.split => exchanged,
            _ => exchanged.max(points + self.columns * self.ahead),
        }
    }

    /// Local memory that a group needs, in bytes.
    pub fn local_bytes(&self) -> usize {
        self.places() * if self.split { size_of::<f32>() } else { 2 * size_of::<f32>() }
    }

    /// The macros that the statements need besides `LOAD`, `STORE` and `PLACE`, a point's place before padding.
    pub fn macros(&self) -> String {
        let padding = if self.padded { "((at) + (at) / 16u)" } else { "(at)" };
        let mut text = format!("#define PADDED(at) {padding}\n");
        for (name, value) in
            [("LEN", self.length), ("ITEMS", self.items()), ("COLUMNS", self.columns)]
        {
            let _ = writeln!(text, "#define {name} {value}u");
        }
        text
    }

    /// The statements, preceded by the local array. If `staged`, the samples that `FETCH(i)` gives, and those `ahead`, are first
    /// stored at `STAGE(i)`, for `LOAD` to choose from.
    pub fn statements(&self, staged: bool) -> String {
        let mut text = Statements { of: *self, text: String::new(), puts: 0 };
        // Writing to a string cannot fail.
        let _ = text.all(staged);
        text.text
    }
}

/// exp(-2 pi i k / length) for every k, computed in double precision.
pub fn turns(length: usize) -> impl Iterator<Item = Complex32> {
    (0..length).map(move |k| single(Complex64::cis(-TAU * k as f64 / length as f64)))
}

/// Which of its results a butterfly leaves in a register.
fn reversed(register: usize, radix: usize) -> usize {
    register.reverse_bits() >> (usize::BITS - radix.ilog2())
}

struct Statements {
    of: Stockham,
    text: String,
    /// How many times the local array has been written.
    puts: usize,
}

impl Statements {
    fn all(&mut self, staged: bool) -> fmt::Result {
        let Stockham { length, split, .. } = self.of;
        let (radices, items) = (self.of.radices(), self.of.items());
        if self.of.places() > 0 {
            let kind = if split { "float" } else { "float2" };
            writeln!(self.text, "    local {kind} x[{}];", self.of.places())?;
        }
        let values: Vec<String> = (0..self.of.per_item()).map(|n| format!("v{n}")).collect();
        writeln!(self.text, "    float2 {};", values.join(", "))?;
        if staged {
            self.each(1, |_, b, _| format!("x[STAGE(t + {0}u)] = FETCH(t + {0}u);", b * items))?;
            let ahead = format!("uint i = t + LEN; i < LEN + {}u; i += ITEMS", self.of.ahead);
            writeln!(self.text, "    for ({ahead}) x[STAGE(i)] = FETCH(i);")?;
            writeln!(self.text, "    barrier(CLK_LOCAL_MEM_FENCE);")?;
            self.puts += 1;
        }
        self.each(radices[0], |number, b, q| {
            format!("v{number} = LOAD(t + {}u);", b * items + q * (length / radices[0]))
        })?;
        self.butterflies(radices[0])?;
        let mut done = radices[0];
        for pair in radices.windows(2) {
            self.exchange(pair[0], pair[1], done / pair[0])?;
            self.turn(pair[1], done)?;
            self.butterflies(pair[1])?;
            done *= pair[1];
        }
        let last = radices[radices.len() - 1];
        self.each(last, |number, b, q| {
            let at = b * items + reversed(q, last) * (length / last);
            format!("STORE(t + {at}u, v{number});")
        })
    }

    /// Writes a statement for each register. `of` gets the register's number, its butterfly, and its position in that butterfly.
    fn each(&mut self, radix: usize, of: impl Fn(usize, usize, usize) -> String) -> fmt::Result {
        for number in 0..self.of.per_item() {
            writeln!(self.text, "    {}", of(number, number / radix, number % radix))?;
        }
        Ok(())
    }

    fn butterflies(&mut self, radix: usize) -> fmt::Result {
        (0..self.of.per_item()).step_by(radix).try_for_each(|first| self.butterfly(first, radix))
    }

    /// Writes a butterfly by recursive halving. The results are in bit-reversed order.
    fn butterfly(&mut self, first: usize, radix: usize) -> fmt::Result {
        let half = radix / 2;
        for (a, j) in (first..).zip(0..half) {
            let b = a + half;
            let turn = Complex64::cis(-TAU * j as f64 / radix as f64);
            match (j, 4 * j == radix) {
                (0, _) => writeln!(self.text, "    FLY(v{a}, v{b})")?,
                (_, true) => writeln!(self.text, "    FLY_QUARTER(v{a}, v{b})")?,
                _ => {
                    let (re, im) = (turn.re as f32, turn.im as f32);
                    writeln!(self.text, "    FLY_TURN(v{a}, v{b}, {re:?}f, {im:?}f)")?;
                }
            }
        }
        match half {
            1 => Ok(()),
            _ => self.butterfly(first, half).and_then(|()| self.butterfly(first + half, half)),
        }
    }

    /// Writes the exchange from the order in which a pass leaves points to the order in which the next pass takes them. `done` is
    /// the length of the transforms before the finished pass.
    fn exchange(&mut self, from: usize, to: usize, done: usize) -> fmt::Result {
        let parts: &[&str] = if self.of.split { &[".x", ".y"] } else { &[""] };
        let (items, length) = (self.of.items(), self.of.length);
        for part in parts {
            // The first barrier after it also separates the loads from the stores of an in-place transform.
            let first = done == 1 && *part != ".y";
            if self.puts > 0 {
                writeln!(self.text, "    barrier(CLK_LOCAL_MEM_FENCE);")?;
            }
            self.each(from, |number, b, q| {
                let at = reversed(q, from) * done;
                let (i, mask) = (b * items, done - 1);
                format!("x[PLACE(({from}u - 1u) * ((t + {i}u) & ~{mask}u) + t + {i}u + {at}u)] = v{number}{part};")
            })?;
            let fence = if first { " | CLK_GLOBAL_MEM_FENCE" } else { "" };
            writeln!(self.text, "    barrier(CLK_LOCAL_MEM_FENCE{fence});")?;
            self.each(to, |number, b, q| {
                format!("v{number}{part} = x[PLACE(t + {}u)];", b * items + q * (length / to))
            })?;
            self.puts += 1;
        }
        Ok(())
    }

    /// Multiplies each point by its twiddle factor. Factors of powers of two come from the table; the others are
    /// products of at most four of them.
    fn turn(&mut self, radix: usize, done: usize) -> fmt::Result {
        let (items, step) = (self.of.items(), self.of.length / radix / done);
        for b in 0..self.of.per_item() / radix {
            let mask = done - 1;
            writeln!(self.text, "    {{ uint k = ((t + {}u) & {mask}u) * {step}u;", b * items)?;
            for q in 1..radix {
                let high = 1 << q.ilog2();
                match q - high {
                    0 => writeln!(self.text, "      float2 w{q} = turns[k * {q}u];")?,
                    low => writeln!(self.text, "      float2 w{q} = times(w{high}, w{low});")?,
                }
                let value = b * radix + q;
                writeln!(self.text, "      v{value} = times(v{value}, w{q});")?;
            }
            writeln!(self.text, "    }}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Stockham, reversed, turns};

    fn of(length: usize) -> Stockham {
        Stockham { length, columns: 4, butterflies: 1, split: true, padded: true, ahead: 0 }
    }

    #[test]
    fn passes_make_the_length() {
        for log in 1..=13 {
            let (radices, of) = (of(1 << log).radices(), of(1 << log));
            assert_eq!(radices.iter().product::<usize>(), 1 << log);
            assert!(radices.iter().all(|&radix| (2..=16).contains(&radix)), "{radices:?}");
            assert!(radices.is_sorted_by(|a, b| a >= b) && radices[0] == of.per_item());
        }
        assert_eq!(of(2048).radices(), [16, 16, 8]);
        assert_eq!(of(512).radices(), [8, 8, 8]);
    }

    #[test]
    fn memory_is_what_is_exchanged() {
        assert_eq!(of(16).local_bytes(), 0, "a work-item has it all");
        assert_eq!(of(2048).local_bytes(), 8192 * 17 / 16 * 4);
        assert_eq!(Stockham { split: false, padded: false, ..of(2048) }.local_bytes(), 65536);
        assert!(!of(16).statements(false).contains("local"));
        assert!(of(32).statements(false).contains("local float x[136];"));
        assert!(of(32).statements(true).contains("x[STAGE(t + 4u)] = FETCH(t + 4u);"));
        let two = Stockham { butterflies: 2, ..of(2048) };
        assert_eq!((of(2048).group(), two.group(), two.per_item()), (512, 256, 32));
    }

    #[test]
    fn numbers_are_as_said() {
        assert_eq!([0, 1, 2, 3].map(|at| reversed(at, 4)), [0, 2, 1, 3]);
        let quarters: Vec<_> = turns(4).map(|w| (w.re.round(), w.im.round())).collect();
        assert_eq!(quarters, [(1.0, 0.0), (0.0, -1.0), (-1.0, 0.0), (0.0, 1.0)], "forward");
    }
}
