//! Makes untrusted text safe for a terminal.

/// Returns the text as one line, with `U+FFFD` in place of every character that a terminal would interpret or not show: control
/// characters (escape sequences begin with one, in C0 or C1), characters that change the text direction, and zero-width
/// characters.
///
/// Used for the device names that drivers report, and for everything that another process sends.
///
/// ```
/// assert_eq!(onebuf_hal::printable("llvmpipe (LLVM 15, 256 bits)"), "llvmpipe (LLVM 15, 256 bits)");
/// assert_eq!(onebuf_hal::printable("a\x1b[2Jb\u{202e}c"), "a\u{fffd}[2Jb\u{fffd}c");
/// ```
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_obeyed(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_replaced() {
        let obeyed = "\0\x07\x08\t\n\r\x1b\x7f\u{80}\u{9b}\u{9d}\u{9f}\u{200b}\u{200e}\u{2028}\u{202a}\u{202e}\u{2066}\u{2069}\u{feff}\u{e0041}";
        for c in obeyed.chars() {
            assert_eq!(printable(&format!("a{c}b")), "a\u{fffd}b", "{:x}", c as u32);
        }
        let shown = "Iris(R) Xe, 24 EU – übung 漢字 µs";
        assert_eq!(printable(shown), shown);
    }
}
