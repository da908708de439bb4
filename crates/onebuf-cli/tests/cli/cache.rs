//! A cache that cannot be used does not stop any command.

use crate::support::{Cli, Ran};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Runs a command, and fails if it hangs.
fn ended(mut command: Command) -> Ran {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let start = Instant::now();
    while child.try_wait().expect("a status").is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("{command:?} hangs");
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output").into()
}

fn bare(cli: &Cli, args: &str) -> Ran {
    ended(cli.bare_command(args))
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
}

/// An invalid file in place of the verdicts, and a word of the warning that every command prints about it.
type Spoil = (&'static str, fn(&Path));

const SPOILT: [Spoil; 8] = [
    ("empty", |file| fs::write(file, "").unwrap()),
    ("cut off", |file| fs::write(file, "{\"schema\": 1, \"verdicts\": {").unwrap()),
    ("damaged", |file| fs::write(file, [0xff; 100]).unwrap()),
    ("regular file", make_fifo),
    ("regular file", |file| drop(UnixListener::bind(file).unwrap())),
    ("link", |file| {
        make_fifo(&file.with_extension("fifo"));
        symlink(file.with_extension("fifo"), file).unwrap();
    }),
    ("private", |file| {
        fs::write(file, "{\"schema\": 1, \"verdicts\": {}}").unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
    }),
    ("too large", |file| fs::File::create(file).unwrap().set_len(65 << 20).unwrap()),
];

/// A private cache folder with such a file.
fn spoilt(spoil: fn(&Path)) -> Cli {
    let cli = Cli::new();
    let file = cli.verdicts();
    let folder = file.parent().unwrap();
    fs::create_dir_all(folder).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    spoil(&file);
    cli
}

#[test]
fn whatever_lies_in_the_files_place_is_told_and_replaced() {
    for (why, spoil) in SPOILT {
        let cli = spoilt(spoil);
        let file = cli.verdicts();
        for args in ["devices", "plan --devices host", "demo --samples 64 --frames 1"] {
            let ran = bare(&cli, args).ok();
            let told = ran.stderr.contains("warning") && ran.stderr.contains(why);
            assert!(told && ran.stderr.contains("onebuf doctor"), "{args}: {why}: {}", ran.stderr);
        }
        assert_eq!(bare(&cli, "cache info --json").json()["verdicts"], Value::Null, "{why}");
        // The advice of the warning works, even if there is nothing to test.
        let ran = bare(&cli, "doctor --json");
        assert!(ran.stderr.contains(why), "{why}: {}", ran.stderr);
        assert_eq!(ran.stderr.matches("warning").count(), 1, "{}", ran.stderr);
        assert_eq!(ran.json()["saved"], true, "{why}");
        let meta = fs::symlink_metadata(&file).unwrap();
        assert!(meta.is_file() && !meta.file_type().is_fifo(), "{why}");
        assert_eq!(bare(&cli, "cache info --json").json()["verdicts"], 0, "{why}");
        assert_eq!(bare(&cli, "doctor").ok().stderr, "", "{why}");
    }
}

#[test]
fn clearing_opens_nothing() {
    for (why, spoil) in SPOILT {
        let cli = spoilt(spoil);
        let programs = cli.verdicts().with_file_name("programs");
        make_fifo(&programs);
        assert_eq!(bare(&cli, "cache clear --json").json()["cleared"], true, "{why}");
        assert!(fs::symlink_metadata(cli.verdicts()).is_err(), "{why}");
        assert!(fs::symlink_metadata(&programs).is_err(), "{why}");
        assert_eq!(bare(&cli, "cache clear --json").json()["cleared"], false, "{why}");
    }
    // A folder in place of a file is not removed; everything else is.
    let cli = spoilt(|file| fs::create_dir(file).unwrap());
    let programs = cli.verdicts().with_file_name("programs");
    fs::create_dir(&programs).unwrap();
    fs::set_permissions(&programs, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(programs.join("0123456789abcdef.bin"), "x").unwrap();
    bare(&cli, "cache clear").failed(1, "a folder where a file is expected");
    assert!(!programs.exists() && cli.verdicts().is_dir());
    let ran = bare(&cli, "doctor --json");
    assert!(ran.stderr.contains("remove it") && ran.stderr.contains("not saved"), "{}", ran.stderr);
    assert_eq!(ran.json()["saved"], false);
}

/// On a full disk only empty files can be written; the previous contents are not lost.
#[test]
fn a_full_disk_is_a_warning() {
    let cli = spoilt(SPOILT[1].1);
    let before = fs::read(cli.verdicts()).unwrap();
    let bare = cli.bare_command("doctor --json");
    let mut full = Command::new("sh");
    let line = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    full.args(["-c", line]).arg(bare.get_program()).args(bare.get_args());
    full.envs(bare.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = ended(full);
    assert!(ran.stderr.contains("not saved"), "{}", ran.stderr);
    assert_eq!(ran.json()["saved"], false);
    assert_eq!(fs::read(cli.verdicts()).unwrap(), before);
    let left = fs::read_dir(cli.verdicts().parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "nothing beside it");
}

/// In /proc not even root can create a folder; without HOME there is no cache folder at all.
#[test]
fn a_folder_that_cannot_be_made_stops_nothing() {
    let cli = Cli::new();
    for args in ["devices --json", "doctor --json", "demo --json --samples 64 --frames 1"] {
        for home in ["/proc", "not absolute"] {
            let mut command = cli.bare_command(args);
            command.env("XDG_CACHE_HOME", home).env_remove("HOME");
            let value = ended(command).json();
            assert_eq!(value["schema"], json!(2), "{args}");
        }
    }
}
