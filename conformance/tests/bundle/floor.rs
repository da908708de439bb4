//! `./dev floor FOLDER` refuses programs that need a newer C library than a bundle promises, or other libraries.

use onebuf_conformance::absent;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn floor(folder: &Path) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    Command::new(root.join("dev")).arg("floor").arg(folder).output().unwrap()
}

/// Compiles a library in the folder; false without a compiler.
fn compile(folder: &Path, name: &str, text: &str, flags: &[&str]) -> bool {
    let source = folder.with_file_name(format!("{name}.c"));
    fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-nostdlib", "-o"])
        .arg(folder.join(name))
        .arg(&source)
        .args(flags);
    match cc.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(why) => {
            absent("cc", &why.to_string());
            false
        }
    }
}

#[test]
fn what_needs_a_newer_c_library_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let [bundle, other] = ["bundle", "other"].map(|name| scratch.path().join(name));
    [&bundle, &other].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    fs::write(bundle.join("README"), "no program").unwrap();
    if !compile(&bundle, "libplain.so", "int plain(void) { return 1; }", &[]) {
        return;
    }
    let output = floor(&bundle);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A library that plays a newer C library, and one that needs a function of it.
    let versions = scratch.path().join("versions");
    fs::write(&versions, "GLIBC_2.29 { global: newer; };\n").unwrap();
    let script = format!("-Wl,--version-script={}", versions.display());
    compile(
        &other,
        "libc.so.6",
        "int newer(void) { return 1; }",
        &[&script, "-Wl,-soname,libc.so.6"],
    );
    let newer = "int newer(void); int use(void) { return newer(); }";
    let library = other.join("libc.so.6");
    compile(&bundle, "libneeds.so", newer, &[library.to_str().unwrap()]);
    let output = floor(&bundle);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("libneeds.so") && said.contains("GLIBC_2.29"), "{said}");
}

#[test]
fn what_needs_another_library_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let [bundle, other] = ["bundle", "other"].map(|name| scratch.path().join(name));
    [&bundle, &other].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let soname = "-Wl,-soname,libexotic.so.3";
    if !compile(&other, "libexotic.so", "int exotic(void) { return 1; }", &[soname]) {
        return;
    }
    let text = "int exotic(void); int use(void) { return exotic(); }";
    compile(&bundle, "libneeds.so", text, &[other.join("libexotic.so").to_str().unwrap()]);
    let output = floor(&bundle);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("libneeds.so") && said.contains("libexotic.so.3"), "{said}");
    let output = floor(&scratch.path().join("nothing"));
    assert_ne!(output.status.code(), Some(0), "a folder without programs proves nothing");
}
