//! What the doctor found on a machine, as an object that can be published, and the page that compares such objects.
//!
//! [`Findings`] is the object: `onebuf doctor --submit FILE` writes it, and the report of the conformance bundle contains it. It is a
//! list of known fields, so that what a later doctor adds stays out, and its texts pass
//! [`Private::scrub`]. [`folder::read`] reads a folder of such files, and [`page::page`] makes `docs/drivers.md` of them.

#![deny(unsafe_code)]

pub mod date;
mod findings;
pub mod folder;
mod identifiers;
mod machine;
pub mod page;
mod private;

pub use findings::{Device, Findings, Graft, Large, Missing, Physical, Route, device_json};
pub use machine::Machine;
pub use private::Private;
