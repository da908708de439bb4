//! `onebuf cache`: where verdicts are remembered, and forgetting them.

use crate::out::{Answer, Result};
use clap::Subcommand;
use onebuf::doctor::Verdicts;
use serde_json::json;

/// Show or clear what the doctor remembers
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf cache path
  onebuf cache clear              the next `onebuf doctor` makes every experiment again")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the folder
    Path,
    /// Forget every verdict
    Clear,
}

pub fn run(args: &Args) -> Result<Answer> {
    let folder = Verdicts::user_folder()?;
    let path = folder.display().to_string();
    Ok(match args.action {
        Action::Path => Answer { json: json!({ "path": path }), text: path + "\n" },
        Action::Clear => {
            let cleared = Verdicts::clear(&folder)?;
            let did = if cleared { "cleared" } else { "nothing to clear in" };
            let text = format!("{did} {path}\n");
            Answer { json: json!({ "path": path, "cleared": cleared }), text }
        }
    })
}
