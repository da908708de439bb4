//! `onebuf-conformance` over a bundle of scripts that pass, fail, crash, hang, print garbage and test nothing; and the check of
//! what a bundle's programs need from the C library.

mod contents;
mod floor;
mod scripts;

use scripts::{Bundle, HANGS, PASSES};
use serde_json::Value;
use std::{
    collections::BTreeSet, fs, os::unix::process::ExitStatusExt, process::Stdio, thread,
    time::Duration,
};

/// The chapters in a bundle where the named test programs are scripts; all others pass.
fn run(scripts: &[(&str, &str)], arguments: &[&str]) -> scripts::Ran {
    let bundle = Bundle::new();
    scripts.iter().for_each(|(program, text)| bundle.script(program, text));
    bundle.run(arguments)
}

#[test]
fn a_good_machine_exits_with_zero_and_has_every_chapter() {
    let ran = run(&[], &["--json"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let json = ran.json();
    assert_eq!(json["schema"], 2);
    let object: BTreeSet<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(object, BTreeSet::from(["schema", "devices", "chapters", "doctor"]));
    let ids: Vec<&str> =
        json["devices"].as_array().unwrap().iter().map(|d| d["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["host", "opencl:0", "vulkan:0"]);
    let keys = BTreeSet::from(["name", "device", "passed", "failed", "skipped", "why"]);
    let mut names = BTreeSet::new();
    for row in ran.rows() {
        let row = row.as_object().unwrap();
        assert_eq!(row.keys().map(String::as_str).collect::<BTreeSet<_>>(), keys);
        names.insert(row["name"].as_str().unwrap().to_owned());
    }
    for chapter in [
        "doctor",
        "suite",
        "pairs",
        "foreign",
        "peers",
        "graft",
        "libraries",
        "sync",
        "faults",
        "kill",
        "large",
    ] {
        assert!(names.contains(chapter), "{chapter} is not in {names:?}");
    }
    // Every ordered pair is part of a row, in both orders.
    let pairs: Vec<Value> = ran.rows().into_iter().filter(|row| row["name"] == "sync").collect();
    let places: BTreeSet<&str> = pairs.iter().map(|row| row["device"].as_str().unwrap()).collect();
    let all = ["host <-> opencl:0", "host <-> vulkan:0", "opencl:0 <-> vulkan:0", "all"];
    assert_eq!(places, BTreeSet::from(all));
}

/// Each script stands for a driver; the other chapters are not affected, and the report says what happened.
#[test]
fn a_bad_driver_loses_its_chapter_only() {
    let bad = [
        (
            "tests/graft",
            "echo 'running 2 tests'; echo 'test a ... ok'; kill -SEGV $$",
            "crashed: SIGSEGV after 1 of 2 tests",
        ),
        ("tests/libs", "echo garbage; printf '\\377\\000{'", "ended without a result"),
        (
            "tests/peer",
            "echo; echo 'running 0 tests'; echo; echo 'test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s'",
            "it ran no tests",
        ),
        (
            "tests/cuda",
            "echo 'running 1 test'; echo 'test a ... FAILED'; echo; echo 'failures:'; echo; echo '---- a stdout ----'; echo 'page 3 is wrong'; echo; echo 'failures:'; echo '    a'; echo; echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s'; exit 101",
            "a: page 3 is wrong",
        ),
        ("tests/gl", "exit 0", "ended without a result"),
        ("tests/pool", "exit 3", "exit status 3"),
    ];
    let scripts: Vec<(&str, &str)> =
        bad.iter().map(|(program, text, _)| (*program, *text)).collect();
    let ran = run(&scripts, &["--json"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let chapters = ["graft", "libraries", "peers", "cuda", "opengl", "buffers"];
    for ((program, _, why), chapter) in bad.iter().zip(chapters) {
        let row = ran.row(chapter, "all");
        assert_eq!(row["failed"], 1, "{program}: {row}");
        assert!(row["why"].as_str().unwrap().contains(why), "{program}: {row}");
        assert!(ran.report.contains(why), "{program}: {}", ran.report);
    }
    for row in ran.rows() {
        let is_bad = chapters.contains(&row["name"].as_str().unwrap()) && row["device"] == "all";
        assert_eq!(row["failed"] != 0, is_bad, "{row}");
    }
}

#[test]
fn a_driver_that_crashes_at_discovery_is_not_loaded_again() {
    let bundle = Bundle::new();
    bundle.conformance("case $* in *'--devices --apis opencl'*) kill -ABRT $$ ;; esac");
    bundle
        .script("tests/foreign", &format!("[ \"$ONEBUF_OPENCL_LIB\" = none ] || exit 7\n{PASSES}"));
    let ran = bundle.run(&["--json"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let row = ran.row("discovery", "opencl");
    assert!(row["failed"] == 1 && row["why"] == "crashed: SIGABRT", "{row}");
    assert_eq!(ran.row("foreign", "all")["failed"], 0);
    assert!(ran.rows().iter().all(|row| !row["device"].as_str().unwrap().contains("opencl:0")));
}

#[test]
fn a_chapter_that_hangs_is_ended_with_all_that_it_started() {
    let bundle = Bundle::new();
    let mark = bundle.folder().join("started");
    bundle.script(
        "tests/graft",
        &format!("echo 'running 1 test'\n{}", HANGS.replace("MARK", mark.to_str().unwrap())),
    );
    let ran = bundle.run_with(&["--json"], &[("ONEBUF_CONFORMANCE_LIMIT_S", "2")]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let row = ran.row("graft", "all");
    assert!(row["why"].as_str().unwrap().contains("hung: no end after 2 s"), "{row}");
    assert_eq!(ran.row("libraries", "all")["failed"], 0, "the next chapter runs");
    for pid in fs::read_to_string(&mark).unwrap().lines() {
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap(), "process {pid} is left");
    }
}

/// Three programs that only end together, and an orphan of one that others leave alone while it runs.
#[test]
fn jobs_run_side_by_side() {
    let bundle = Bundle::new();
    let file = |name: &str| bundle.folder().join(name).to_str().unwrap().to_owned();
    let [orphan, first, last] = ["orphan", "first", "last"].map(file);
    let wait = |file: &str| {
        format!(
            "n=0; while ! [ -s '{file}' ]; do sleep 0.01; n=$((n + 1)); [ $n -lt 3000 ] || exit 7; done\n"
        )
    };
    let start = format!("setsid sh -c 'echo $$ >\"{orphan}\"; exec sleep 600' &\n");
    let lives = format!("[ -d /proc/$(cat '{orphan}') ] || exit 8\n");
    let graft =
        [&start, &wait(&orphan), &format!("echo 1 >'{first}'\n"), &wait(&last), &lives, PASSES];
    bundle.script("tests/graft", &graft.map(String::from).concat());
    bundle.script("tests/libs", &format!("{}{PASSES}", wait(&first)));
    bundle.script("tests/pool", &format!("echo 1 >'{last}'\n{PASSES}"));
    let ran = bundle.run(&["--json", "--jobs", "2"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let pid = fs::read_to_string(&orphan).unwrap();
    assert!(!fs::exists(format!("/proc/{}", pid.trim())).unwrap(), "process {pid} is left");
    assert_eq!(ran.rows(), run(&[], &["--json"]).rows(), "in the order of the chapters");
}

/// What a chapter leaves behind when it ends is ended, too, even in a session of its own.
#[test]
fn orphans_are_ended() {
    let bundle = Bundle::new();
    let mark = bundle.folder().join("orphan");
    let text = format!(
        "setsid sh -c 'echo $$ >\"{}\"; exec sleep 600' &\nwhile ! [ -s '{0}' ]; do sleep 0.01; done\n{PASSES}",
        mark.display()
    );
    bundle.script("tests/graft", &text);
    let ran = bundle.run(&["--json"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let pid = fs::read_to_string(&mark).unwrap();
    assert!(!fs::exists(format!("/proc/{}", pid.trim())).unwrap(), "process {pid} is left");
}

#[test]
fn an_interrupted_run_ends_its_chapter_and_reports() {
    let bundle = Bundle::new();
    let mark = bundle.folder().join("started");
    bundle.script("tests/graft", &HANGS.replace("MARK", mark.to_str().unwrap()));
    let mut command = bundle.command(&["--json"], &[]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..3000 {
        if fs::read_to_string(&mark).is_ok_and(|text| text.lines().count() == 2) {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: the signal goes to a child that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(130), None));
    let report = bundle.report();
    assert!(report.contains("the run was interrupted"), "{report}");
    for pid in fs::read_to_string(&mark).unwrap().lines() {
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap(), "process {pid} is left");
    }
    assert_eq!(bundle.scratch_folders(), 0, "the folder of the run is left");
}

#[test]
fn quick_leaves_out_what_takes_long_and_says_so() {
    let ran = run(&[("tests/faults", "exit 9")], &["--quick", "--json"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let row = ran.row("large", "opencl:0");
    let told = (&row["passed"], &row["failed"], &row["skipped"]);
    assert_eq!(told, (&0.into(), &0.into(), &1.into()), "{row}");
    assert_eq!(row["why"], "not part of --quick");
    assert_eq!(ran.row("faults", "all")["passed"], 0);
}

#[test]
fn the_number_of_hand_overs_is_passed_on() {
    for (arguments, number) in
        [(&["--soak"][..], "100000"), (&["--soak", "31"], "31"), (&[], "2000")]
    {
        let bundle = Bundle::new();
        let said = bundle.folder().join("said");
        bundle.conformance(&format!(
            "case $* in *--hand-overs*) echo \"$*\" >>'{}' ;; esac",
            said.display()
        ));
        assert_eq!(bundle.run(arguments).status.code(), Some(0));
        let said = fs::read_to_string(&said).unwrap();
        assert_eq!(said.lines().count(), 3);
        assert!(
            said.lines().all(|line| line.contains(&format!("--hand-overs {number} "))),
            "{said}"
        );
    }
}

#[test]
fn devices_can_be_chosen() {
    let ran = run(&[], &["--devices", "opencl", "--json"]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let rows = ran.rows();
    let places = |chapter: &str| -> Vec<String> {
        let rows = rows.iter().filter(|row| row["name"] == chapter && row["device"] != "all");
        rows.map(|row| row["device"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(places("doctor"), ["opencl:0"]);
    assert_eq!(places("sync"), ["host <-> opencl:0", "opencl:0 <-> vulkan:0"]);
    let ran = run(&[], &["--devices", "host,opencl:0", "--json"]);
    let sync: Vec<Value> = ran.rows().into_iter().filter(|row| row["name"] == "sync").collect();
    assert_eq!(sync.iter().filter(|row| row["device"] != "all").count(), 1);
}

#[test]
fn wrong_usage_exits_with_two_and_prints_no_results() {
    let wrong = [
        (
            &["--devices", "cuda:7"][..],
            "no device fits `cuda:7`; there are host, opencl:0, vulkan:0",
        ),
        (&["--soak", "0"], "`0`"),
        (&["--quick", "--soak"], "exclude each other"),
        (&["--html", "/nowhere/at/all.html"], "--html /nowhere/at/all.html"),
        (&["--slow"], "no such option: --slow"),
    ];
    for (arguments, part) in wrong {
        let ran = run(&[], arguments);
        assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains(part), "{ran:?}");
    }
    let lonely = Bundle::new();
    fs::remove_file(lonely.folder().join("onebuf-bundle")).unwrap();
    let ran = lonely.run(&[]);
    assert!(ran.status.code() == Some(2) && ran.stderr.contains("unpacked bundle"), "{ran:?}");
    let ran = run(&[], &["--help"]);
    assert!(ran.status.code() == Some(0) && ran.stdout.contains("--soak"), "{ran:?}");
}

#[test]
fn the_table_has_each_device_and_chapter() {
    let ran = run(&[("tests/vulkan", "exit 4")], &[]);
    let line = |chapter: &str| {
        let mut lines = ran.stdout.lines().filter(|line| line.starts_with(chapter));
        lines
            .next()
            .unwrap_or_else(|| panic!("{chapter}: {ran:?}"))
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect::<Vec<_>>()
    };
    assert_eq!(line("chapter"), ["chapter", "host", "opencl:0", "vulkan:0", "all"]);
    // A pair counts for both of its devices; each script prints two checks that pass, and one that is skipped.
    assert_eq!(line("sync"), ["sync", "ok 4", "ok 4", "ok 4", "ok 2"]);
    assert_eq!(line("suite"), ["suite", "ok 2", "ok 2", "skip", "ok 4"]);
    assert_eq!(line("vulkan"), ["vulkan", "-", "-", "-", "FAIL 1/1"]);
    assert!(ran.report.contains("vulkan on all: vulkan: exit status 4"), "{}", ran.report);
}

#[test]
fn reports_are_private_pages_without_scripts() {
    let bundle = Bundle::new();
    let text = "echo 'skip: cannot read /home/ada/secret/list.txt for ada on engine' >&2\necho '<script>' >&2";
    bundle.script("tests/graft", &format!("{text}\n{PASSES}"));
    let crash = "echo 'ada: /home/ada/driver.log <b>is</b> full' >&2; kill -KILL $$";
    bundle.script("tests/libs", crash);
    let page = bundle.folder().join("page.html");
    let environment = [("USER", "ada"), ("HOME", "/home/ada"), ("HOSTNAME", "engine")];
    let ran = bundle.run_with(&["--json", "--html", page.to_str().unwrap()], &environment);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("crashed: SIGKILL") && page.contains("&lt;path&gt;"), "{page}");
    assert!(!page.contains("<script") && !page.contains("<b>") && !page.contains("http"), "{page}");
    let folder = bundle.folder().to_str().unwrap();
    for text in [&page, &ran.report, &ran.stdout] {
        for word in ["ada", "secret", "engine", "/home", folder] {
            assert!(!text.contains(word), "`{word}` in {text}");
        }
    }
}
