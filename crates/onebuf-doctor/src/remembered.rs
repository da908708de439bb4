//! The verdicts during a run of the doctor: loaded once; new ones are saved after each experiment. A cache that cannot be used
//! does not stop the run; its errors are reported at the end.
//!
//! Only new verdicts are saved. Loaded ones may have been replaced meanwhile by another doctor.

use super::{Cached, Doctor, Verdicts};
use onebuf_core::{
    private_files,
    topology::{Node, Verdict, VerdictState},
};
use onebuf_hal::{Error, Result, RouteKind};
use std::path::PathBuf;

pub(super) struct Remembered {
    folder: Result<PathBuf>,
    pub verdicts: Verdicts,
    /// Those of this run.
    new: Verdicts,
    not_read: Option<Error>,
    not_saved: Option<Error>,
    /// Whether this run has written the file.
    is_written: bool,
}

impl Remembered {
    pub fn open(doctor: &Doctor) -> Self {
        let folder = doctor.cache.clone().map_or_else(private_files::user_folder, Ok);
        let loaded = folder.clone().and_then(|folder| Verdicts::load(&folder));
        let (verdicts, not_read) = match loaded {
            Ok(_) if doctor.fresh => (Verdicts::default(), None),
            Ok(verdicts) => (verdicts, None),
            Err(error) => (Verdicts::default(), Some(error)),
        };
        let new = Verdicts::default();
        Self { folder, verdicts, new, not_read, not_saved: None, is_written: false }
    }

    /// Adds a verdict on a route and saves it, unless the route is only declared.
    pub fn note(&mut self, from: &Node, to: &Node, kind: RouteKind, verdict: &Verdict) {
        if verdict.state != VerdictState::Declared {
            self.add(|verdicts| verdicts.insert(from, to, kind, verdict.clone()));
        }
    }

    /// Adds a verdict on a graft and saves it, unless it is only declared.
    pub fn note_graft(&mut self, from: &Node, to: &Node, verdict: &Verdict) {
        if verdict.state != VerdictState::Declared {
            self.add(|verdicts| verdicts.insert_graft(from, to, verdict.clone()));
        }
    }

    fn add(&mut self, insert: impl Fn(&mut Verdicts)) {
        insert(&mut self.verdicts);
        insert(&mut self.new);
        self.save();
    }

    /// Saves the new verdicts so far, so that an interrupted run keeps them. After a failure the next call tries again.
    fn save(&mut self) {
        let saved = self.folder.clone().and_then(|folder| self.new.save(&folder));
        self.is_written |= saved.is_ok();
        self.not_saved = saved.err();
    }

    /// Replaces a file that could not be read, even without new verdicts, and returns the errors.
    pub fn close(mut self) -> Cached {
        if self.not_read.is_some() && !self.is_written && self.not_saved.is_none() {
            self.save();
        }
        for error in self.not_read.iter().chain(&self.not_saved) {
            tracing::warn!(%error, "the doctor's cache cannot be used");
        }
        let Self { verdicts, not_read, not_saved, .. } = self;
        Cached { verdicts, not_read, not_saved }
    }
}

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests {
    use super::*;
    use onebuf_core::fake::FakeConfig;
    use std::{fs, os::unix::fs::PermissionsExt};

    /// A run must not write back what it loaded at its start.
    #[test]
    fn what_another_doctor_saved_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let builder = onebuf::builder().only(["host"]);
        let hub = builder.verdicts(Default::default()).fake(FakeConfig::default()).build().unwrap();
        let [host, fake] = ["host", "fake:0"].map(|id| hub.device(id).unwrap().index());
        let [host, fake] = [host, fake].map(|device| hub.topology().node(device).clone());
        let doctor = Doctor::new("helper").unwrap().cache(folder.path());
        let verdict = |state, why: &str| Verdict { state, why: why.into(), ..Verdict::default() };
        let kind = RouteKind::HostPointer;
        let (proven, refuted) = (VerdictState::Proven, VerdictState::Refuted);
        Remembered::open(&doctor).note(&host, &fake, kind, &verdict(proven, "before"));
        let mut long = Remembered::open(&doctor);
        Remembered::open(&doctor).note(&host, &fake, kind, &verdict(refuted, "meanwhile"));
        long.note(&fake, &host, kind, &verdict(proven, "at last"));
        long.note(&fake, &host, RouteKind::Staged, &Verdict::default());
        let saved = Verdicts::load(folder.path()).unwrap();
        assert_eq!(saved.find(&host, &fake, kind).unwrap().why, "meanwhile");
        assert_eq!(saved.find(&fake, &host, kind).unwrap().why, "at last");
        assert_eq!(saved.len(), 2, "a declared route is not saved");
    }
}
