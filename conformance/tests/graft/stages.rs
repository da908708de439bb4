//! Pipelines that graft automatically: OpenCL stages run in the queue of the neighbouring CUDA stage. With stubs of both, each
//! computing in its own memory, and on a GPU if there is one.

use onebuf::{
    Access, Buffer, Device, Grid, Hub, HubBuilder, Kernel, ProgramCache, Queue, Result, RouteKind,
    Signature, Source, args,
    doctor::{Doctor, Verdicts},
    pipeline::{Builder, Filled, Graft, Pipeline, Report, StageReport, Work},
    topology::{Route, Verdict, VerdictState},
    trace::{Event, HubBuilderTraceExt, HubTraceExt, What},
};
use onebuf_conformance::{
    Hardware, Side, Step, Watchdog, assert_same, forged, forged_verdicts, helper, lacking, one_api,
    play, random_words, step_model,
};
use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

const N: usize = 3000;
const FRAMES: u64 = 16;

/// The kernel of `Side`, under a name that the graft accepts.
const TEXT: &str = "
kernel void advance(global uint *p, uint first, uint n, uint mul, uint add) {
    uint i = (uint)get_global_id(0);
    if (i < n) p[first + i] = p[first + i] * mul + add + i;
}
";

/// The relevant parts of what NVIDIA's compiler makes of the kernel; the stub computes by the kernel's name.
const STEP: &str = "//
.version 8.8
.target sm_90, texmode_independent
.address_size 64

.entry advance(
	.param .u64 .ptr .global .align 4 advance_param_0,
	.param .u32 advance_param_1,
	.param .u32 advance_param_2,
	.param .u32 advance_param_3,
	.param .u32 advance_param_4
)
{
	ret;
}
";

/// A program that cannot be grafted.
const PRINTF: &str = include_str!("../../graft/refused_printf.ptx");

/// Runs a test in a separate process, because the stubs read their mode when they are loaded.
fn played(test: &str, binary: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("binary");
    fs::write(&path, binary).unwrap();
    let late = [("ONEBUF_STUB_DELAY_US", "200"), ("ONEBUF_CUDA_STUB_DELAY_US", "300")];
    let path = [("ONEBUF_STUB_BINARY", path.to_str().unwrap())];
    play(&format!("stages::{test}"), "CUDA", "imports,cached", &[&path[..], &late].concat());
}

#[test]
fn proven_kernels_move_to_their_neighbour() {
    played("moved", STEP);
}

#[test]
fn what_does_not_move_says_why() {
    played("not_moved", STEP);
}

#[test]
fn what_cannot_be_grafted_runs_natively() {
    played("refused", PRINTF);
}

#[test]
fn kernels_have_one_other_device() {
    played("kernels", STEP);
}

fn builder() -> HubBuilder {
    let builder = onebuf::builder().without(["vulkan", "gl"]).program_cache(ProgramCache::Memory);
    builder.timeout(Duration::from_secs(60))
}

/// One chip, as an OpenCL and a CUDA device.
fn pair(hub: &Hub) -> Option<[Device; 2]> {
    let cuda = hub.select("cuda");
    let twice = |cl: &Device| {
        let same = |cuda: &&Device| cuda.info().physical.same_chip(&cl.info().physical);
        cuda.iter().find(same).map(|cuda| [cl.clone(), cuda.clone()])
    };
    hub.select("opencl").iter().find_map(twice)
}

/// A hub with a tracer and that forged verdict on grafting. Its forged verdicts say that CUDA's memory is shared with OpenCL
/// without a copy, which is true on a GPU and with the stubs.
fn with_forged(graft: VerdictState) -> Option<Hub> {
    let hub = builder().verdicts(Default::default()).build().unwrap();
    let is_opaque = |kind| kind == RouteKind::OpaqueFd;
    let mut verdicts = forged_verdicts(&hub, &forged(Some(true), None), is_opaque);
    let [from, to] = pair(&hub)?.map(|device| hub.topology().node(device.index()));
    let verdict = Verdict { state: graft, why: "by this test".into(), ..Verdict::default() };
    verdicts.insert_graft(from, to, verdict);
    Some(builder().verdicts(verdicts).trace(1 << 16).build().unwrap())
}

