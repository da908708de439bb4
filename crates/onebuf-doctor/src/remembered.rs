//! The verdicts during a run of the doctor: loaded once, saved after each experiment. A cache that cannot be used does not
//! stop the run; its errors are reported at the end.

use super::{Cached, Doctor, Verdicts};
use onebuf_core::private_files;
use onebuf_hal::{Error, Result};
use std::path::PathBuf;

pub(super) struct Remembered {
    folder: Result<PathBuf>,
    pub verdicts: Verdicts,
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
        Self { folder, verdicts, not_read, not_saved: None, is_written: false }
    }

    /// Saves the verdicts so far, so that an interrupted run keeps them. After a failure the next call tries again.
    pub fn save(&mut self) {
        let saved = self.folder.clone().and_then(|folder| self.verdicts.save(&folder));
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
