//! Which stored programs are used, and which are refused.

use super::*;
use std::{
    os::unix::fs::{PermissionsExt, symlink},
    thread,
};
use tempfile::TempDir;

const KEY: &[u8] = b"a program";
const BINARY: &[u8] = b"its binary";

fn store(limit_bytes: u64) -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("onebuf"), limit_bytes);
    (folder, store)
}

/// A store with one program, and the program's file.
fn filled() -> (TempDir, Store, PathBuf) {
    let (folder, store) = store(1 << 20);
    store.save(KEY, BINARY);
    assert_eq!(store.load(KEY).as_deref(), Some(BINARY));
    let path = store.path(KEY);
    (folder, store, path)
}

/// The stored program is refused, and a new one replaces it.
#[track_caller]
fn assert_refused_then_replaced(store: &Store, what: &str) {
    assert_eq!(store.load(KEY), None, "{what}");
    store.save(KEY, BINARY);
    assert_eq!(store.load(KEY).as_deref(), Some(BINARY), "{what}");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn set_age(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

#[test]
fn folders_and_files_are_the_users_alone() {
    let (_folder, store, path) = filled();
    assert_eq!((mode(&store.base), mode(&store.folder()), mode(&path)), (0o700, 0o700, 0o600));
    assert_eq!(fs::read_dir(store.folder()).unwrap().count(), 1, "nothing temporary is left");
    assert_eq!(Store::contents(&store.base), Ok((1, fs::metadata(path).unwrap().len())));
}

#[test]
fn a_change_of_any_byte_is_noticed() {
    let (_folder, store, path) = filled();
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(store.load(KEY), None, "byte {at} of {} ^ {flip:#x}", whole.len());
        }
    }
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(store.load(KEY), None, "cut off at {length}");
    }
    fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    assert_refused_then_replaced(&store, "longer");
    assert_eq!(fs::read(&path).unwrap(), whole);
}

#[test]
fn another_keys_file_is_not_taken() {
    let (_folder, store, path) = filled();
    // Simulates equal hashes of the names.
    for other in [&b"b program"[..], b"a prog", b"a program and more", b"a programits ", b""] {
        fs::copy(&path, store.path(other)).unwrap();
        assert_eq!(store.load(other), None, "{other:?}");
    }
    let mut body = head(KEY, BINARY);
    body[MAGIC.len()] ^= 3;
    body.extend([KEY, BINARY].concat());
    let sum = fnv1a(&[&body]).to_le_bytes();
    fs::write(&path, [&body[..], &sum].concat()).unwrap();
    assert_refused_then_replaced(&store, "another version");
}

#[test]
fn what_others_could_have_written_is_refused() {
    let (folder, store, path) = filled();
    for wrong in [0o620, 0o602, 0o666] {
        set_mode(&path, wrong);
        assert_refused_then_replaced(&store, &format!("mode {wrong:o}"));
        assert_eq!(mode(&path), 0o600);
    }
    match std::os::unix::fs::chown(&path, Some(65534), None) {
        Ok(()) => assert_refused_then_replaced(&store, "somebody else's"),
        Err(why) => println!("skip: a file of somebody else's: {why}"),
    }
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert_refused_then_replaced(&store, "a link");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read(&elsewhere).unwrap(), fs::read(&path).unwrap(), "the link's end is whole");

    fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
    assert_refused_then_replaced(&store, "a pipe, which is not waited for");
}

#[test]
fn a_folder_that_others_can_write_to_is_not_used() {
    let (_folder, store, _) = filled();
    for folder in [store.folder(), store.base.clone()] {
        set_mode(&folder, 0o770);
        assert_eq!(store.load(KEY), None, "{}", folder.display());
        assert!(matches!(store.write(KEY, BINARY), Err(Error::Cache { .. })));
        set_mode(&folder, 0o700);
        assert_eq!(store.load(KEY).as_deref(), Some(BINARY));
    }
    set_mode(&store.folder(), 0o707);
    assert!(Store::clear(&store.base).is_err() && Store::contents(&store.base).is_err());
}