/// A hub with a tracer and the doctor's own verdicts on grafting and on CUDA's memory in OpenCL; `None` without such a chip.
fn with_the_doctors() -> Option<Hub> {
    let private = fs::Permissions::from_mode(0o700);
    let cache = tempfile::Builder::new().permissions(private).tempdir().unwrap();
    let hub = builder().cache(cache.path()).build().unwrap();
    let [cl, cuda] = pair(&hub)?.map(|device| device.index());
    let doctor = Doctor::new(helper("doctor-helper")).unwrap().cache(cache.path());
    let shared =
        |route: &Route| route.kind == RouteKind::OpaqueFd && (route.from, route.to) == (cuda, cl);
    doctor.run_where(&hub, shared, &mut |_| ()).unwrap();
    let found = doctor.grafts(&hub, |_, _| true, &mut |_| ()).unwrap().found;
    let is_proven = found.iter().any(|graft| graft.verdict.state == VerdictState::Proven);
    assert!(is_proven, "{found:?}");
    let verdicts = Verdicts::load(cache.path()).unwrap();
    Some(builder().verdicts(verdicts).trace(1 << 16).build().unwrap())
}

/// Both sides of the chip.
struct Sides {
    hub: Hub,
    cl: Kernel,
    cuda: Side,
}

impl Sides {
    fn of(hub: Hub) -> Self {
        let [cl, cuda] = pair(&hub).unwrap();
        let words = Signature::new().buffer::<u32>(Access::ReadWrite).value::<u32>();
        let words = words.value::<u32>().value::<u32>().value::<u32>();
        let program = cl.program(&Source::opencl_c(TEXT)).unwrap();
        // SAFETY: every launch here uses the first words of a buffer that has as many.
        let cl = unsafe { program.kernel("advance", words) }.unwrap();
        Self { hub, cl, cuda: Side::open(&cuda).unwrap() }
    }

    /// Runs `FRAMES` frames through these stages, which do `count` steps. Every element of every frame is checked.
    fn run<'s>(&'s self, count: u32, stages: impl FnOnce(Stages<'s>) -> Stages<'s>) -> Ran {
        let trace = self.hub.trace().unwrap();
        trace.clear();
        let devices = [self.cl.device(), &self.cuda.device];
        let slot = move |_| self.hub.buffer::<u32>(N).shared_with(devices).build();
        let mut pipeline = stages(Pipeline::builder(3, slot))
            .source(|slot, frame| match frame {
                FRAMES => Ok(Filled::End),
                _ => slot.write(&random_words(frame, N)).map(|()| Filled::Frame),
            })
            .sink(|slot, frame| {
                let (mut model, found) = (random_words(frame, N), slot.to_vec()?);
                (1..count).for_each(|number| step_model(&mut model, Step::nth(number)));
                assert_ne!(found, model, "the control: a stage less is another result");
                step_model(&mut model, Step::nth(count));
                assert_same(&found, &model, &format!("frame {frame}"));
                Ok(())
            })
            .build()
            .unwrap();
        let (explained, report) = (pipeline.explain(), pipeline.run().unwrap());
        assert_eq!(report.frames, FRAMES);
        Ran { report, explained, events: trace.events() }
    }

    /// An OpenCL stage, then a CUDA stage.
    fn two<'s>(&'s self, stages: Stages<'s>) -> Stages<'s> {
        self.cuda(self.cl(stages, 1), 2)
    }

    fn cl<'s>(&'s self, stages: Stages<'s>, nth: u32) -> Stages<'s> {
        let stages = stages.stage("cl", self.cl.device(), step(&self.cl, nth));
        stages.launches([&self.cl])
    }

