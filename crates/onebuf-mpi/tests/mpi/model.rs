//! The model of many machines: `benches/model/cluster.py`.

use onebuf_conformance::absent;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

const SCRIPT: &str = "benches/model/cluster.py";

fn check(root: &Path) -> Output {
    Command::new("/usr/bin/python3").arg(root.join(SCRIPT)).arg("--check").output().unwrap()
}

#[test]
fn the_model_meets_what_was_measured_and_docs_are_its() {
    if !Path::new("/usr/bin/python3").exists() {
        return absent("the model", "/usr/bin/python3 is missing");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let ran = check(&root);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    // With another measured point neither the fit nor docs are right.
    let copy = tempfile::tempdir().unwrap();
    for file in [SCRIPT, "docs/mpi-jobs.md", "docs/mpi-model.svg"] {
        let text = fs::read_to_string(root.join(file)).unwrap().replace("229.0", "329.0");
        fs::create_dir_all(copy.path().join(file).parent().unwrap()).unwrap();
        fs::write(copy.path().join(file), text).unwrap();
    }
    let ran = check(copy.path());
    let said = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("84.0 was measured") && said.contains("mpi-jobs.md"), "{said}");
}
