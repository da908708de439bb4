//! What one process stores on disk for the next.

use super::*;
use onebuf::{Origin, ProgramCache};
use onebuf_conformance::{Watchdog, note, stub};
use std::{fs, path::PathBuf};
use tempfile::{TempDir, tempdir};

/// The only kernel that the stub driver implements.
const STEP: &str = "kernel void onebuf_step(global uint *p, uint first, uint n, uint mul, uint add) \
    { uint i = get_global_id(0); if (i < n) p[first + i] = p[first + i] * mul + add + i; }";

/// The files that hold programs.
fn files(cache: &TempDir) -> Vec<PathBuf> {
    let list = fs::read_dir(cache.path().join("programs")).into_iter().flatten();
    let mut files: Vec<_> = list.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_next_process_loads_what_this_one_built() {
    let _watchdog = Watchdog::new("programs on disk", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let first = hub(cache.path());
    let second = hub(cache.path());
    for (device, again) in devices(&first).iter().zip(devices(&second)) {
        let name = &device.info().platform;
        let built = device.program(&text()).unwrap();
        assert_eq!(built.origin(), Origin::Built, "{name}");
        assert_works(&built);
        let remembered = device.program(&text()).unwrap();
        assert_eq!(remembered.origin(), Origin::Memory, "{name}");
        assert_works(&remembered);
        if !gives_binaries(&built) {
            continue;
        }
        let loaded = again.program(&text()).unwrap();
        assert_eq!(loaded.origin(), Origin::Disk, "{name}");
        assert_works(&loaded);
        let [built, loaded, found] = [&built, &loaded, &remembered].map(Program::build_time);
        note(&format!("{name}: built in {built:?}, loaded in {loaded:?}, found in {found:?}"));
        assert_eq!(again.program(&text()).unwrap().origin(), Origin::Memory, "{name}");
        // Another text or other options are another program. The other hub finds each of them.
        for other in [Source::opencl_c(format!("{TEXT}\n")), text().with_options("-DX=1")] {
            assert_eq!(again.program(&other).unwrap().origin(), Origin::Built, "{name}");
            let loaded = device.program(&other).unwrap();
            assert_eq!(loaded.origin(), Origin::Disk, "{name}");
            assert_works(&loaded);
        }
    }
}

#[test]
fn a_damaged_file_is_compiled_again_and_replaced() {
    let _watchdog = Watchdog::new("damaged programs", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let kept: Vec<bool> = devices(&hub(cache.path()))
        .iter()
        .map(|device| gives_binaries(&device.program(&text()).unwrap()))
        .collect();
    let whole: Vec<Vec<u8>> = files(&cache).iter().map(|f| fs::read(f).unwrap()).collect();
    assert_eq!(whole.len(), kept.iter().filter(|kept| **kept).count());
    for file in files(&cache) {
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        fs::write(&file, bytes).unwrap();
    }
    for wanted in [Origin::Built, Origin::Disk] {
        for (device, kept) in devices(&hub(cache.path())).iter().zip(&kept) {
            let program = device.program(&text()).unwrap();
            let wanted = if *kept { wanted } else { Origin::Built };
            assert_eq!(program.origin(), wanted, "{}", device.info().platform);
            assert_works(&program);
        }
    }
    assert_eq!(files(&cache).len(), whole.len());
}

#[test]
fn memory_and_off_write_nothing() {
    let _watchdog = Watchdog::new("programs that are not kept", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    for (how, second) in
        [(ProgramCache::Memory, Origin::Memory), (ProgramCache::Off, Origin::Built)]
    {
        let hub = builder(cache.path()).program_cache(how).build().unwrap();
        for device in devices(&hub) {
            assert_eq!(device.program(&text()).unwrap().origin(), Origin::Built);
            assert_eq!(device.program(&text()).unwrap().origin(), second);
        }
    }
    assert!(files(&cache).is_empty());
}

/// A folder that cannot be written, or that other users can write, is not an error of the build.
#[test]
fn a_folder_that_cannot_be_used_costs_only_time() {
    use std::os::unix::fs::PermissionsExt;
    let _watchdog = Watchdog::new("unusable folders", LIMIT);
    let _alone = alone();
    let parent = tempdir().unwrap();
    let (file, open) = (parent.path().join("file"), parent.path().join("open"));
    fs::write(&file, "").unwrap();
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    for folder in [file, open.clone()] {
        for _ in 0..2 {
            for device in devices(&hub(&folder)) {
                let program = device.program(&text()).unwrap();
                assert_eq!(program.origin(), Origin::Built);
                assert_works(&program);
            }
        }
    }
    assert_eq!(fs::read_dir(open).unwrap().count(), 0);
}

/// Headers are not part of the key, so programs that include them are compiled each time.
#[test]
fn a_changed_header_is_seen() {
    let _watchdog = Watchdog::new("headers", LIMIT);
    let _alone = alone();
    let (cache, headers) = (tempdir().unwrap(), tempdir().unwrap());
    let header = headers.path().join("onebuf_number.h");
    let source = Source::opencl_c(
        "#include \"onebuf_number.h\"\nkernel void f(global uint *x) { x[get_global_id(0)] = NUMBER; }",
    );
    let source = source.with_options(format!("-I {}", headers.path().display()));
    let hub = hub(cache.path());
    for device in devices(&hub) {
        for number in [11, 22] {
            fs::write(&header, format!("#define NUMBER {number}\n")).unwrap();
            let program = match device.program(&source) {
                Ok(program) => program,
                Err(why) => {
                    absent(&format!("{} headers", device.info().platform), &why.to_string());
                    break;
                }
            };
            assert_eq!(program.origin(), Origin::Built);
            assert_eq!(run(&program, "f", None).unwrap()[0], number, "{}", device.info().platform);
        }
    }
    assert!(files(&cache).is_empty(), "{:?}", files(&cache));
}

/// PoCL 4.0 and newer never initialise the variables of a program whose binary was queried, as caching does.
#[test]
fn variables_begin_as_the_text_says() {
    let _watchdog = Watchdog::new("variables", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let text =
        "global uint begin = 5;\nkernel void f(global uint *x) { x[get_global_id(0)] += begin; }";
    let source = Source::opencl_c(text).with_options("-cl-std=CL3.0");
    let expected: Vec<u32> = (5..N as u32 + 5).collect();
    for _process in 0..2 {
        for device in devices(&hub(cache.path())) {
            let name = &device.info().platform;
            match device.program(&source) {
                Ok(program) => assert_eq!(run(&program, "f", None).unwrap(), expected, "{name}"),
                // In OpenCL 3.0 such variables are optional.
                Err(_) => note(&format!("skip: {name}: no variables of programs")),
            }
        }
    }
}

/// A device of the stub driver at that path.
fn stubbed(library: &Path, cache: &Path) -> Device {
    let hub = builder(cache).library("opencl", library.to_string_lossy()).build().unwrap();
    hub.device("opencl:0").unwrap()
}

#[test]
fn another_driver_file_makes_another_program() {
    let _alone = alone();
    let Some(library) = stub() else { return };
    let (cache, elsewhere) = (tempdir().unwrap(), tempdir().unwrap());
    let step = Source::opencl_c(STEP);
    let origin = |library: &Path| stubbed(library, cache.path()).program(&step).unwrap().origin();
    assert_eq!([origin(&library), origin(&library)], [Origin::Built, Origin::Disk]);
    let newer = elsewhere.path().join("libnewer.so");
    fs::copy(&library, &newer).unwrap();
    assert_eq!(
        [origin(&newer), origin(&newer), origin(&library)],
        [Origin::Built, Origin::Disk, Origin::Disk]
    );
    assert_eq!(files(&cache).len(), 2);
}

/// The file is intact and has the right key, but the driver refuses the binary in it.
#[test]
fn a_binary_that_the_driver_refuses_is_compiled_again_and_replaced() {
    let _alone = alone();
    let Some(library) = stub() else { return };
    let cache = tempdir().unwrap();
    let step = Source::opencl_c(STEP);
    let origin = || stubbed(&library, cache.path()).program(&step).unwrap().origin();
    assert_eq!(origin(), Origin::Built);
    let [file] = &files(&cache)[..] else { panic!("one program") };
    let whole = fs::read(file).unwrap();
    fs::write(file, with_binary(&whole, b"from a driver of long ago")).unwrap();
    assert_eq!([origin(), origin()], [Origin::Built, Origin::Disk]);
    assert_eq!(fs::read(file).unwrap(), whole);
}

/// Returns a cache file with another binary and a matching checksum.
fn with_binary(file: &[u8], binary: &[u8]) -> Vec<u8> {
    let key_len = u64::from_le_bytes(file[12..20].try_into().unwrap()) as usize;
    let mut changed = file[..28 + key_len].to_vec();
    changed[20..28].copy_from_slice(&(binary.len() as u64).to_le_bytes());
    changed.extend(binary);
    let sum = changed.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    changed.extend(sum.to_le_bytes());
    changed
}

#[test]
fn the_folder_stays_as_small_as_asked() {
    let _alone = alone();
    let Some(library) = stub() else { return };
    let cache = tempdir().unwrap();
    let step = |n: u32| Source::opencl_c(format!("{STEP} // {n:08}"));
    stubbed(&library, cache.path()).program(&step(0)).unwrap();
    let one = onebuf::cache::contents(cache.path()).unwrap().bytes;
    let hub = builder(cache.path()).library("opencl", library.to_string_lossy());
    let hub = hub.program_cache_limit(3 * one).build().unwrap();
    for n in 1..10 {
        hub.device("opencl:0").unwrap().program(&step(n)).unwrap();
    }
    let held = onebuf::cache::contents(cache.path()).unwrap();
    assert_eq!((held.programs, held.bytes), (3, 3 * one));
    let cleared = onebuf::cache::clear(cache.path()).unwrap();
    assert_eq!(cleared.programs, 3);
    assert!(files(&cache).is_empty());
}
