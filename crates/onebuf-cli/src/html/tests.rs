//! The pages, rendered by a real browser.

use super::*;
use onebuf::{
    Hub, MemoryKind, RouteKind, SyncMethod,
    doctor::Diagnosis,
    fake::FakeConfig,
    topology::{DeviceIx, Envelope, Route, Verdict, VerdictState},
};
use onebuf_bench::{Bar, Outcome, Row, Skipped, Unit, abba::Compared, solo::Alone};
use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Time limit for rendering a page.
const PATIENCE: Duration = Duration::from_secs(60);

/// A hostile device name.
const HOSTILE: &str =
    "<script>document.title='taken'</script><img src=http://example.invalid/x onerror=nope()>";

fn hub() -> Hub {
    let fake = |name: &str| FakeConfig { name: name.into(), ..FakeConfig::default() };
    let builder = onebuf::builder().only(["host"]);
    let builder = builder.verdicts(Default::default()).fake(fake(HOSTILE)).fake(fake("a & b"));
    builder.build().unwrap()
}

fn route(
    from: u16,
    to: u16,
    kind: RouteKind,
    state: VerdictState,
    zero_copy: Option<bool>,
) -> Route {
    let verdict = Verdict {
        state,
        zero_copy,
        why: format!("because of {HOSTILE}"),
        sync: Some(SyncMethod::Callback),
        handoff_us: Some(12.5),
        gb_per_s: Some(33.0),
        envelope: None,
    };
    Route {
        from: DeviceIx(from),
        to: DeviceIx(to),
        kind,
        memory_kind: None,
        needs: String::new(),
        guaranteed: false,
        cost: 1,
        verdict,
    }
}

fn report(hub: &Hub) -> Diagnosis {
    use RouteKind::{HostPointer, Staged};
    let routes = vec![
        route(0, 1, HostPointer, VerdictState::Proven, Some(true)),
        route(0, 1, Staged, VerdictState::Proven, Some(false)),
        route(1, 0, HostPointer, VerdictState::Refuted, None),
        route(1, 0, Staged, VerdictState::Proven, Some(false)),
        route(0, 2, HostPointer, VerdictState::Refuted, None),
        route(1, 2, HostPointer, VerdictState::Declared, None),
        route(1, 1, HostPointer, VerdictState::Proven, Some(true)),
    ];
    let devices = hub.devices().iter().map(|device| device.id().to_owned()).collect();
    Diagnosis { devices, routes, experiments: 7, cached: Default::default() }
}

fn outcome() -> Outcome {
    let compared = |name: &str, ratio: f64, bar| {
        let interval = Some((ratio * 0.9, ratio * 1.1));
        let found = Compared { ours_ns: 1e3 * ratio, baseline_ns: 1e3, ratio, interval, blocks: 9 };
        Row::compared(name, Unit::Us, &found).bar(bar).remark(HOSTILE)
    };
    let alone = |name: &str, ns| Row::alone(name, Unit::Us, &Alone { ns, batches: 9 });
    let results = vec![
        compared("handoff_a_b_ratio", 1.0, Bar::RatioAtMost(1.05)),
        compared("launch_ratio", 1.1, Bar::RatioAtMost(1.05)),
        compared("wrap_ratio", 3.0, Bar::RatioAtMost(1.05)),
        alone("frame_64KiB_us", 900.0),
        alone("frame_1MiB_us", 9000.0),
        alone("frame_16MiB_us", 99_000.0),
    ];
    let skipped = vec![Skipped { name: HOSTILE.into(), why: "no such chip".into(), failed: false }];
    Outcome { results, skipped }
}

/// A page as the browser rendered it.
struct RenderedPage {
    dom: String,
    console: Vec<String>,
    requests: Vec<String>,
}

