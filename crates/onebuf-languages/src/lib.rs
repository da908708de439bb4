//! The public names of onebuf in every language, collected from the sources by machine, and the table of what belongs together.
//!
//! People edit the files in `table/`; `docs/languages.md` is generated from them. The test of this crate fails if a language has a
//! name that the table does not have, or the table has a name that the language does not have.

pub mod c;
pub mod check;
pub mod cpp;
pub mod fortran;
pub mod page;
pub mod python;
pub mod rust;
mod rust_macros;
pub mod table;

use check::Names;
use std::{fs, path::Path};

/// Collects the names of every language from the sources of a workspace.
pub fn collect(root: &Path) -> Names {
    let read = |name: &str| {
        let file = root.join("crates/onebuf-capi/include").join(name);
        fs::read_to_string(&file).unwrap_or_else(|why| panic!("{file:?}: {why}"))
    };
    let modules = fortran::Modules::read(&root.join("bindings/fortran/src"));
    let ours = ["gpu_unified_buffers", "gpu_fence_calls"].map(|name| modules.public_names(name));
    let c = c::read(&read("onebuf.h"));
    let classes = read("onebuf_types.hpp") + &read("onebuf.hpp");
    Names {
        of: [
            rust::Sources::new(&root.join("crates")).public_names("onebuf"),
            c.names.clone(),
            cpp::names(&classes),
            ours.into_iter().flatten().collect(),
            python::Package::read(&root.join("crates/onebuf-python/python/onebuf")).public_names(),
        ],
        cpp_structures: c.reached(cpp::structures(&classes)),
        c_types: c.types.into_keys().collect(),
        by_onebuf_c: modules.public_names("onebuf_c"),
    }
}