#[test]
fn a_folder_that_cannot_be_made_is_no_error() {
    let (folder, store) = store(1 << 20);
    fs::write(folder.path().join("onebuf"), "a file").unwrap();
    store.save(KEY, BINARY);
    assert!(store.warned.load(Ordering::Relaxed));
    assert_eq!(store.load(KEY), None);
}

#[test]
fn the_least_recently_used_goes_first() {
    let one = (HEAD_BYTES + 1 + 100 + SUM_BYTES) as u64;
    let (_folder, store) = store(3 * one);
    let binary = [7; 100];
    for (key, age) in [(b"a", 30), (b"b", 20), (b"c", 10)] {
        store.save(key, &binary);
        set_age(&store.path(key), age);
    }
    assert!(store.load(b"a").is_some(), "used now");
    store.save(b"d", &binary);
    let held = |key: &[u8; 1]| store.path(key).exists();
    assert_eq!([held(b"a"), held(b"b"), held(b"c"), held(b"d")], [true, false, true, true]);
    store.save(b"e", &[7; 400]);
    assert!(!held(b"e"), "larger than the whole cache");
    // The kernel's clock for new files lags by some milliseconds.
    set_age(&store.path(b"a"), 1);
    store.save(b"f", &[7; 200]);
    assert_eq!([held(b"a"), held(b"c"), held(b"d"), held(b"f")], [false, false, true, true]);
    assert_eq!(Store::contents(&store.base), Ok((2, 2 * one + 100)));
}

#[test]
fn what_crashed_writers_left_goes_after_a_while() {
    let (_folder, store, path) = filled();
    let [old, young] = ["old", "young"].map(|name| store.folder().join(format!(".{name}.1.1.tmp")));
    let strange = store.folder().join("somebody's notes");
    for path in [&old, &young, &strange] {
        fs::write(path, "half").unwrap();
    }
    set_age(&old, 2 * TEMPORARY_LIFE.as_secs());
    store.save(KEY, BINARY);
    assert_eq!([&old, &young, &strange, &path].map(|p| p.exists()), [false, true, true, true]);
    Store::clear(&store.base).unwrap();
    assert_eq!([&young, &strange, &path].map(|p| p.exists()), [false, true, false]);
    assert_eq!(Store::contents(&store.base), Ok((0, 0)));
}

/// Fuzzes a file's bytes, mostly with a correct checksum.
#[cfg(not(any(onebuf_shuttle, miri)))]
#[test]
fn fuzz_kept_programs() {
    use onebuf_hal::testing::fuzz::{Bound, Form, Target};
    let head = head(KEY, BINARY);
    let seeds = [[&head, KEY, BINARY].concat()];
    Target {
        name: "kept programs",
        bound: Bound { per_byte: 0, fixed: HEAD_BYTES },
        input: &|random, most| {
            let mut file = Form::Bytes.changed(random, &seeds, most);
            let sum = fnv1a(&[&file]).to_le_bytes();
            file.extend(&sum[..8 - random.below(20) / 19]);
            file
        },
        parse: &|file| decode(file, KEY).is_ok(),
    }
    .run();
}

/// Two stores over one folder behave like two processes: they share only the files.
#[test]
fn writers_and_readers_at_once_see_whole_programs() {
    const ROUNDS: u32 = 60;
    let (folder, _) = store(0);
    let base = folder.path().join("onebuf");
    thread::scope(|scope| {
        for writer in 0..4u8 {
            let base = base.clone();
            scope.spawn(move || {
                // Small enough that they also remove each other's programs.
                let store = Store::new(base, 5 * 4200);
                for round in 0..ROUNDS {
                    let key = [b'k', round as u8 % 8];
                    if let Some(binary) = store.load(&key) {
                        assert_eq!(binary.len(), 4096, "round {round}");
                        assert!(binary.iter().all(|b| *b == binary[0]), "a mixture");
                    }
                    store.save(&key, &[writer; 4096]);
                }
                assert!(!store.warned.load(Ordering::Relaxed));
            });
        }
    });
    let (programs, bytes) = Store::contents(&base).unwrap();
    assert!((1..=5).contains(&programs) && bytes <= 5 * 4200, "{programs} programs, {bytes} bytes");
}