/// Loads a page as a user would; `None` without a browser.
fn browse(page: &str) -> Option<RenderedPage> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("page.html"), page).unwrap();
    let ran = Command::new(browser()?)
        // In a container Chromium runs as root, which needs `--no-sandbox`; the page is our own.
        .args([
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--timeout=20000",
        ])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--log-net-log={}", at("net.json").display()))
        .arg(format!("--user-data-dir={}", at("profile").display()))
        .arg(format!("file://{}", at("page.html").display()))
        .stdin(Stdio::null())
        .stdout(fs::File::create(at("dom")).unwrap())
        .stderr(fs::File::create(at("log")).unwrap())
        .spawn()
        .expect("the browser starts");
    let ended = wait(ran);
    let read = |name: &str| String::from_utf8_lossy(&fs::read(at(name)).unwrap()).into_owned();
    let log = read("log");
    assert!(ended, "the browser failed or hangs: {log}");
    let net = read("net.json");
    let requests = net.split("\"url\":\"").skip(1).filter(|rest| !rest.starts_with("file:"));
    Some(RenderedPage {
        dom: read("dom"),
        console: log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect(),
        requests: requests.map(|rest| rest.chars().take(60).collect()).collect(),
    })
}

/// Whether the browser exited successfully within the limit.
fn wait(mut browser: Child) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = browser.try_wait().unwrap() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    browser.kill().unwrap();
    browser.wait().unwrap();
    false
}

/// The lightest browser available; strict mode requires one.
fn browser() -> Option<PathBuf> {
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let all = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = all.into_iter().find(|path| path.is_file());
    if found.is_none() {
        let strict =
            std::env::var("ONEBUF_STRICT").is_ok_and(|level| !["", "0"].contains(&&*level));
        assert!(!strict, "no browser (chromium-headless-shell), and ONEBUF_STRICT is set");
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "skip: pages in a browser: no chromium-headless-shell");
    }
    found
}

#[track_caller]
fn assert_quiet(seen: &RenderedPage) {
    assert_eq!(seen.console, Vec::<String>::new());
    assert_eq!(seen.requests, Vec::<String>::new());
    assert!(!seen.dom.contains("<script") && !seen.dom.contains("<img"), "{}", seen.dom);
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

/// The element that begins with this text, up to its end tag.
#[track_caller]
fn part<'t>(dom: &'t str, begins: &str, ends: &str) -> &'t str {
    let start = dom.find(begins).unwrap_or_else(|| panic!("no {begins}"));
    &dom[start..start + dom[start..].find(ends).unwrap()]
}

#[test]
fn the_browser_would_tell() {
    let bad = format!("<!doctype html><title>x</title><p>{HOSTILE}</p><script>nope()</script>");
    let Some(seen) = browse(&bad) else { return };
    assert!(
        seen.console.iter().any(|line| line.contains("nope is not defined")),
        "{:?}",
        seen.console
    );
    assert!(seen.requests.iter().any(|url| url.contains("example.invalid")), "{:?}", seen.requests);
    assert!(seen.dom.contains("<title>taken</title>"));
}

#[test]
fn what_slipped_through_would_not_run() {
    let hub = hub();
    let page = doctor_page(&Machine::of(&hub), hub.topology().nodes(), &report(&hub), 1.5);
    let Some(seen) = browse(&page.replace("<header>", &format!("<header>{HOSTILE}"))) else {
        return;
    };
    assert!(seen.dom.contains("<title>onebuf doctor</title>"));
    assert_eq!(seen.requests, Vec::<String>::new());
    assert!(seen.console.iter().any(|line| line.contains("Content Security Policy")));
}

#[test]
fn the_doctors_page_has_its_cells() {
    let hub = hub();
    let page = doctor_page(&Machine::of(&hub), hub.topology().nodes(), &report(&hub), 1.5);
    let Some(seen) = browse(&page) else { return };
    assert_quiet(&seen);
    assert!(seen.dom.contains("<title>onebuf doctor</title>"));
    let matrix = part(&seen.dom, "<section id=\"matrix\"", "</section>");
    assert_eq!(count(matrix, "<td"), 9);
    assert_eq!(count(matrix, "scope=\"col\"") + count(matrix, "scope=\"row\""), 4 + 3);
    for (from, to, state) in [
        ("host", "fake:0", "zero-copy"),
        ("fake:0", "host", "copies"),
        ("host", "fake:1", "refuted"),
        ("fake:0", "fake:1", "declared"),
        ("fake:0", "fake:0", "zero-copy"),
    ] {
        let cell = part(matrix, &format!("data-from=\"{from}\" data-to=\"{to}\""), "</td>");
        assert!(cell.contains(&format!("data-state=\"{state}\"")), "{cell}");
        assert!(cell.contains("12.5 µs · 33.0 GB/s"), "{cell}");
        assert!(
            cell.contains(&format!(" {state}</span>")),
            "the word, not the colour alone: {cell}"
        );
    }
    assert!(part(matrix, "data-from=\"fake:1\" data-to=\"host\"", "</td>").contains("not tried"));
    assert_eq!(count(part(&seen.dom, "<section id=\"routes\"", "</section>"), "<tr>"), 1 + 7);
    let machine = part(&seen.dom, "<section id=\"machine\"", "</section>");
    assert!(machine.contains("&lt;script&gt;document.title='taken'"), "{machine}");
    assert!(machine.contains("a &amp; b") && machine.contains("switched off by the program"));
    let paste = part(&seen.dom, "<section id=\"paste\"", "</section>");
    assert!(paste.contains("host -&gt; fake:0 host_pointer: zero-copy"), "{paste}");
}

