//! `onebuf cache`: shows and clears stored verdicts and compiled programs.

use crate::{
    out::{Answer, Result},
    units,
};
use clap::Subcommand;
use onebuf::cache::{self, Contents};
use serde_json::{Value, json};
use std::path::Path;

/// Show or clear the cache of verdicts and compiled programs
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf cache path
  onebuf cache info               number of verdicts and programs, and their size
  onebuf cache clear              the next `onebuf doctor` repeats all experiments")]
pub struct CacheArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the path of the folder
    Path,
    /// Print the contents of the folder
    Info,
    /// Remove all verdicts and programs
    Clear,
}

pub fn run(args: &CacheArgs) -> Result<Answer> {
    let folder = cache::user_folder()?;
    let path = folder.display().to_string();
    Ok(match args.action {
        Action::Path => Answer { json: json!({ "path": path }), text: path + "\n" },
        Action::Info => {
            let held = cache::contents(&folder)?;
            let text = format!("{path}: {}\n", in_words(&held));
            Answer { json: fields(&folder, &held), text }
        }
        Action::Clear => cleared(&folder)?,
    })
}

fn cleared(folder: &Path) -> Result<Answer> {
    let held = cache::clear(folder)?;
    // Unreadable verdicts (`None`) count as contents that were removed.
    let any = held != Contents { verdicts: Some(0), ..Contents::default() };
    let path = folder.display();
    let text = match any {
        true => format!("cleared {path}: {}\n", in_words(&held)),
        false => format!("nothing to clear in {path}\n"),
    };
    let mut json = fields(folder, &held);
    json["cleared"] = json!(any);
    Ok(Answer { json, text })
}

fn fields(folder: &Path, held: &Contents) -> Value {
    let Contents { verdicts, programs, bytes } = held;
    json!({ "path": folder, "verdicts": verdicts, "programs": programs, "bytes": bytes })
}

fn in_words(held: &Contents) -> String {
    let verdicts = match held.verdicts {
        Some(1) => "1 verdict".into(),
        Some(n) => format!("{n} verdicts"),
        None => "unreadable verdicts".into(),
    };
    let programs = if held.programs == 1 { "program" } else { "programs" };
    format!("{verdicts}, {} {programs}, {}", held.programs, units::bytes(held.bytes))
}
