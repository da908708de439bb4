//! Cached verdicts: a file in the user's cache folder.

use crate::{
    identity, private_files,
    topology::{Node, Verdict},
};
use onebuf_hal::{Error, Result, RouteKind};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The key of grafting verdicts, in place of a route kind. Its number is incremented whenever that experiment changes.
pub const GRAFT: &str = "graft-1";

/// The key of choices between two ways to compute the same. Its number is incremented whenever their measurement changes.
const CHOICE: &str = "choice-1";

/// The key of verdicts on MPI libraries that are given device memory. Its number is incremented whenever that experiment changes.
const MPI: &str = "mpi-1";

const FILE: &str = "verdicts.json";
const SCHEMA: u32 = 1;
/// The largest file that onebuf writes: a verdict takes less than a kilobyte.
const MOST_BYTES: u64 = 16 << 20;
const NOT_SAVED: &str = "verdicts are not saved; free disk space, make the folder writable, or set XDG_CACHE_HOME to another one";

/// Verdicts by the identity of everything they depend on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdicts {
    schema: u32,
    verdicts: BTreeMap<String, Verdict>,
}

impl Verdicts {
    /// Returns the verdict on a route.
    pub fn find(&self, from: &Node, to: &Node, kind: RouteKind) -> Option<Verdict> {
        if self.is_empty() {
            return None; // avoids the system calls that a key needs
        }
        self.verdicts.get(&identity::key(from, to, kind)).cloned()
    }

    /// Stores the verdict on a route.
    pub fn insert(&mut self, from: &Node, to: &Node, kind: RouteKind, verdict: Verdict) {
        self.verdicts.insert(identity::key(from, to, kind), verdict);
    }

    /// Returns the verdict on grafting programs of one device onto another.
    pub fn find_graft(&self, from: &Node, to: &Node) -> Option<Verdict> {
        if self.is_empty() {
            return None;
        }
        self.verdicts.get(&identity::key(from, to, GRAFT)).cloned()
    }

    /// Stores the verdict on grafting programs of one device onto another.
    pub fn insert_graft(&mut self, from: &Node, to: &Node, verdict: Verdict) {
        self.verdicts.insert(identity::key(from, to, GRAFT), verdict);
    }

    /// Returns the verdict on a choice between two ways to compute the same on a device. `what` names the ways and the shape.
    #[doc(hidden)]
    pub fn find_choice(&self, device: &Node, what: &str) -> Option<Verdict> {
        if self.is_empty() {
            return None;
        }
        self.verdicts.get(&identity::key(device, device, format_args!("{CHOICE} {what}"))).cloned()
    }

    /// Stores the verdict on a choice: proven if the first way is the faster one.
    #[doc(hidden)]
    pub fn insert_choice(&mut self, device: &Node, what: &str, verdict: Verdict) {
        let key = identity::key(device, device, format_args!("{CHOICE} {what}"));
        self.verdicts.insert(key, verdict);
    }

    /// Returns the verdict on an MPI library that is given a device's memory. `library` identifies the library, its
    /// files and the variables that choose how it moves bytes.
    #[doc(hidden)]
    pub fn find_mpi(&self, device: &Node, library: &str) -> Option<Verdict> {
        if self.is_empty() {
            return None;
        }
        self.verdicts.get(&identity::key(device, device, format_args!("{MPI} {library}"))).cloned()
    }

    /// Stores the verdict on an MPI library that is given a device's memory.
    #[doc(hidden)]
    pub fn insert_mpi(&mut self, device: &Node, library: &str, verdict: Verdict) {
        self.verdicts
            .insert(identity::key(device, device, format_args!("{MPI} {library}")), verdict);
    }

    /// The number of verdicts.
    pub fn len(&self) -> usize {
        self.verdicts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.verdicts.is_empty()
    }

    /// Adds verdicts. They replace those on the same routes.
    pub fn extend(&mut self, others: Verdicts) {
        self.verdicts.extend(others.verdicts);
    }

