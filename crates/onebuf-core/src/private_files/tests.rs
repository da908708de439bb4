//! Tests of `private_files.rs`.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn what_a_crashed_process_left_is_in_nobodys_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let (left, _) = scratch(&path).unwrap();
    // The next few names are taken, one of them by a link that must not be followed.
    let number: u64 = left.to_str().unwrap().rsplit('.').nth(1).unwrap().parse().unwrap();
    let name = |n| folder.path().join(format!(".file.{}.{n}.tmp", std::process::id()));
    symlink(folder.path().join("target"), name(number + 1)).unwrap();
    fs::write(name(number + 2), "old").unwrap();
    replace(&path, &[b"new ", b"contents"]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new contents");
    assert!(!folder.path().join("target").exists());
    assert_eq!(fs::read(name(number + 2)).unwrap(), b"old");
}

#[test]
fn only_a_private_file_is_opened_and_nothing_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let refused = |name: &str| open_private(&path(name), 100).unwrap_err().to_string();
    let mode = |name: &str, mode| fs::set_permissions(path(name), fs::Permissions::from_mode(mode));
    replace_durably(&path("good"), &[b"x"]).unwrap();
    let mut good = open_private(&path("good"), 100).unwrap();
    assert_eq!(read_private(&mut good, 100).unwrap(), b"x");
    symlink(path("good"), path("link")).unwrap();
    assert!(refused("link").contains("link"), "{}", refused("link"));
    rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::RWXU).unwrap();
    assert!(refused("fifo").contains("regular"), "{}", refused("fifo"));
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    assert!(refused("socket").contains("regular"), "{}", refused("socket"));
    fs::create_dir(path("folder")).unwrap();
    assert!(refused("folder").contains("folder"), "{}", refused("folder"));
    fs::write(path("open"), "x").unwrap();
    mode("open", 0o666).unwrap();
    assert!(refused("open").contains("private"), "{}", refused("open"));
    replace(&path("large"), &[&[0; 101]]).unwrap();
    assert!(refused("large").contains("large"), "{}", refused("large"));
    // Anything in the file's place is replaced without being opened.
    for name in ["link", "fifo", "socket", "open", "large"] {
        replace(&path(name), &[b"new"]).unwrap();
        assert_eq!(fs::read(path(name)).unwrap(), b"new");
    }
    assert_eq!(fs::read(path("good")).unwrap(), b"x");
}

#[test]
fn a_failure_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a folder");
    fs::create_dir(&path).unwrap();
    assert!(replace(&path, &[b"x"]).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
