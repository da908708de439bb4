//! `onebuf network`: compares the machine's network settings with those that 100 Gb/s need.

mod card;
mod system;

use crate::{
    out::{Answer, Failure, Output, Result},
    screen::{Colour, Screen},
    table::{Cell, Table},
};
use serde::Serialize;
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Check the settings of sockets, network cards and processors for 100 Gb/s
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf network                          every network card that is up
  onebuf network --interface enp1s0
  onebuf network --json | jq -r '.settings[] | select(.state == \"wrong\") | .command'

Nothing is changed, and no rights are needed. Each setting that is wrong comes with the command that changes it,
until the next boot; docs/network.md has the reasons. A setting that cannot be read here is `unknown`.
Exit status: 0 all settings that could be read are right; 1 at least one is wrong.")]
pub struct NetworkArgs {
    /// Only this interface, physical or not
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The folder that has `proc` and `sys`
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum SettingState {
    Ok,
    Wrong,
    Unknown,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Setting {
    name: String,
    /// The network card, if it is a setting of one.
    interface: Option<String>,
    state: SettingState,
    /// The present value; `None` if it cannot be read.
    value: Option<String>,
    wanted: String,
    /// The command that sets it, or that shows it if it is unknown.
    command: String,
    /// What it is for.
    why: &'static str,
}

impl Setting {
    /// A setting whose value, if any, is right or not.
    fn new(name: &str, value: Option<String>, is_right: bool, wanted: impl Into<String>) -> Self {
        let state = match (&value, is_right) {
            (None, _) => SettingState::Unknown,
            (_, true) => SettingState::Ok,
            (_, false) => SettingState::Wrong,
        };
        let (name, wanted) = (name.to_owned(), wanted.into());
        Self { name, interface: None, state, value, wanted, command: String::new(), why: "" }
    }

    /// A number that must be at least this.
    fn at_least(name: &str, value: Option<u64>, least: u64) -> Self {
        let is_right = value.is_some_and(|value| value >= least);
        Self::new(name, value.map(|value| value.to_string()), is_right, format!(">= {least}"))
    }

    fn command(self, command: impl Into<String>) -> Self {
        Self { command: command.into(), ..self }
    }

    fn why(self, why: &'static str) -> Self {
        Self { why, ..self }
    }

    fn of(self, interface: &str) -> Self {
        Self { interface: Some(interface.to_owned()), ..self }
    }
}

/// Reads files below a folder that has `proc` and `sys`.
struct Files<'r>(&'r Path);

impl Files<'_> {
    /// A file's contents, without white space around them.
    fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.0.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a folder, in order.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }
}

/// The number of processors in a list such as `0-3,8`.
fn count(list: &str) -> u64 {
    processors(list).len() as u64
}

/// The processors of a list such as `0-3,8`.
fn processors(list: &str) -> Vec<u64> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u64>().ok();
        Some(number(first)?..=number(last)?.min(number(first)?.saturating_add(1 << 16)))
    };
    list.split(',').filter_map(part).flatten().collect()
}

/// Prints the settings itself, because they are the answer even if some are wrong.
pub fn run(args: &NetworkArgs, screen: Screen, output: Output) -> Result<()> {
    let files = Files(&args.root);
    let cards = card::chosen(&files, args.interface.as_deref())?;
    let mut settings = system::settings(&files);
    settings.extend(cards.iter().flat_map(|card| card.settings(&files)));
    let wrong = settings.iter().filter(|one| one.state == SettingState::Wrong).count();
    let text = text(&cards, &settings, screen);
    output.give(Answer { json: json!({ "interfaces": cards, "settings": settings }), text })?;
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::new("one setting is wrong")),
        many => Err(Failure::new(format!("{many} settings are wrong"))),
    }
}

fn text(cards: &[card::Card], settings: &[Setting], screen: Screen) -> String {
    let mut table =
        Table::new(["setting", "interface", "state", "value", "wanted"]).remark("command");
    for setting in settings {
        let (state, colour) = match setting.state {
            SettingState::Ok => ("ok", Colour::Green),
            SettingState::Wrong => ("wrong", Colour::Red),
            SettingState::Unknown => ("unknown", Colour::Yellow),
        };
        let command = if setting.state == SettingState::Ok { "" } else { &setting.command };
        let cells = [
            Cell::from(setting.name.as_str()),
            setting.interface.as_deref().unwrap_or("").into(),
            Cell::from(state).coloured(colour),
            setting.value.as_deref().unwrap_or("?").into(),
            setting.wanted.as_str().into(),
        ];
        table.row(cells, command);
    }
    let mut text = table.render(screen);
    if cards.is_empty() {
        text.push_str("No network card is up: only settings of the system were checked.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(processors("0-2,8"), [0, 1, 2, 8]);
        assert_eq!((count("3"), count(""), count("x"), count("5-2")), (1, 0, 0, 0));
        assert!(count("0-18446744073709551615") < 1 << 17);
    }
}
