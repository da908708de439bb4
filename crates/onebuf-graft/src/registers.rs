//! The registers that a body may use.

use super::{Refusal, lex::Token, parse::Statement};
use std::collections::{HashMap, HashSet};

/// Special registers that mean the same in both APIs: a thread's position, and clocks.
const MACHINE: [&str; 21] = [
    "%tid",
    "%ntid",
    "%ctaid",
    "%nctaid",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%clock",
    "%clock_hi",
    "%clock64",
    "%globaltimer",
    "%globaltimer_lo",
    "%globaltimer_hi",
];

/// The registers that a body declares, in any of its scopes.
#[derive(Default)]
pub(super) struct Registers<'t> {
    names: HashSet<&'t str>,
    /// The number of each numbered register: `%r<3>` is `%r0` to `%r2`.
    numbered: HashMap<&'t str, usize>,
}

impl<'t> Registers<'t> {
    pub fn of(body: &[Statement<'t>]) -> Result<Self, Refusal> {
        let mut registers = Self::default();
        let declared = body.iter().filter(|statement| statement.words[0].is(".reg"));
        declared.into_iter().try_for_each(|statement| registers.declare(statement))?;
        Ok(registers)
    }

    fn declare(&mut self, statement: &Statement<'t>) -> Result<(), Refusal> {
        let words = statement.words;
        for (at, word) in words.iter().enumerate().filter(|(_, word)| word.text.starts_with('%')) {
            match &words[at + 1..] {
                [open, count, ..] if open.is("<") => {
                    let count = count
                        .text
                        .parse()
                        .map_err(|_| Refusal::at(count, format!("`{}` registers", count.text)))?;
                    self.numbered.insert(word.text, count);
                }
                _ => drop(self.names.insert(word.text)),
            }
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let number = name[stem.len()..].parse::<usize>();
        let numbered = || self.numbered.get(stem).zip(number.ok()).is_some_and(|(n, at)| at < *n);
        self.names.contains(name) || numbered()
    }

    /// Whether a word is not a register, or is one of the body's or a known special register.
    pub fn knows(&self, word: &Token<'_>) -> bool {
        let name = word.text.split('.').next().unwrap_or_default();
        !word.text.starts_with('%') || MACHINE.contains(&name) || self.has(name)
    }
}
