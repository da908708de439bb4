//! Splits PTX into tokens, each with its line.

use super::Refusal;

/// One word or sign of a PTX text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'t> {
    pub text: &'t str,
    /// The offset of its first byte in the text.
    pub at: usize,
    /// Line number, counted from 1.
    pub line: usize,
}

impl Token<'_> {
    /// The offset of the first byte after it.
    pub fn end(&self) -> usize {
        self.at + self.text.len()
    }

    /// Whether it is this word or sign.
    pub fn is(&self, text: &str) -> bool {
        self.text == text
    }

    /// Whether it is a word: a name, a register, a directive, an instruction or a number.
    pub fn is_word(&self) -> bool {
        self.text.bytes().next().is_some_and(in_word)
    }
}

/// Whether a byte can be part of a word. Instructions include their dots; directives and registers include their first
/// character.
fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_$%.".contains(&byte)
}

/// Returns all tokens of a text, without comments and spaces. They are counted first, so that the list is no longer
/// than needed: a token may be a single byte of text.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Refusal> {
    let mut count = 0;
    each_token(text, |_| count += 1)?;
    let mut found = Vec::with_capacity(count);
    each_token(text, |token| found.push(token))?;
    Ok(found)
}

fn each_token<'t>(text: &'t str, mut found: impl FnMut(Token<'t>)) -> Result<(), Refusal> {
    let (mut at, mut line) = (0, 1);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let (len, is_token) = measure(rest).map_err(|why| Refusal::new(line, why))?;
        let Some(part) = text.get(at..at + len).filter(|_| len > 0) else {
            return Err(Refusal::new(line, "a letter that no PTX has"));
        };
        if is_token {
            found(Token { text: part, at, line });
        }
        line += part.bytes().filter(|byte| *byte == b'\n').count();
        at += len;
    }
    Ok(())
}

/// Returns the length of the next piece, and whether it is a token.
fn measure(rest: &str) -> Result<(usize, bool), &'static str> {
    let bytes = rest.as_bytes();
    let run = |so: fn(u8) -> bool| bytes.iter().position(|byte| !so(*byte)).unwrap_or(bytes.len());
    match bytes[0] {
        byte if byte.is_ascii_whitespace() => Ok((run(|byte| byte.is_ascii_whitespace()), false)),
        _ if rest.starts_with("//") => Ok((run(|byte| byte != b'\n'), false)),
        _ if rest.starts_with("/*") => match rest[2..].find("*/") {
            Some(at) => Ok((at + 4, false)),
            None => Err("a comment that does not end"),
        },
        b'"' => match rest[1..].find('"') {
            Some(at) => Ok((at + 2, true)),
            None => Err("a string that does not end"),
        },
        // `%` is only allowed as the first letter of a register.
        b'%' => Ok((1 + word(&rest[1..]), true)),
        byte if in_word(byte) => Ok((word(rest), true)),
        byte if byte.is_ascii_graphic() => Ok((1, true)),
        _ => Err("a letter that no PTX has"),
    }
}

/// Returns the number of bytes that belong to the word.
fn word(rest: &str) -> usize {
    let ends = |byte: u8| byte == b'%' || !in_word(byte);
    rest.bytes().position(ends).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        tokens(text).unwrap().iter().map(|token| token.text).collect()
    }

    #[test]
    fn words_keep_their_dots() {
        let text =
            "@!%p1 ld.param.u64 %rd1, [k_param_0+8]; // no\n.reg .b32 %r<3>; /* a\n; */ $L_1:";
        let expected = [
            "@",
            "!",
            "%p1",
            "ld.param.u64",
            "%rd1",
            ",",
            "[",
            "k_param_0",
            "+",
            "8",
            "]",
            ";",
            ".reg",
            ".b32",
            "%r",
            "<",
            "3",
            ">",
            ";",
            "$L_1",
            ":",
        ];
        assert_eq!(words(text), expected);
        assert_eq!(tokens(text).unwrap().last().map(|token| token.line), Some(3));
        assert_eq!(words(".file 1 \"a // b.cl\""), [".file", "1", "\"a // b.cl\""]);
    }

    #[test]
    fn what_does_not_end_is_told_with_its_line() {
        for wrong in ["\n/* never", "\n\"never", "\n/*/", "\nä"] {
            assert_eq!(tokens(wrong).unwrap_err().line, 2, "{wrong:?}");
        }
        assert_eq!(words(""), [""; 0]);
        assert_eq!(words("28%envreg3%"), ["28", "%envreg3", "%"]);
    }
}
