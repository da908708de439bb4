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
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

const FILE: &str = "verdicts.json";
const SCHEMA: u32 = 1;
/// No file of ours is larger: a verdict takes less than a kilobyte.
const MOST_BYTES: u64 = 16 << 20;

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
        // Nothing that blocks is waited for.
        let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let read = file.and_then(|file| cache::read_whole(&file, MOST_BYTES));
        let text = match read {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unreadable(&path, &error.to_string())),
        };
        cache::check_private(folder)?;
        Self::parse(&text).map_err(|why| unreadable(&path, &why))
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let verdicts: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        match verdicts.schema {
            SCHEMA => Ok(verdicts),
            other => Err(format!("schema {other} where {SCHEMA} is known")),
        }
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

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests {
    use super::*;
    use crate::{
        Rung,
        tests::fuzz::{Bound, Form, Target},
        topology::{Envelope, State},
    };
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn fuzz_verdicts() {
        let envelope = Envelope { min_bytes: 1, max_bytes: 4096, sizes: vec![1, 4096] };
        let verdict = Verdict {
            state: State::Proven,
            zero_copy: Some(true),
            why: "every page".into(),
            sync: Some(Rung::Event),
            handoff_us: Some(1.5),
            gb_per_s: Some(2.0),
            envelope: Some(envelope),
        };
        let both = [("a|b|host_pointer", verdict), ("b|a|staged", Verdict::default())];
        let verdicts = both.map(|(key, verdict)| (key.to_owned(), verdict)).into();
        let seeds = [serde_json::to_vec(&Verdicts { schema: SCHEMA, verdicts }).unwrap()];
        Target {
            name: "verdicts",
            bound: Bound { per_byte: 32, fixed: 64 << 10 },
            input: &|random, most| Form::Text.changed(random, &seeds, most),
            parse: &|text| Verdicts::parse(text).is_ok(),
        }
        .run();
    }

    #[test]
    fn what_is_too_large_or_no_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let path = folder.path().join(FILE);
        fs::File::create(&path).unwrap().set_len(MOST_BYTES + 1).unwrap();
        let why = Verdicts::load(folder.path()).unwrap_err().to_string();
        assert!(why.contains("larger than") && why.contains("onebuf cache clear"), "{why}");
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        let why = Verdicts::load(folder.path()).unwrap_err().to_string();
        assert!(why.contains("not a file"), "{why}");
    }
}
