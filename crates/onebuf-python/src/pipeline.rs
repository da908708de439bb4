//! Pipelines whose parts are functions of Python, or sources and sinks of the library.

use crate::{
    array::PyBuffer,
    ending::{self, Inside, detached, enter},
    ends::{Drain, Feed, PySink, PySource},
    error::{Fault, Raised, Result, exception},
    json::{dict, fields, objects},
    root::Root,
    types::{PyDevice, PyQueue},
};
use onebuf::{
    Buffer, Error,
    pipeline::{
        Builder, Failure, Filled, Handle, Latency, Pipeline, Report, StageReport, WhenFull,
    },
};
use pyo3::{PyTraverseError, PyVisit, exceptions::PyStopIteration, prelude::*, types::PyDict};
use std::{
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

/// How often a run looks at signals, and reports its progress at most.
const LOOK: Duration = Duration::from_millis(50);

/// What a stage's function gets: the slot, the queue for its work, and the frame's number.
#[pyclass(frozen, get_all, module = "onebuf", name = "Work")]
pub(crate) struct PyWork {
    /// The slot. No other part of the pipeline uses it during the call.
    slot: Py<PyAny>,
    /// The stage's queue.
    queue: Py<PyQueue>,
    /// The frame's number, from zero.
    frame: u64,
}

/// An object of the application that a pipeline holds. The garbage collector sees it through the pipeline's object, because a function may
/// refer to its own pipeline; it is empty after the collector has ended such a cycle.
#[derive(Clone)]
struct HeldObject(Arc<Mutex<Option<Py<PyAny>>>>);

impl HeldObject {
    fn new(object: Py<PyAny>) -> Self {
        Self(Arc::new(Mutex::new(Some(object))))
    }

    fn get(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = held.as_ref().map(|object| object.clone_ref(py));
        found.ok_or_else(|| Fault::invalid("the pipeline was collected").into())
    }

    /// Calls the object, which is not locked meanwhile.
    fn call<'py>(
        &self,
        py: Python<'py>,
        args: impl pyo3::call::PyCallArgs<'py>,
    ) -> PyResult<Py<PyAny>> {
        self.get(py)?.call1(py, args)
    }
}

/// One slot: what the application's function made, and the buffers that the library's source and sink use.
struct PipelineSlot {
    object: HeldObject,
    fed: Option<Arc<Root>>,
    drained: Option<Arc<Root>>,
}

/// The native part of `onebuf.Pipeline`.
#[pyclass(frozen, module = "onebuf", name = "_Pipeline")]
pub(crate) struct PyPipeline {
    line: Mutex<Pipeline<'static, PipelineSlot>>,
    handle: Handle,
    explained: String,
    /// The functions and the slots, for the garbage collector.
    held: Vec<HeldObject>,
}

/// A function of Python as a part of a pipeline: its exceptions travel through the library.
fn call<R>(body: impl FnOnce(Python<'_>) -> PyResult<R>) -> onebuf::Result<R> {
    let _inside = Inside::for_another();
    let called = Python::try_attach(body);
    let called = called.ok_or_else(|| Error::invalid("the interpreter has ended"))?;
    called.map_err(|error| Error::application(Raised(error)))
}

/// One end of a pipeline.
enum LineEnd<N> {
    Function(HeldObject),
    Native(N),
}

/// What a source's function returned: nothing or a truth value, or a word.
fn filled(py: Python<'_>, said: PyResult<Py<PyAny>>) -> PyResult<Filled> {
    let said = match said {
        Err(error) if error.is_instance_of::<PyStopIteration>(py) => return Ok(Filled::End),
        said => said?,
    };
    if let Ok(word) = said.extract::<String>(py) {
        return match word.as_str() {
            "frame" => Ok(Filled::Frame),
            "incomplete" => Ok(Filled::Incomplete),
            "idle" => Ok(Filled::Idle),
            "end" => Ok(Filled::End),
            other => Err(Fault::invalid(format!(
                "a source returned {other:?}: None, True, False, \"frame\", \"incomplete\", \"idle\" and \"end\" are known"
            ))
            .into()),
        };
    }
    let goes_on = said.is_none(py) || said.bind(py).is_truthy()?;
    Ok(if goes_on { Filled::Frame } else { Filled::End })
}

fn with_source(
    builder: Builder<'static, PipelineSlot>,
    source: LineEnd<Feed>,
) -> Builder<'static, PipelineSlot> {
    match source {
        LineEnd::Function(run) => builder.source(move |slot: &PipelineSlot, number| {
            call(|py| filled(py, slot.object.get(py).and_then(|slot| run.call(py, (slot, number)))))
        }),
        LineEnd::Native(mut feed) => builder
            .feed(move |frame: &mut [u8]| feed.fill(frame), |slot: &PipelineSlot| of(&slot.fed)),
    }
}

fn with_sink(
    builder: Builder<'static, PipelineSlot>,
    sink: LineEnd<Drain>,
) -> Builder<'static, PipelineSlot> {
    match sink {
        LineEnd::Function(run) => builder.sink(move |slot: &PipelineSlot, number| {
            call(|py| run.call(py, (slot.object.get(py)?, number)).map(drop))
        }),
        LineEnd::Native(mut drain) => builder.drain(
            move |frame: &[u8], number: u64| drain.take(frame, number),
            |slot: &PipelineSlot| of(&slot.drained),
        ),
    }
}

