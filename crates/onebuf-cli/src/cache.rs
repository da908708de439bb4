//! `onebuf cache`: where verdicts and compiled programs are remembered, and forgetting them.

use crate::{
    out::{Answer, Result},
    units,
};
use clap::Subcommand;
use onebuf::cache::{self, Contents};
use serde_json::{Value, json};
use std::path::Path;

/// Show or clear what is remembered: the doctor's verdicts, and compiled programs
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf cache path
  onebuf cache info               how many verdicts and programs, and how many bytes
  onebuf cache clear              the next `onebuf doctor` makes every experiment again")]
pub struct CacheArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the folder
    Path,
    /// Say what the folder holds
    Info,
    /// Forget every verdict and every program
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
    // Verdicts that could not be read were there, and are gone.
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
        None => "verdicts that cannot be read".into(),
    };
    let programs = if held.programs == 1 { "program" } else { "programs" };
    format!("{verdicts}, {} {programs}, {}", held.programs, units::bytes(held.bytes))
}