    /// Loads the verdicts of a folder. A missing file has none.
    ///
    /// Owner, mode, kind and size of the opened file are checked before it is read. A FIFO or a device in its place is refused
    /// without blocking.
    ///
    /// # Errors
    /// [`Error::Cache`] for a file that cannot be read or that [`Verdicts::save`] did not write, and for a file or folder that
    /// other users can write to. The caller can continue without verdicts; the next save replaces the file.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let unusable = |what: &str| unreadable(&path, what);
        let mut file = match private_files::open_private(&path, MOST_BYTES) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(private_files::unusable(
                    folder,
                    "not a folder: remove what is there".into(),
                ));
            }
            Err(error) => return Err(unusable(&error.to_string())),
        };
        private_files::check_private(folder)?;
        let bytes = private_files::read_private(&mut file, MOST_BYTES);
        let bytes = bytes.map_err(|error| unusable(&error.to_string()))?;
        Self::parse(&bytes).map_err(|why| unusable(&why))
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty".into());
        }
        let verdicts: Self =
            serde_json::from_slice(text).map_err(|error| format!("cut off or damaged: {error}"))?;
        match verdicts.schema {
            SCHEMA => Ok(verdicts),
            other => Err(format!("schema {other}, expected {SCHEMA}")),
        }
    }

    /// Loads the verdicts for a hub. An error becomes a note, and the hub continues without verdicts.
    pub(crate) fn load_or_note(folder: Option<&Path>) -> (Self, Option<Error>) {
        let loaded = match folder {
            Some(folder) => Self::load(folder),
            None => private_files::user_folder().and_then(|folder| Self::load(&folder)),
        };
        match loaded {
            Ok(verdicts) => (verdicts, None),
            Err(error) => {
                tracing::warn!(%error, "cached verdicts are not used");
                (Self::default(), Some(error))
            }
        }
    }

    /// Adds these verdicts to the folder's. The file is replaced as a whole, and is on disk when this returns. Processes that save
    /// at the same time take turns, so that none loses its verdicts, unless one of them stops for two seconds while it
    /// saves. Anything unusable in the file's place is replaced, except a folder.
    ///
    /// # Errors
    /// [`Error::Cache`] if the folder cannot be created or written, or if other users can write to it.
    pub fn save(&self, folder: &Path) -> Result<()> {
        self.write(folder).map_err(|error| match error {
            Error::Cache { path, reason } => {
                Error::Cache { path, reason: format!("{reason}; {NOT_SAVED}") }
            }
            other => other,
        })
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        private_files::make_private(folder)?;
        let _turn = private_files::lock(folder);
        // An unreadable file has nothing worth keeping.
        let mut all = Self::load(folder).unwrap_or_default();
        all.schema = SCHEMA;
        all.verdicts.extend(self.verdicts.clone());
        let failed = |what: String| private_files::unusable(&path, what);
        let text = serde_json::to_string_pretty(&all).map_err(|error| failed(error.to_string()))?;
        let written = private_files::replace_durably(&path, &[text.as_bytes()]);
        written.map_err(|error| failed(error.to_string()))
    }

    /// Removes the verdicts in a folder. Returns whether there were any. The file is removed without being opened, whatever it
    /// is.
    ///
    /// # Errors
    /// [`Error::Cache`] for a file that cannot be removed.
    pub fn clear(folder: &Path) -> Result<bool> {
        let path = folder.join(FILE);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(_) if path.is_dir() => Err(private_files::unusable(
                &path,
                "a folder where a file is expected: remove it".into(),
            )),
            Err(error) => {
                Err(private_files::unusable(&path, format!("cannot be removed: {error}")))
            }
        }
    }

    /// Returns the folder of the user's verdicts: the user's cache folder.
    pub fn user_folder() -> Result<PathBuf> {
        private_files::user_folder()
    }

    /// The size of the verdicts' file.
    pub(crate) fn bytes(folder: &Path) -> u64 {
        let found = fs::symlink_metadata(folder.join(FILE));
        found.map_or(0, |meta| if meta.is_file() { meta.len() } else { 0 })
    }
}

fn unreadable(path: &Path, what: &str) -> Error {
    let go_on = "the verdicts in it are not used; `onebuf doctor` replaces it, `onebuf cache clear` removes it";
    private_files::unusable(path, format!("{what}; {go_on}"))
}

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests {
    use super::*;
    use crate::topology::{Envelope, VerdictState};
    use onebuf_hal::{
        SyncMethod,
        testing::fuzz::{Bound, Form, Target},
    };
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn fuzz_verdicts() {
        let envelope = Envelope { min_bytes: 1, max_bytes: 4096, sizes: vec![1, 4096] };
        let verdict = Verdict {
            state: VerdictState::Proven,
            zero_copy: Some(true),
            why: "every page".into(),
            sync: Some(SyncMethod::Event),
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
    fn grafts_and_routes_are_judged_apart_and_later_verdicts_replace_earlier_ones() {
        let hub = crate::builder().only(["host"]).verdicts(Default::default()).build().unwrap();
        let host = hub.topology().node(hub.host_index());
        let found = |why: &str| Verdict { why: why.into(), ..Verdict::default() };
        let mut verdicts = Verdicts::default();
        verdicts.insert(host, host, RouteKind::Same, found("a route"));
        assert_eq!(verdicts.find_graft(host, host), None);
        verdicts.insert_graft(host, host, found("a graft"));
        let mut later = Verdicts::default();
        later.insert_graft(host, host, found("a later graft"));
        assert_eq!(verdicts.find_graft(host, host), Some(found("a graft")));
        verdicts.extend(later);
        assert_eq!(verdicts.find_graft(host, host), Some(found("a later graft")));
        assert_eq!(verdicts.find(host, host, RouteKind::Same), Some(found("a route")));
    }

    /// Without the lock, two that load the same file at once lose what the other adds.
    #[test]
    fn savers_at_the_same_time_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        const EACH: usize = 12;
        std::thread::scope(|scope| {
            for saver in 0..4 {
                let folder = folder.path();
                scope.spawn(move || {
                    for i in 0..EACH {
                        let verdicts = [(format!("{saver} {i}"), Verdict::default())].into();
                        Verdicts { schema: SCHEMA, verdicts }.save(folder).unwrap();
                    }
                });
            }
        });
        assert_eq!(Verdicts::load(folder.path()).unwrap().len(), 4 * EACH);
    }

    /// A process that was stopped while it held the lock does not block others for good.
    #[test]
    fn a_lock_that_stays_taken_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let _held = private_files::lock(folder.path()).expect("the folder is not locked yet");
        let verdicts = [("key".to_owned(), Verdict::default())].into();
        Verdicts { schema: SCHEMA, verdicts }.save(folder.path()).unwrap();
        assert_eq!(Verdicts::load(folder.path()).unwrap().len(), 1);
    }

    #[test]
    fn what_is_too_large_or_no_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let path = folder.path().join(FILE);
        fs::File::create(&path).unwrap().set_len(MOST_BYTES + 1).unwrap();
        let why = Verdicts::load(folder.path()).unwrap_err().to_string();
        assert!(why.contains("too large") && why.contains("onebuf cache clear"), "{why}");
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        let why = Verdicts::load(folder.path()).unwrap_err().to_string();
        assert!(why.contains("not a regular file"), "{why}");
    }
}