/// The buffer that a source or sink of the library uses: there is one in each slot, as `slot` has checked.
fn of(buffer: &Option<Arc<Root>>) -> &Buffer<u8> {
    match buffer {
        Some(root) => {
            root.awake();
            &root.buffer
        }
        None => unreachable!("every slot has the buffer"),
    }
}

/// Makes a slot, and finds the buffers in it.
fn slot(
    py: Python<'_>,
    make: &Py<PyAny>,
    feed: Option<&Py<PyAny>>,
    drain: Option<&Py<PyAny>>,
) -> Result<PipelineSlot> {
    let object = make.call0(py)?;
    let buffer = |which: Option<&Py<PyAny>>| {
        let Some(which) = which else { return Ok(None) };
        let found = which.call1(py, (&object,))?;
        let found = found.bind(py).cast::<PyBuffer>().map_err(PyErr::from)?.get();
        let root = found.root()?;
        if found.layout.bytes() != root.buffer.len() {
            return Err(Fault::invalid(
                "a source or sink of the library takes a whole buffer, not a part",
            ));
        }
        Ok(Some(root))
    };
    let (fed, drained) = (buffer(feed)?, buffer(drain)?);
    Ok(PipelineSlot { fed, drained, object: HeldObject::new(object) })
}

/// What happens to frames that do not fit, by its name.
fn when_full(name: &str) -> Result<WhenFull> {
    match name {
        "block" => Ok(WhenFull::Block),
        "drop_oldest" => Ok(WhenFull::DropOldest),
        "drop_newest" => Ok(WhenFull::DropNewest),
        other => Err(Fault::invalid(format!(
            "when_full={other:?}: use \"block\", \"drop_oldest\" or \"drop_newest\""
        ))),
    }
}

#[pymethods]
impl PyPipeline {
    #[new]
    #[pyo3(signature = (depth, make, source, stages, sink, feed, drain, batch, when_full, one_thread))]
    #[expect(clippy::too_many_arguments, reason = "called by `onebuf.Pipeline` alone")]
    fn new(
        py: Python<'_>,
        depth: usize,
        make: Py<PyAny>,
        source: Py<PyAny>,
        stages: Vec<(String, Py<PyDevice>, Py<PyAny>)>,
        sink: Py<PyAny>,
        feed: Py<PyAny>,
        drain: Py<PyAny>,
        batch: Option<usize>,
        when_full: &str,
        one_thread: bool,
    ) -> Result<Self> {
        let _inside = enter(py);
        let when_full = self::when_full(when_full)?;
        if !(1..=1 << 16).contains(&depth) {
            return Err(Fault::invalid(format!("depth {depth}: 1 to 65536 slots are possible")));
        }
        let mut held = Vec::new();
        let mut keep = |object: Py<PyAny>| {
            held.push(HeldObject::new(object));
            held[held.len() - 1].clone()
        };
        let stages: Vec<_> =
            stages.into_iter().map(|(name, device, run)| (name, device, keep(run))).collect();
        let source = match source.bind(py).cast::<PySource>() {
            Ok(native) => LineEnd::Native(native.get().claim()?),
            Err(_) => LineEnd::Function(keep(source)),
        };
        let sink = match sink.bind(py).cast::<PySink>() {
            Ok(native) => LineEnd::Native(native.get().claim()?),
            Err(_) => LineEnd::Function(keep(sink)),
        };
        let fed = matches!(source, LineEnd::Native(_)).then_some(&feed);
        let drained = matches!(sink, LineEnd::Native(_)).then_some(&drain);
        // Dropping frames needs one slot more.
        let count = depth + usize::from(when_full != WhenFull::Block);
        let slots: Vec<PipelineSlot> =
            (0..count).map(|_| slot(py, &make, fed, drained)).collect::<Result<_>>()?;
        held.extend(slots.iter().map(|slot| slot.object.clone()));
        let mut slots = slots.into_iter();
        let make = move |_| slots.next().ok_or_else(|| Error::invalid("more slots than were made"));
        let mut builder = Pipeline::builder(depth, make).when_full(when_full);
        builder = with_sink(with_source(builder, source), sink);
        for (name, device, run) in stages {
            builder = builder.stage(name, &device.get().0, stage(run));
        }
        if let Some(batch) = batch {
            builder = builder.batch(batch);
        }
        if one_thread {
            builder = builder.one_thread();
        }
        let line = builder.build()?;
        let (handle, explained) = (line.handle(), line.explain());
        Ok(Self { line: Mutex::new(line), handle, explained, held })
    }

