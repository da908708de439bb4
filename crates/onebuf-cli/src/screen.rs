//! What the terminal can show, if there is one.

use std::{
    env,
    io::{self, IsTerminal},
    os::fd::AsFd,
};

#[derive(Clone, Copy, Debug, Default)]
pub struct Screen {
    /// Whether to colour: on a terminal that can, unless `NO_COLOR` says otherwise.
    pub colour: bool,
    /// Whether the cursor can go up: on a terminal that is more than a line printer.
    pub moves: bool,
    /// Columns; `None` where nothing limits a line.
    pub width: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
    Grey = 90,
}

impl Screen {
    pub fn of_stdout() -> Self {
        Self::of(io::stdout())
    }

    pub fn of_stderr() -> Self {
        Self::of(io::stderr())
    }

    fn of(stream: impl IsTerminal + AsFd) -> Self {
        if !stream.is_terminal() {
            return Self::default();
        }
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
        let size = rustix::termios::tcgetwinsize(stream).ok();
        let width = size.map(|size| size.ws_col.into()).filter(|&columns| columns > 0);
        Self { colour: !refused && !dumb, moves: !dumb, width }
    }

    pub fn paint(self, colour: Colour, text: &str) -> String {
        match self.colour {
            true => format!("\x1b[{}m{text}\x1b[0m", colour as u8),
            false => text.into(),
        }
    }
}

/// At most so many characters, and a sign that there were more.
pub fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.into();
    }
    text.chars().take(room.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::{Colour, Screen, cut};

    #[test]
    fn cuts_only_what_does_not_fit() {
        assert_eq!(cut("0123456789", 10), "0123456789");
        assert_eq!(cut("0123456789a", 10), "012345678…");
        assert_eq!(cut("µµµµµ", 4), "µµµ…");
        assert_eq!(cut(&"x".repeat(500), usize::MAX), "x".repeat(500));
    }

    #[test]
    fn no_colour_where_none_is_wanted() {
        assert_eq!(Screen::default().paint(Colour::Red, "refuted"), "refuted");
    }
}
