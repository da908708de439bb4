//! A setuid program does not load code that its caller names.

use crate::support::{Cli, skip};
use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::Command,
};

/// The user ids of the program's owner and of its caller.
const OWNER: u32 = 65_533;
const CALLER: u32 = 65_534;

/// Compiles the caller's library, which creates the file `mark` when it is loaded. False, after a printed skip, without a C
/// compiler.
fn compile(library: &Path, mark: &Path) -> bool {
    let source = library.with_extension("c");
    let text = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void mark(void) {{ open(\"{}\", O_CREAT | O_WRONLY, 0666); }}\n",
        mark.display()
    );
    fs::write(&source, text).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(&source).status();
    match &compiled {
        Ok(status) => assert!(status.success(), "it does not build"),
        Err(why) => skip(&format!("a setuid program: cc: {why}")),
    }
    compiled.is_ok()
}

/// The caller's environment: every variable that names libraries to the drivers' loaders.
fn environment(folder: &Path, library: &Path) -> Vec<(&'static str, String)> {
    let library = library.to_str().unwrap();
    let icd = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let vulkan = format!(
        r#"{{"file_format_version":"1.0.0","ICD":{{"library_path":"{library}","api_version":"1.3.0"}}}}"#
    );
    let egl = format!(r#"{{"file_format_version":"1.0.0","ICD":{{"library_path":"{library}"}}}}"#);
    vec![
        ("OCL_ICD_VENDORS", library.to_owned()),
        ("VK_ICD_FILENAMES", icd("vulkan.json", vulkan)),
        ("__EGL_VENDOR_LIBRARY_FILENAMES", icd("egl.json", egl)),
        ("ONEBUF_CUDA_LIB", library.to_owned()),
        ("ONEBUF_OPENCL_LIB", library.to_owned()),
    ]
}

#[test]
fn a_setuid_program_loads_nothing_that_its_caller_names() {
    if !rustix::process::geteuid().is_root() {
        return skip("a setuid program: only root can make one for another user");
    }
    // A folder in which the program may run and the caller may write.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let (library, mark) = (folder.path().join("libmark.so"), folder.path().join("mark"));
    if !compile(&library, &mark) {
        return;
    }
    let program = folder.path().join("onebuf");
    fs::copy(env!("CARGO_BIN_EXE_onebuf"), &program).unwrap();
    let cli = Cli::new();
    let run = |variable: &str, value: &str| {
        let template = cli.command("devices --json");
        let mut command = Command::new(&program);
        command.args(template.get_args()).uid(CALLER).gid(CALLER).current_dir("/");
        command.env("XDG_CACHE_HOME", folder.path()).env(variable, value);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        (serde_json::from_str::<serde_json::Value>(&text).unwrap(), fs::remove_file(&mark).is_ok())
    };
    let all = environment(folder.path(), &library);
    let plain: Vec<bool> = all.iter().map(|(name, value)| run(name, value).1).collect();
    assert!(plain[0], "the control: OpenCL's loader runs the caller's code");

    chown(&program, Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    for (name, value) in &all {
        let (said, marked) = run(name, value);
        assert!(!marked, "{name} ran the caller's code");
        let ids: Vec<_> = said["devices"].as_array().unwrap().iter().map(|d| &d["id"]).collect();
        assert_eq!(ids, ["host"], "{said:#}");
        let why = said["unavailable"].to_string();
        assert!(why.contains("more rights than its caller"), "{said:#}");
    }
}
