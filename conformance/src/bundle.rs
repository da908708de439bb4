//! Where test programs find what they need besides themselves: in the build tree, or in an unpacked conformance bundle.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The environment variable that names the folder of an unpacked bundle.
pub const VARIABLE: &str = "ONEBUF_BUNDLE";

/// The file that every bundle contains at its top; its contents are the version.
pub const MARK: &str = "onebuf-bundle";

/// Returns the folder of the bundle that this program belongs to: the one that `ONEBUF_BUNDLE` names, or the folder above
/// this program's own. `None` in the build tree.
///
/// # Panics
/// If `ONEBUF_BUNDLE` names a folder that is no bundle.
pub fn bundle() -> Option<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        let folder = PathBuf::from(named);
        assert!(is_bundle(&folder), "{VARIABLE} names {folder:?}, which is no unpacked bundle");
        return Some(folder);
    }
    let above = this_program().parent()?.parent()?.to_owned();
    is_bundle(&above).then_some(above)
}

fn is_bundle(folder: &Path) -> bool {
    folder.join(MARK).is_file()
}

/// Returns the path of another program of this crate, such as `doctor-helper`.
///
/// # Panics
/// If it is neither in the bundle nor where Cargo puts it.
pub fn helper(name: &str) -> PathBuf {
    let found = match bundle() {
        Some(folder) => folder.join("bin").join(name),
        // Cargo builds test programs in a folder beside the other programs, and builds those first.
        None => this_program().with_file_name("..").join(name),
    };
    assert!(found.is_file(), "{found:?} is missing");
    found
}

fn this_program() -> PathBuf {
    env::current_exe().expect("the path of this program")
}