    /// Runs until the source ends, the pipeline is stopped, or a part fails. Signals and `progress` are looked after on this thread;
    /// the parts run on others.
    #[pyo3(signature = (progress=None))]
    fn run<'py>(&self, py: Python<'py>, progress: Option<Py<PyAny>>) -> Result<Bound<'py, PyDict>> {
        let mut line = match self.line.try_lock() {
            Ok(line) => line,
            Err(TryLockError::Poisoned(line)) => line.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Fault::busy("this pipeline runs already")),
        };
        let line = &mut *line;
        let _inside = enter(py);
        let (tell, mut told) = mpsc::channel();
        let (ran, raised) = std::thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let ran = line.run();
                let _ = tell.send(());
                ran
            });
            let raised = self.look_after(py, &mut told, progress.as_ref());
            (detached(py, || worker.join()), raised)
        });
        raised?;
        match ran {
            Ok(Ok(report)) => Ok(as_dict(py, &report)?),
            Ok(Err(failure)) => Err(failed(py, &failure).into()),
            Err(_) => {
                Err(Fault::busy("a part of the pipeline panicked: this is an error of onebuf"))
            }
        }
    }

    /// Asks a running pipeline to end, from any thread: frames in flight are completed.
    fn stop(&self) {
        self.handle.stop();
    }

    /// The counters and times so far, as a dictionary.
    fn report<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        Ok(as_dict(py, &self.handle.report())?)
    }

    /// Whether it runs, and how fast: `state`, `frames_per_second` of the last seconds, the time `since_last` frame, and for how long it has `stalled`.
    fn pulse<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let pulse = self.handle.pulse();
        Ok(dict!(py;
            "state": objects(py, &pulse.state)?,
            "frames_per_second": pulse.frames_per_second,
            "since_last": pulse.since_last.as_secs_f64(),
            "stalled": seconds(pulse.stalled),
        ))
    }

    /// How frames come and go, and where each stage runs.
    fn explain(&self) -> &str {
        &self.explained
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for held in &self.held {
            // What is locked is in use, and so is the pipeline.
            if let Ok(held) = held.0.try_lock()
                && let Some(object) = &*held
            {
                visit.call(object)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        for held in &self.held {
            let object = held.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(object);
        }
    }
}

/// A stage's function.
fn stage(
    run: HeldObject,
) -> impl FnMut(onebuf::pipeline::Work<'_, PipelineSlot>) -> onebuf::Result<()> + Send + 'static {
    let mut queue: Option<Py<PyQueue>> = None;
    move |work| {
        call(|py| {
            let queue = match &queue {
                Some(queue) => queue.clone_ref(py),
                None => queue.insert(Py::new(py, PyQueue(work.queue.clone()))?).clone_ref(py),
            };
            let slot = work.slot.object.get(py)?;
            run.call(py, (PyWork { slot, queue, frame: work.frame },)).map(drop)
        })
    }
}

impl PyPipeline {
    /// The handle by which others look at it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits for the worker: looks at signals, and calls the progress function. What either raises stops the pipeline.
    fn look_after(
        &self,
        py: Python<'_>,
        told: &mut mpsc::Receiver<()>,
        progress: Option<&Py<PyAny>>,
    ) -> Result<()> {
        let mut raised = Ok(());
        while detached(py, || receive(told)) {
            if ending::has_begun() {
                self.handle.stop();
            }
            let looked = py.check_signals().and_then(|()| match progress {
                Some(progress) if raised.is_ok() => {
                    progress.call1(py, (as_dict(py, &self.handle.report())?,)).map(drop)
                }
                _ => Ok(()),
            });
            if let Err(error) = looked {
                self.handle.stop();
                raised = Err(error.into());
            }
        }
        raised
    }
}

/// Whether the worker still runs after a while.
fn receive(told: &mut mpsc::Receiver<()>) -> bool {
    matches!(told.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout))
}

/// The exception of a failed run. One that Python raised gets a note that says where.
fn failed(py: Python<'_>, failure: &Failure) -> PyErr {
    let error = exception(py, &failure.error);
    let note = format!("in a pipeline: {} at frame {}", failure.at, failure.frame);
    // The exception itself matters more than the note.
    let _ = error.value(py).call_method1("add_note", (note,));
    error
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

fn latency<'py>(py: Python<'py>, of: &Latency) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py; "p50": seconds(of.p50), "p99": seconds(of.p99)))
}

fn stage_dict<'py>(py: Python<'py>, stage: &StageReport) -> PyResult<Bound<'py, PyDict>> {
    let one = fields!(py; stage; name, device, frames);
    one.set_item("latency", latency(py, &stage.latency)?)?;
    one.set_item("busy", stage.busy.as_secs_f64())?;
    Ok(one)
}

/// A report. Times are in seconds.
fn as_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let stages = report.stages.iter().map(|stage| stage_dict(py, stage));
    let all = fields!(py; report; frames, dropped, incomplete, on_the_way, one_thread);
    all.set_item("elapsed", report.elapsed.as_secs_f64())?;
    all.set_item("frames_per_second", report.frames_per_second())?;
    all.set_item("latency", latency(py, &report.latency)?)?;
    all.set_item("source", latency(py, &report.source)?)?;
    all.set_item("sink", latency(py, &report.sink)?)?;
    all.set_item("stages", stages.collect::<PyResult<Vec<_>>>()?)?;
    Ok(all)
}
