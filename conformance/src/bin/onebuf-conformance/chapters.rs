//! The chapters, and the processes that each is divided into.

use crate::{
    discovery::{APIS, Devices, Found},
    job::{Job, Tools},
    options::{Length, Options},
    parse::Format,
};
use std::{collections::BTreeMap, env, time::Duration};

/// What a row of a program that tests all devices together says as its device.
pub const ALL: &str = "all";
/// Programs of the bundle that are no tests.
const PROGRAMS: [&str; 3] = ["bin/conformance", "bin/doctor-helper", "bin/pending-work"];
/// The stub drivers and what tests them.
const STUBS: [&str; 6] = [
    "stub/libonebuf_stub.so",
    "stub/libonebuf_cuda_stub.so",
    "stub/libonebuf_layered_stub.so",
    "stub/libonebuf_gl_stub.so",
    "stub/onebuf_selftest",
    "stub/onebuf_share_selftest",
];
/// Milliseconds for which an experiment of the doctor may be silent.
const SILENCE_MS: &str = "10000";
/// Cases whose kernels are also written in GLSL.
const IN_GLSL: [&str; 3] = ["pairs::every", "pairs::interleaved", "pairs::readers"];
/// Kernels of most cases are not written in GLSL.
const NO_SHADERS: &str =
    "the cases' kernels are not in GLSL; pairs, sync, opengl and vulkan test this device";

/// A test program of the workspace.
#[derive(Debug)]
pub struct Test {
    pub chapter: &'static str,
    pub name: &'static str,
    /// Whether it belongs to a quick run.
    quick: bool,
    seconds: f64,
}

const fn test(chapter: &'static str, name: &'static str, seconds: f64) -> Test {
    Test { chapter, name, quick: true, seconds }
}

const fn long(chapter: &'static str, name: &'static str, seconds: f64) -> Test {
    Test { chapter, name, quick: false, seconds }
}

/// Every chapter, in the order of the report.
pub const CHAPTERS: [&str; 19] = [
    "discovery",
    "doctor",
    "suite",
    "pairs",
    "cuda",
    "opengl",
    "vulkan",
    "memory",
    "foreign",
    "neighbours",
    "peers",
    "graft",
    "libraries",
    "sync",
    "faults",
    "kill",
    "pipelines",
    "buffers",
    "large",
];

/// The test programs of each chapter.
pub const TESTS: [Test; 34] = [
    long("doctor", "doctor", 80.0),
    long("doctor", "twins", 20.0),
    test("suite", "report", 1.0),
    test("cuda", "cuda", 35.0),
    test("opengl", "gl", 38.0),
    test("vulkan", "vulkan", 15.0),
    test("memory", "address", 16.0),
    test("memory", "dma_buf", 2.0),
    test("memory", "export", 1.0),
    test("memory", "fd", 29.0),
    test("memory", "gpus", 9.0),
    test("memory", "on_chip", 1.0),
    long("foreign", "foreign", 180.0),
    test("neighbours", "ash", 3.0),
    test("neighbours", "cudarc", 2.0),
    test("neighbours", "glow", 4.0),
    long("neighbours", "opencl3", 10.0),
    long("neighbours", "wgpu", 15.0),
    test("peers", "peer", 30.0),
    test("graft", "graft", 3.0),
    test("libraries", "libs", 6.0),
    long("sync", "soak", 7.0),
    long("faults", "bad_input", 2.0),
    long("faults", "failover", 21.0),
    long("faults", "faults", 42.0),
    long("faults", "forgotten", 2.0),
    long("kill", "chaos", 20.0),
    long("kill", "endings", 15.0),
    long("kill", "one_thread", 6.0),
    test("pipelines", "pipeline", 7.0),
    test("pipelines", "transfers", 11.0),
    test("buffers", "pool", 3.0),
    test("buffers", "programs", 17.0),
    long("large", "large", 1.0),
];

/// The files that a bundle contains, without the runner itself.
pub fn contents() -> Vec<String> {
    let tests = TESTS.iter().map(|test| format!("tests/{}", test.name));
    PROGRAMS.iter().chain(&STUBS).map(|&name| name.to_owned()).chain(tests).collect()
}