#[test]
fn the_matrix_shows_what_a_plan_takes() {
    let chip = |name: &str| FakeConfig {
        name: name.into(),
        unified: false,
        memory_kinds: vec![MemoryKind::Exportable, MemoryKind::HostPages],
        ..FakeConfig::default()
    };
    let builder = onebuf::builder().only(["host"]).verdicts(Default::default());
    let hub = builder.fake(chip("a")).fake(chip("b")).build().unwrap();
    let covered = |kind, memory_kind, gb_per_s| {
        let envelope = Some(Envelope { min_bytes: 1, max_bytes: 1 << 30, ..Envelope::default() });
        let mut route = route(1, 2, kind, VerdictState::Proven, Some(true));
        route.verdict = Verdict { envelope, gb_per_s: Some(gb_per_s), ..route.verdict };
        Route { memory_kind: Some(memory_kind), ..route }
    };
    let mut report = report(&hub);
    report.routes = vec![
        covered(RouteKind::HostPointer, MemoryKind::HostPages, 83.0),
        covered(RouteKind::OpaqueFd, MemoryKind::Exportable, 1100.0),
    ];
    let cell = |report: &Diagnosis| {
        let page = doctor_page(&Machine::of(&hub), hub.topology().nodes(), report, 1.5);
        part(&page, "data-from=\"fake:0\" data-to=\"fake:1\"", "</td>").to_owned()
    };
    // The host pointer is the better kind, but both chips would use it over the bus.
    let found = cell(&report);
    assert!(found.contains("opaque_fd") && found.contains("1100.0 GB/s"), "{found}");
    report.routes.pop();
    assert!(cell(&report).contains("host_pointer"), "without the descriptor");
}

#[test]
fn the_page_of_measurements_has_its_drawings() {
    let Some(seen) = browse(&bench_page(&Machine::of(&hub()), &outcome())) else { return };
    assert_quiet(&seen);
    let ratios = part(&seen.dom, "<section id=\"ratios\"", "</section>");
    for (name, state) in
        [("handoff_a_b_ratio", "met"), ("launch_ratio", "noise"), ("wrap_ratio", "missed")]
    {
        let group = part(ratios, &format!("class=\"ratio {state}\" data-name=\"{name}\""), "</g>");
        assert!(group.contains("class=\"interval\"") && group.contains("class=\"bar\""), "{group}");
    }
    assert_eq!(count(ratios, "class=\"ratio "), 3, "those without a ratio are not drawn");
    let growth = part(&seen.dom, "<section id=\"growth\"", "</section>");
    assert_eq!((count(growth, "<svg"), count(growth, "<circle")), (1, 3));
    let numbers = part(&seen.dom, "<section id=\"numbers\"", "</section>");
    assert_eq!(count(numbers, "scope=\"row\""), 6 + 1);
    assert!(numbers.contains("no such chip"));
}

#[test]
fn pages_need_nothing_else() {
    let hub = hub();
    let machine = Machine::of(&hub);
    for page in [
        doctor_page(&machine, hub.topology().nodes(), &report(&hub), 1.0),
        bench_page(&machine, &outcome()),
    ] {
        assert!(page.starts_with("<!doctype html>") && page.contains("default-src &#39;none&#39;"));
        for outside in ["src=\"", "href=\"", "url(", "@import", "<script", "<link", "<img"] {
            assert!(!page.contains(outside), "{outside}: {}", part(&page, outside, ">"));
        }
        let folder = tempfile::tempdir().unwrap();
        save(&folder.path().join("x.html"), &page).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("x.html")).unwrap(), page);
        assert!(save(&folder.path().join("absent/x.html"), &page).is_err());
    }
}
