//! A benchmark, and its cases on the devices of a machine.

use crate::{Bench, Row, Stop};

type RunCase = Box<dyn Fn(&Bench) -> Result<Row, Stop>>;

/// One benchmark on one device or pair.
pub struct Case {
    /// The name of its row.
    pub name: String,
    pub(crate) run: RunCase,
}

impl Case {
    /// A benchmark that can run here.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn(&Bench) -> Result<Row, Stop> + 'static,
    ) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// A benchmark that cannot run here.
    pub fn absent(name: impl Into<String>, why: impl Into<String>) -> Self {
        let why = why.into();
        Self::new(name, move |_| Err(Stop::Absent(why.clone())))
    }
}

/// A kind of benchmark, for all devices or pairs of a machine.
pub struct Workload {
    /// Its name: that of its rows, without the devices' ids.
    pub name: &'static str,
    /// What it measures, in one line.
    pub about: &'static str,
    /// The cases on this machine; an absent one if there are none.
    pub cases: fn(&Bench) -> Vec<Case>,
}

impl Workload {
    /// The short name, without the devices' ids.
    pub fn short(&self) -> &'static str {
        self.name.split_once("_<").map_or(self.name, |(short, _)| short)
    }

    /// Whether a name selects all its cases.
    pub(crate) fn is_meant(&self, name: &str) -> bool {
        name == self.name || name == self.short()
    }

    /// Whether it could have a case of this name on some machine.
    pub(crate) fn could_have(&self, name: &str) -> bool {
        let rest = name.strip_prefix(self.short()).and_then(|rest| rest.strip_prefix('_'));
        // A row is of devices, or of a number of things, or of both: `_4sockets`, `_cuda:0_4sockets`.
        let counted = self.name.split_once("_<n>").map(|(_, things)| things);
        let is_number = |text: &str| text.parse::<u8>().is_ok();
        self.is_meant(name)
            || rest.is_some_and(|rest| match counted {
                Some(things) => rest.strip_suffix(things).is_some_and(|rest| {
                    let (devices, number) = rest.rsplit_once('_').unwrap_or((":", rest));
                    devices.contains(':') && is_number(number)
                }),
                None => rest.contains(':'),
            })
    }
}
