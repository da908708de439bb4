//! Aligned tables, with room for a remark on each row.

use crate::screen::{self, Colour, Screen};

const GAP: &str = "  ";

/// Minimum width of a column that is shortened.
const NARROWEST: usize = 12;

/// One value of a row.
pub struct Cell {
    text: String,
    colour: Option<Colour>,
    right: bool,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), colour: None, right: false }
    }
}

impl Cell {
    /// A number: its column is right-aligned.
    pub fn number(text: impl Into<String>) -> Self {
        Self { right: true, ..Cell::from(text) }
    }

    pub fn coloured(self, colour: Colour) -> Self {
        Self { colour: Some(colour), ..self }
    }
}

/// Rows with a head. The remark is the last column if all remarks fit, otherwise a separate line.
pub struct Table {
    head: Vec<&'static str>,
    remark: &'static str,
    rows: Vec<(Vec<Cell>, String)>,
}

impl Table {
    pub fn new(head: impl Into<Vec<&'static str>>) -> Self {
        Self { head: head.into(), remark: "", rows: Vec::new() }
    }

    /// The heading of the remark.
    pub fn remark(self, name: &'static str) -> Self {
        Self { remark: name, ..self }
    }

    pub fn row(&mut self, cells: impl Into<Vec<Cell>>, remark: impl Into<String>) {
        self.rows.push((cells.into(), remark.into()));
    }

    /// Renders the table as whole lines.
    pub fn render(&self, screen: Screen) -> String {
        let widths = self.widths(screen);
        let used: usize = widths.iter().map(|width| width + GAP.len()).sum();
        let longest = self.rows.iter().map(|(_, remark)| length(remark)).max().unwrap_or(0);
        let beside = screen.width.is_none_or(|width| used + longest <= width);
        let mut head: Vec<String> = (0..self.head.len())
            .map(|column| pad(self.head[column], widths[column], self.is_right(column)))
            .collect();
        if beside {
            head.push(self.remark.into());
        }
        let mut text = screen.paint(Colour::Grey, head.join(GAP).trim_end()) + "\n";
        for (cells, remark) in &self.rows {
            let mut line: Vec<String> =
                cells.iter().zip(&widths).map(|(cell, &width)| cell.shown(width, screen)).collect();
            if beside {
                line.push(remark.clone());
            }
            text += line.join(GAP).trim_end();
            text += "\n";
            if !beside && !remark.is_empty() {
                let indent = GAP.len() * 2;
                let room = screen.width.map_or(usize::MAX, |width| width.saturating_sub(indent));
                let below = screen.paint(Colour::Grey, &screen::cut(remark, room));
                text += &format!("{:indent$}{below}\n", "");
            }
        }
        text
    }

    /// The width of each column; the widest is shortened if the screen is too narrow.
    fn widths(&self, screen: Screen) -> Vec<usize> {
        let cells = |column: usize| {
            self.rows.iter().filter_map(move |(cells, _)| Some(length(&cells.get(column)?.text)))
        };
        let head = self.head.iter().enumerate();
        let mut widths: Vec<usize> =
            head.map(|(column, name)| cells(column).fold(length(name), usize::max)).collect();
        let all = widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
        let excess = all.saturating_sub(screen.width.unwrap_or(all));
        if let Some(widest) = widths.iter_mut().max() {
            *widest = widest.saturating_sub(excess).max(NARROWEST.min(*widest));
        }
        widths
    }

    fn is_right(&self, column: usize) -> bool {
        self.rows.iter().any(|(cells, _)| cells.get(column).is_some_and(|cell| cell.right))
    }
}

impl Cell {
    /// The cell's text, padded before colouring, because escape sequences have no width.
    fn shown(&self, width: usize, screen: Screen) -> String {
        let text = screen::cut(&self.text, width);
        let padded = pad(&text, width, self.right);
        match self.colour {
            Some(colour) => padded.replacen(&text, &screen.paint(colour, &text), 1),
            None => padded,
        }
    }
}

fn pad(text: &str, width: usize, right: bool) -> String {
    let space = " ".repeat(width.saturating_sub(length(text)));
    if right { space + text } else { text.to_owned() + &space }
}

/// Width in columns, not characters.
fn length(text: &str) -> usize {
    screen::width(text)
}

#[cfg(test)]
mod tests {
    use super::{Cell, Colour, Screen, Table};

    fn table() -> Table {
        let mut table = Table::new(["to", "µs"]).remark("why");
        table.row([Cell::from("host"), Cell::number("3.5")], "every page");
        table.row([Cell::from("opencl:0").coloured(Colour::Green), Cell::number("12.0")], "");
        table
    }

    #[test]
    fn remarks_stand_beside_where_they_fit() {
        let text = table().render(Screen::default());
        assert_eq!(text, "to          µs  why\nhost       3.5  every page\nopencl:0  12.0\n");
    }

    #[test]
    fn remarks_stand_below_where_they_do_not() {
        let text = table().render(Screen { colour: false, width: Some(20), ..Screen::default() });
        assert_eq!(text, "to          µs\nhost       3.5\n    every page\nopencl:0  12.0\n");
    }

    #[test]
    fn a_remark_fits_up_to_the_last_column() {
        let lines = |width| {
            let screen = Screen { colour: false, width: Some(width), ..Screen::default() };
            table().render(screen).lines().count()
        };
        assert_eq!(["opencl:0  12.0  every page".len(), 25].map(lines), [3, 4]);
    }

    #[test]
    fn the_widest_of_three_columns_gives_way() {
        let mut table = Table::new(["id", "n", "name"]);
        let name = "a processor with a long name";
        table.row(["host", "3", name].map(Cell::from), "");
        let text = table.render(Screen { colour: false, width: Some(30), ..Screen::default() });
        assert_eq!(text, "id    n  name\nhost  3  a processor with a l…\n");
    }

    #[test]
    fn the_widest_column_gives_way() {
        let mut table = Table::new(["id", "name"]);
        table.row([Cell::from("host"), Cell::from("a processor with a long name")], "");
        let text = table.render(Screen { colour: false, width: Some(22), ..Screen::default() });
        assert_eq!(text, "id    name\nhost  a processor wit…\n");
    }

    #[test]
    fn wide_characters_do_not_move_columns() {
        let mut table = Table::new(["name", "n"]);
        table.row([Cell::from("フレーム"), Cell::number("1")], "");
        table.row([Cell::from("frame"), Cell::number("2")], "");
        assert_eq!(table.render(Screen::default()), "name      n\nフレーム  1\nframe     2\n");
    }

    #[test]
    fn colour_does_not_move_columns() {
        let text = table().render(Screen { colour: true, width: None, ..Screen::default() });
        assert!(text.contains("\x1b[32mopencl:0\x1b[0m  12.0\n"), "{text}");
    }
}
