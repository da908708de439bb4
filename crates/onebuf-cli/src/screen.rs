//! Capabilities of the terminal, if there is one.

use std::{
    env,
    io::{self, IsTerminal},
    os::fd::AsFd,
};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

#[derive(Clone, Copy, Debug, Default)]
pub struct Screen {
    /// Whether to use colour: on a terminal that supports it, unless `NO_COLOR` is set.
    pub colour: bool,
    /// Whether the cursor can be moved up: on a terminal that is not dumb.
    pub moves: bool,
    /// Number of columns; `None` if lines are not limited.
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

/// How many columns a text takes: some characters take two, and some none.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Cuts a text to this many columns, with a sign that text is missing.
pub fn cut(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.into();
    }
    let mut left = room.saturating_sub(1);
    let fits = |c: &char| {
        let fits = c.width().unwrap_or(0) <= left;
        left = left.saturating_sub(c.width().unwrap_or(0));
        fits
    };
    text.chars().take_while(fits).chain(['…'].into_iter().take(room)).collect()
}

/// Lines without colour, none longer than the screen is wide.
pub fn fit(text: &str, screen: Screen) -> String {
    match screen.width {
        Some(room) => text.lines().map(|line| cut(line, room) + "\n").collect(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Colour, Screen, cut, fit, width};

    #[test]
    fn cuts_only_what_does_not_fit() {
        assert_eq!(cut("0123456789", 10), "0123456789");
        assert_eq!(cut("0123456789a", 10), "012345678…");
        assert_eq!(cut("µµµµµ", 4), "µµµ…");
        assert_eq!(cut(&"x".repeat(500), usize::MAX), "x".repeat(500));
    }

    /// Characters that take two columns, and marks that take none.
    #[test]
    fn cuts_by_columns() {
        assert_eq!((width("フレーム"), cut("フレーム", 8).as_str()), (8, "フレーム"));
        assert_eq!((cut("フレーム", 7), cut("フレーム", 6)), ("フレー…".into(), "フレ…".into()));
        assert_eq!(
            (cut("e\u{301}e\u{301}e\u{301}", 3).chars().count(), cut("ab", 0)),
            (6, "".into())
        );
        for room in 0..20 {
            let cut = cut("aフb レーム e\u{301} x", room);
            assert!(width(&cut) <= room, "{cut} in {room}");
        }
    }

    #[test]
    fn only_a_screen_limits_lines() {
        let (text, narrow) = ("0123456789\nab\n", Screen { width: Some(4), ..Screen::default() });
        assert_eq!(fit(text, Screen::default()), text);
        assert_eq!(fit(text, narrow), "012…\nab\n");
    }

    #[test]
    fn no_colour_where_none_is_wanted() {
        assert_eq!(Screen::default().paint(Colour::Red, "refuted"), "refuted");
    }
}