    fn cuda<'s>(&'s self, stages: Stages<'s>, nth: u32) -> Stages<'s> {
        stages.stage("cuda", &self.cuda.device, step(self.cuda.kernel(), nth))
    }
}

type Stages<'s> = Builder<'s, Buffer<u32>>;

/// One step of a frame, in the stage's queue.
fn step(kernel: &Kernel, nth: u32) -> impl FnMut(Work<'_, Buffer<u32>>) -> Result<()> + Send + '_ {
    let Step { mul, add } = Step::nth(nth);
    move |work| {
        let arguments = args![work.slot.write_on(work.queue)?, 0u32, N as u32, mul, add];
        let grid = Grid::from([N.next_multiple_of(64)]).local([64]);
        work.queue.launch(kernel, grid, arguments)
    }
}

struct Ran {
    report: Report,
    explained: String,
    events: Vec<Event>,
}

impl Ran {
    fn stage(&self, at: usize) -> (&str, Option<Graft>) {
        let StageReport { device, graft, .. } = &self.report.stages[at];
        (device, graft.clone())
    }

    /// How often a buffer went from one device to another, without the host.
    fn crossings(&self) -> usize {
        let between = |event: &&Event| {
            let both = [Some(event.device), event.from].map(|d| d.map_or(0, |d| d.get()));
            event.what == What::HandOver && both[0] != both[1] && !both.contains(&0)
        };
        self.events.iter().filter(between).count()
    }

    /// The number of queues in which kernels were launched.
    fn queues(&self) -> usize {
        let launches = self.events.iter().filter(|event| event.what == What::Launch);
        let mut queues: Vec<_> = launches.map(|event| (event.device, event.queue)).collect();
        queues.sort_unstable();
        queues.dedup();
        queues.len()
    }

    #[track_caller]
    fn assert_native(&self, why: &str) {
        let (device, graft) = self.stage(0);
        assert!(device.starts_with("opencl"), "{device}");
        assert!(matches!(&graft, Some(Graft::Not(said)) if said.contains(why)), "{why}: {graft:?}");
        let told = self.events.iter().find(|event| event.what == What::Graft).unwrap();
        assert!(told.failed && told.why.as_ref().is_some_and(|said| said.contains(why)));
        assert!(self.explained.contains(why), "{}", self.explained);
        assert!(self.crossings() >= FRAMES as usize, "{}", self.crossings());
        assert_eq!(self.queues(), 2);
    }

    #[track_caller]
    fn assert_moved(&self, stages: &[usize]) {
        for &at in stages {
            let (device, graft) = self.stage(at);
            assert!(device.starts_with("cuda"), "{}", self.explained);
            assert!(
                matches!(&graft, Some(Graft::From(cl)) if cl.starts_with("opencl")),
                "{graft:?}"
            );
        }
        let told = self.events.iter().filter(|event| event.what == What::Graft);
        assert_eq!(told.filter(|event| !event.failed).count(), stages.len());
        assert_eq!(self.explained.matches("grafted: no hand-over").count(), stages.len());
        assert_eq!((self.crossings(), self.queues()), (0, 1), "all in one stream");
    }
}

#[test]
#[ignore = "played with the stubs"]
fn moved() {
    let sides = Sides::of(with_forged(VerdictState::Proven).unwrap());
    sides.run(2, |stages| sides.two(stages)).assert_moved(&[0]);
    sides.run(2, |stages| sides.two(stages).one_thread()).assert_moved(&[0]);
    // After its neighbour, on both sides of it, and next to a stage that moved itself.
    sides.run(2, |all| sides.cl(sides.cuda(all, 1), 2)).assert_moved(&[1]);
    sides.run(3, |all| sides.cl(sides.cuda(sides.cl(all, 1), 2), 3)).assert_moved(&[0, 2]);
    let four = |all| sides.cl(sides.cuda(sides.cl(sides.cl(all, 1), 2), 3), 4);
    sides.run(4, four).assert_moved(&[0, 1, 3]);
    // There is no stage to move to.
    let alone = sides.run(2, |all| sides.cl(sides.cl(all, 1), 2));
    assert_eq!((alone.stage(0).1, alone.stage(1).1), (None, None));
    assert!(alone.events.iter().all(|event| event.what != What::Graft));
}

#[test]
#[ignore = "played with the stubs"]
fn not_moved() {
    let sides = Sides::of(with_forged(VerdictState::Proven).unwrap());
    sides.run(2, |stages| sides.two(stages).no_graft()).assert_native("turned off");
    let silent = sides
        .run(2, |stages| sides.cuda(stages.stage("cl", sides.cl.device(), step(&sides.cl, 1)), 2));
    silent.assert_native("does not say which kernels");
    let refuted = Sides::of(with_forged(VerdictState::Refuted).unwrap());
    refuted.run(2, |stages| refuted.two(stages)).assert_native("refuted: by this test");
    let unproven =
        Sides::of(builder().verdicts(Default::default()).trace(1 << 16).build().unwrap());
    unproven.run(2, |stages| unproven.two(stages)).assert_native("run `onebuf doctor`");

    let early = Pipeline::builder(1, |_| Ok(())).launches([&sides.cl]);
    let early = early.source(|_, _| Ok(Filled::End)).sink(|_, _| Ok(())).build();
    assert!(early.unwrap_err().to_string().contains("must follow a `stage`"));
}

#[test]
#[ignore = "played with the stubs"]
fn refused() {
    let sides = Sides::of(with_forged(VerdictState::Proven).unwrap());
    let ran = sides.run(2, |stages| sides.two(stages));
    ran.assert_native("`printf` is not grafted");
    ran.assert_native("line ");
}

#[test]
#[ignore = "played with the stubs"]
fn kernels() {
    let sides = Sides::of(with_forged(VerdictState::Proven).unwrap());
    let buffer = sides.hub.buffer::<u32>(N);
    let buffer = buffer.shared_with([sides.cl.device(), &sides.cuda.device]).build().unwrap();
    let (mut model, kernel) = (random_words(7, N), &sides.cl);
    buffer.write(&model).unwrap();
    let mut launch = |queue: &Queue, nth: u32| -> Result<()> {
        let Step { mul, add } = Step::nth(nth);
        let arguments = args![buffer.write_on(queue)?, 0u32, N as u32, mul, add];
        queue.launch(kernel, Grid::from([N.next_multiple_of(64)]).local([64]), arguments)?;
        step_model(&mut model, Step::nth(nth));
        Ok(())
    };
    let queue = sides.cl.device().queue().unwrap();
    let misplaced = launch(&sides.cuda.queue, 1).unwrap_err().to_string();
    assert!(misplaced.contains("was built for opencl:0, the queue is of cuda:0"), "{misplaced}");
    kernel.graft(&sides.cuda.device).unwrap();
    kernel.graft(&sides.cuda.device).unwrap();
    for nth in 1..4 {
        launch(&sides.cuda.queue, nth).unwrap();
        launch(&queue, 10 * nth).unwrap();
    }
    let elsewhere = kernel.graft(&sides.hub.device("cuda:1").unwrap()).unwrap_err().to_string();
    assert!(elsewhere.contains("is grafted on cuda:0 already"), "{elsewhere}");
    assert_same(&buffer.to_vec().unwrap(), &model, "by turns");
}

/// The pipelines on a real chip, by the doctor's verdicts: OpenCL's compiler, CUDA's stream.
#[test]
fn on_a_gpu_nothing_is_handed_over() {
    let _alone = one_api();
    let _watchdog = Watchdog::new("a pipeline that grafts", Duration::from_secs(240));
    let Some(hub) = with_the_doctors() else {
        return lacking(&[Hardware::Nvidia], "no GPU that both OpenCL and CUDA see");
    };
    let sides = Sides::of(hub);
    sides.run(2, |stages| sides.two(stages)).assert_moved(&[0]);
    sides.run(2, |stages| sides.two(stages).no_graft()).assert_native("turned off");
}
