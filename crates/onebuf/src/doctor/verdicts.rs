//! Remembered verdicts: a file in the user's cache folder.

use super::{graft, identity};
use crate::{
    Error, Result, RouteKind, cache,
    topology::{Node, Verdict},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

const FILE: &str = "verdicts.json";
const SCHEMA: u32 = 1;

/// Verdicts by everything they depend on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdicts {
    schema: u32,
    verdicts: BTreeMap<String, Verdict>,
}

impl Verdicts {
    /// What is remembered of a route.
    pub fn find(&self, from: &Node, to: &Node, kind: RouteKind) -> Option<Verdict> {
        if self.is_empty() {
            return None; // before the system is asked for what a key depends on
        }
        self.verdicts.get(&identity::key(from, to, kind)).cloned()
    }

    /// Remembers.
    pub fn insert(&mut self, from: &Node, to: &Node, kind: RouteKind, verdict: Verdict) {
        self.verdicts.insert(identity::key(from, to, kind), verdict);
    }

    /// What is remembered of grafting programs of one device on another.
    pub fn find_graft(&self, from: &Node, to: &Node) -> Option<Verdict> {
        if self.is_empty() {
            return None;
        }
        self.verdicts.get(&identity::key(from, to, graft::KIND)).cloned()
    }

    /// Remembers that.
    pub fn insert_graft(&mut self, from: &Node, to: &Node, verdict: Verdict) {
        self.verdicts.insert(identity::key(from, to, graft::KIND), verdict);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.verdicts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.verdicts.is_empty()
    }

    /// Loads them from a folder; none when there is no file.
    ///
    /// # Errors
    /// [`Error::Cache`] for a file that cannot be read or is not what [`Verdicts::save`] wrote, or a
    /// folder that others can write to.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unreadable(&path, &error.to_string())),
        };
        cache::check_private(folder)?;
        let verdicts: Self =
            serde_json::from_str(&text).map_err(|e| unreadable(&path, &e.to_string()))?;
        if verdicts.schema != SCHEMA {
            return Err(unreadable(
                &path,
                &format!("schema {} where {SCHEMA} is known", verdicts.schema),
            ));
        }
        Ok(verdicts)
    }

    /// The same for a hub, which goes on without: the error becomes a note.
    pub(crate) fn load_or_note(folder: Option<&Path>) -> (Self, Option<Error>) {
        let loaded = match folder {
            Some(folder) => Self::load(folder),
            None => cache::user_folder().and_then(|folder| Self::load(&folder)),
        };
        match loaded {
            Ok(verdicts) => (verdicts, None),
            Err(error) => {
                tracing::warn!(%error, "no verdicts");
                (Self::default(), Some(error))
            }
        }
    }

    /// Adds them to what the folder holds. The file is replaced as a whole; of two that save at the same
    /// moment, the later wins.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        cache::make_private(folder)?;
        // A file that cannot be read holds nothing worth keeping.
        let mut all = Self::load(folder).unwrap_or_default();
        all.schema = SCHEMA;
        all.verdicts.extend(self.verdicts.clone());
        let text =
            serde_json::to_string_pretty(&all).map_err(|e| unreadable(&path, &e.to_string()))?;
        cache::replace(&path, &[text.as_bytes()]).map_err(|e| unreadable(&path, &e.to_string()))
    }

    /// Forgets everything remembered in a folder. Returns whether there was anything.
    pub fn clear(folder: &Path) -> Result<bool> {
        let path = folder.join(FILE);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unreadable(&path, &error.to_string())),
        }
    }

    /// Where the user's verdicts are kept: [`cache::user_folder`].
    pub fn user_folder() -> Result<PathBuf> {
        cache::user_folder()
    }

    /// The size of their file.
    pub(crate) fn bytes(folder: &Path) -> u64 {
        fs::metadata(folder.join(FILE)).map_or(0, |meta| meta.len())
    }
}

fn unreadable(path: &Path, what: &str) -> Error {
    Error::Cache {
        path: path.display().to_string(),
        reason: format!("{what}; `onebuf cache clear` removes it, `onebuf doctor` makes a new one"),
    }
}