/// Makes the jobs of a run.
pub struct Plan<'p> {
    pub options: &'p Options,
    pub tools: &'p Tools,
    pub devices: &'p Devices,
    /// The devices under test.
    pub chosen: &'p [Found],
    /// A process that takes longer hangs.
    pub limit: Duration,
}

impl Plan<'_> {
    /// All jobs, in the order in which they run.
    pub fn jobs(&self) -> Vec<Job> {
        let of = |chapter: &str| -> Vec<Job> {
            let own = match chapter {
                "doctor" => self.chosen.iter().map(|one| self.doctor(one)).collect(),
                "suite" => self.suite(),
                "pairs" => self.pairs(),
                "sync" => self.each_pair(|pair| self.hand_overs(pair)),
                "large" => self.chosen.iter().map(|one| self.large(one)).collect(),
                _ => Vec::new(),
            };
            let tests = TESTS.iter().filter(|test| test.chapter == chapter);
            own.into_iter().chain(tests.map(|test| self.test(test))).collect()
        };
        CHAPTERS.iter().flat_map(|chapter| of(chapter)).collect()
    }

    /// The ordered pairs in two orders are one job. With one device named, every pair that contains it.
    fn each_pair(&self, job: impl Fn([&Found; 2]) -> Job) -> Vec<Job> {
        let named = |one: &Found| self.chosen.contains(one);
        let lone = !self.options.devices.is_empty() && self.chosen.len() == 1;
        let all = &self.devices.found;
        let mut jobs = Vec::new();
        for (at, a) in all.iter().enumerate() {
            for b in &all[at + 1..] {
                let wanted = if lone { named(a) || named(b) } else { named(a) && named(b) };
                if wanted {
                    jobs.push(job([a, b]));
                }
            }
        }
        jobs
    }

    /// A job of these devices that loads their drivers alone.
    fn job(&self, chapter: &'static str, devices: &[&Found], arguments: &[&str]) -> Job {
        let mut apis: Vec<&str> = devices.iter().map(|one| one.api.as_str()).collect();
        apis.dedup();
        self.job_with(&apis, chapter, devices, arguments)
    }

    /// A job of these devices that loads the drivers of these APIs.
    fn job_with(
        &self,
        apis: &[&str],
        chapter: &'static str,
        devices: &[&Found],
        arguments: &[&str],
    ) -> Job {
        let of: Vec<String> = devices.iter().map(|one| one.id.clone()).collect();
        let mut all: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        all.extend(["--apis".to_owned(), apis.join(","), "--lines".to_owned()]);
        all.extend(of.iter().flat_map(|id| ["--device".to_owned(), id.clone()]));
        Job {
            chapter,
            device: if of.is_empty() { ALL.into() } else { of.join(" <-> ") },
            of,
            program: "bin/conformance".into(),
            arguments: all,
            environment: BTreeMap::new(),
            format: Format::Lines,
            limit: self.limit,
            seconds: 2.0,
            skip: None,
        }
    }

    /// The routes that begin at one device.
    fn doctor(&self, from: &Found) -> Job {
        let ids: Vec<&str> = match self.options.devices.len() {
            0 => Vec::new(),
            _ if self.chosen.len() == 1 => Vec::new(),
            _ => self.chosen.iter().map(|one| one.id.as_str()).collect(),
        };
        let mut arguments = vec![self.tools.verdicts(), SILENCE_MS.to_owned()];
        if self.options.length != Length::Quick {
            arguments.push("staged".into());
        }
        arguments.push(format!("from={}", from.id));
        arguments.push(format!("only={}", self.working_apis().join(",")));
        arguments.extend((!ids.is_empty()).then(|| format!("to={}", ids.join(","))));
        Job {
            program: "bin/doctor-helper".into(),
            arguments,
            format: Format::Doctor,
            seconds: 5.0 * self.devices.found.len() as f64,
            ..self.job("doctor", &[from], &[])
        }
    }

    /// The APIs that have a device.
    fn working_apis(&self) -> Vec<&str> {
        let mut apis: Vec<&str> = self.devices.found.iter().map(|one| one.api.as_str()).collect();
        apis.sort_unstable();
        apis.dedup();
        apis
    }

    /// Each device alone, and devices without a driver, which are the controls of the suite.
    fn suite(&self) -> Vec<Job> {
        let alone = |one: &Found| Job {
            skip: has_shaders(one).then(|| NO_SHADERS.to_owned()),
            ..self.job("suite", &[one], &["--exactly"])
        };
        let mut jobs: Vec<Job> = self.chosen.iter().map(alone).collect();
        let arguments = ["--fakes", "--lines", "--apis", "host"].map(str::to_owned).into();
        let device = "without drivers".to_owned();
        jobs.push(Job { device, arguments, seconds: 12.0, ..self.job("suite", &[], &[]) });
        jobs
    }

    /// Each pair in both orders, and what needs three devices or more.
    fn pairs(&self) -> Vec<Job> {
        let both = |pair: [&Found; 2]| match pair.iter().any(|one| has_shaders(one)) {
            true => self.job("pairs", &pair, &[&["--exactly", "--shaders"][..], &IN_GLSL].concat()),
            false => self.job("pairs", &pair, &["--exactly"]),
        };
        let mut jobs = self.each_pair(both);
        let plain: Vec<&Found> = self.chosen.iter().filter(|one| !has_shaders(one)).collect();
        let many = self.job("pairs", &plain, &["--many"]);
        let skip = (plain.len() < 3).then(|| "there are no three devices with kernels".to_owned());
        jobs.push(Job { device: ALL.into(), of: Vec::new(), skip, ..many });
        jobs
    }

    fn hand_overs(&self, pair: [&Found; 2]) -> Job {
        let rounds = self.options.length.hand_overs();
        let (number, verdicts) = (rounds.to_string(), self.tools.verdicts());
        // A third API may join the two: Vulkan makes the semaphores of a GPU.
        let apis = self.working_apis();
        let arguments = ["--hand-overs", &number, "--cache", &verdicts];
        let job = self.job_with(&apis, "sync", &pair, &arguments);
        // Two directions, and up to six methods; a slow driver needs a millisecond for each.
        let seconds = f64::from(rounds) / 900.0;
        let limit = self.limit + Duration::from_millis(u64::from(rounds) * 60);
        Job { seconds, limit, ..job }
    }

    fn large(&self, one: &Found) -> Job {
        let quick = self.options.length == Length::Quick;
        Job {
            seconds: 10.0,
            skip: quick.then(not_in_quick),
            ..self.job("large", &[one], &["--large"])
        }
    }

    fn test(&self, test: &Test) -> Job {
        let quick = self.options.length == Length::Quick;
        let mut job = Job {
            program: format!("tests/{}", test.name),
            arguments: Vec::new(),
            format: Format::Libtest,
            seconds: test.seconds,
            skip: (quick && !test.quick).then(not_in_quick),
            ..self.job(test.chapter, &[], &[])
        };
        job.environment = self.environment();
        if let Length::Soak(rounds) = self.options.length {
            job.environment.insert("ONEBUF_SOAK".into(), rounds.to_string());
            job.limit += Duration::from_millis(u64::from(rounds) * 200);
        }
        job
    }

    /// Test programs use every device that they find: those of APIs that are broken or not under test are hidden from them.
    fn environment(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let is_off = |api: &str| {
            let broken = self.devices.broken.contains(&api);
            let named = self.chosen.iter().any(|one| one.api == api);
            broken || !self.options.devices.is_empty() && !named
        };
        let has_vulkan_gpu =
            self.devices.found.iter().any(|one| one.api == "vulkan" && one.is_gpu());
        for (api, variable) in APIS {
            // As in `./dev test`: each further device squares the pairs of a program. Those of Vulkan name its loader. A GPU's
            // Vulkan stays: it makes the semaphores by which the GPU's other APIs are joined.
            let is_extra = api == "vulkan" && !has_vulkan_gpu && env::var_os(variable).is_none();
            if is_extra || is_off(api) {
                all.insert(variable.to_owned(), "none".to_owned());
            }
        }
        all
    }
}

fn has_shaders(one: &Found) -> bool {
    ["gl", "vulkan"].contains(&one.api.as_str())
}

fn not_in_quick() -> String {
    "not part of --quick".to_owned()
}
