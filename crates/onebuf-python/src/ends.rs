//! Sources and sinks of the library, for pipelines.

use crate::{
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    host_bytes::Bytes,
    json::fields,
    wait,
};
use onebuf::{
    Complex32, Error,
    bytemuck::{self, PodCastError},
    pipeline::{
        Filled, NpyElement, sink,
        sink::Sink,
        source::{self, FrameSource, Wave},
    },
};
use pyo3::{buffer::PyUntypedBuffer, prelude::*, types::PyDict};
use std::{
    marker::PhantomData,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Fills the bytes of a slot.
pub(crate) type Feed = Box<dyn FrameSource<u8> + Send>;
/// Consumes the bytes of a slot.
pub(crate) type Drain = Box<dyn Sink<u8> + Send>;

/// A source of frames. It belongs to the pipeline that it is given to.
#[pyclass(frozen, module = "onebuf.sources", name = "Source")]
pub(crate) struct PySource {
    feed: Mutex<Option<Feed>>,
    what: &'static str,
    address: Option<String>,
    meter: Option<source::UdpMeter>,
}

/// A sink of frames. It belongs to the pipeline that it is given to.
#[pyclass(frozen, module = "onebuf.sinks", name = "Sink")]
pub(crate) struct PySink {
    drain: Mutex<Option<Drain>>,
    what: &'static str,
    udp: Option<Sender>,
}

/// A sink that sends, shared with its pipeline.
#[derive(Clone)]
struct Sender {
    udp: Arc<Mutex<sink::Udp>>,
    meter: sink::UdpSentMeter,
}

fn lock<T: ?Sized>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink<u8> for Sender {
    fn take(&mut self, frame: &[u8], number: u64) -> onebuf::Result<()> {
        lock(&self.udp).take(frame, number)
    }
}

impl PySource {
    fn new(what: &'static str, feed: impl FrameSource<u8> + Send + 'static) -> Self {
        Self { feed: Mutex::new(Some(Box::new(feed))), what, address: None, meter: None }
    }

    /// Hands the source to a pipeline.
    pub fn claim(&self) -> Result<Feed> {
        lock(&self.feed).take().ok_or_else(|| Fault::busy("another pipeline has this source"))
    }
}

impl PySink {
    fn new(what: &'static str, drain: impl Sink<u8> + Send + 'static) -> Self {
        Self { drain: Mutex::new(Some(Box::new(drain))), what, udp: None }
    }

    /// Hands the sink to a pipeline.
    pub fn claim(&self) -> Result<Drain> {
        lock(&self.drain).take().ok_or_else(|| Fault::busy("another pipeline has this sink"))
    }
}

#[pymethods]
impl PySource {
    /// The address that the source listens at, if it does.
    #[getter]
    fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Counters of a UDP source, also while it receives; None for others.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> Result<Option<Bound<'py, PyDict>>> {
        let Some(meter) = &self.meter else { return Ok(None) };
        Ok(Some(fields!(py; meter.counts();
            frames, incomplete_frames, packets, lost_packets, late_packets, duplicate_packets, stray_packets, malformed_packets, moved_packets,
            kernel_drops, takeovers, receive_buffer_bytes, bytes, batches)))
    }

    fn __repr__(&self) -> String {
        format!("<onebuf source: {}>", self.what)
    }
}

#[pymethods]
impl PySink {
    /// Tells the receiver of a UDP sink that the stream is over.
    fn finish(&self, py: Python<'_>) -> Result<()> {
        let Some(sender) = &self.udp else { return Ok(()) };
        detached(py, || lock(&sender.udp).finish()).map_err(Fault::from)
    }

    /// Counters of a UDP sink, also while it sends; None for others.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> Result<Option<Bound<'py, PyDict>>> {
        let Some(sender) = &self.udp else { return Ok(None) };
        Ok(Some(fields!(py; sender.meter.sent();
            frames, packets, bytes, lost_packets, duplicate_packets, refused)))
    }

    fn __repr__(&self) -> String {
        format!("<onebuf sink: {}>", self.what)
    }
}

/// Adapts a source or sink of `T` to bytes.
struct Typed<S, T> {
    inner: S,
    element: PhantomData<fn() -> T>,
}

impl<S, T> Typed<S, T> {
    fn new(inner: S) -> Self {
        Self { inner, element: PhantomData }
    }
}

fn no_elements<T: NpyElement>(bytes: usize, why: PodCastError) -> Error {
    let descr = T::DESCR;
    Error::invalid(format!("a frame of {bytes} bytes does not divide into {descr} elements: {why}"))
}

impl<S: FrameSource<T>, T: NpyElement> FrameSource<u8> for Typed<S, T> {
    fn fill(&mut self, frame: &mut [u8]) -> onebuf::Result<Filled> {
        let bytes = frame.len();
        let elements = bytemuck::try_cast_slice_mut(frame);
        self.inner.fill(elements.map_err(|why| no_elements::<T>(bytes, why))?)
    }
}

impl<S: Sink<T>, T: NpyElement> Sink<u8> for Typed<S, T> {
    fn take(&mut self, frame: &[u8], number: u64) -> onebuf::Result<()> {
        let elements = bytemuck::try_cast_slice(frame);
        self.inner.take(elements.map_err(|why| no_elements::<T>(frame.len(), why))?, number)
    }
}

/// Runs code for the element type of that name.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        with_element!(
            $dtype, $element => $body, u8, i8, u16, i16, u32, i32, u64, i64, onebuf::half::f16, f32, f64,
            onebuf::Complex32, onebuf::Complex64
        )
    };
    ($dtype:expr, $element:ident => $body:expr, $($type:ty),*) => {
        match $dtype.descr() {
            $(descr if descr == <$type as NpyElement>::DESCR => {
                type $element = $type;
                $body
            })*
            other => Err(Fault::invalid(format!("`{other}` is no type of a NumPy file here"))),
        }
    };
}

/// Plays a source a number of times; None: without end.
macro_rules! played {
    ($source:expr, $times:expr) => {
        match $times {
            Some(0) => return Err(Fault::invalid("`times` is 0: at least 1, or None for no end")),
            None => $source.forever(),
            Some(times) => $source.times(times),
        }
    };
}

/// Plays frames that lie one after another in an array, which is copied.
#[pyfunction]
#[pyo3(signature = (data, times=Some(1)), text_signature = "(data, times=1)")]
pub(crate) fn source_memory(data: &Bound<'_, PyAny>, times: Option<u64>) -> Result<PySource> {
    let bytes = PyUntypedBuffer::get(data)?.len_bytes();
    let all = Bytes::of(data, bytes, false)?.to_vec();
    Ok(PySource::new("memory", played!(source::Memory::new(all), times)))
}

/// Plays the frames of a file of raw bytes.
#[pyfunction]
#[pyo3(signature = (path, times=Some(1)), text_signature = "(path, times=1)")]
pub(crate) fn source_file(path: PathBuf, times: Option<u64>) -> Result<PySource> {
    Ok(PySource::new("file", played!(source::File::open(path)?, times)))
}

/// Plays the frames of a NumPy file, whose first axis counts them.
#[pyfunction]
#[pyo3(signature = (path, dtype, times=Some(1)), text_signature = "(path, dtype, times=1)")]
pub(crate) fn source_npy(
    path: PathBuf,
    dtype: &Bound<'_, PyAny>,
    times: Option<u64>,
) -> Result<PySource> {
    let dtype = Dtype::parse(dtype)?;
    with_element!(dtype, T => {
        let file = source::Npy::<T>::open(&path)?;
        Ok(PySource::new("NumPy file", Typed::<_, T>::new(played!(file, times))))
    })
}

/// Plays a computed signal: plane waves and noise on a line of sensors, as complex64 of shape (channels, samples). `waves` has for each the level, the
/// frequency in cycles per sample, and the direction in degrees.
#[pyfunction]
#[pyo3(signature = (channels, samples, frames=None, noise=None, seed=None, waves=None))]
pub(crate) fn source_synthetic(
    channels: usize,
    samples: usize,
    frames: Option<u64>,
    noise: Option<f64>,
    seed: Option<u64>,
    waves: Option<Vec<(f64, f64, f64)>>,
) -> PySource {
    let mut signal = source::Synthetic::new(channels, samples);
    if let Some(waves) = waves {
        let wave = |(level, frequency, direction)| Wave { level, frequency, direction };
        signal = signal.waves(waves.into_iter().map(wave).collect::<Vec<_>>());
    }
    if let Some(frames) = frames {
        signal = signal.frames(frames);
    }
    if let Some(noise) = noise {
        signal = signal.noise(noise);
    }
    if let Some(seed) = seed {
        signal = signal.seed(seed);
    }
    PySource::new("computed signal", Typed::<_, Complex32>::new(signal))
}

/// Receives frames of onebuf's UDP packets at an address such as "0.0.0.0:5000". `sockets` is how many consecutive ports receive, each with a thread;
/// `receive_buffer` is the kernel's, in bytes. `cpus` are the processors of these threads, `busy_poll` is for how many seconds they look for packets without
/// sleeping, and after `takeover_after` quiet seconds another sender may take the stream over.
#[pyfunction]
#[pyo3(signature = (
    address, timeout=None, window=None, stream=None, sockets=None, receive_buffer=None, cpus=None, busy_poll=None, takeover_after=None
))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn source_udp(
    address: &str,
    timeout: Option<f64>,
    window: Option<usize>,
    stream: Option<u32>,
    sockets: Option<usize>,
    receive_buffer: Option<usize>,
    cpus: Option<Vec<usize>>,
    busy_poll: Option<f64>,
    takeover_after: Option<f64>,
) -> Result<PySource> {
    let mut udp = source::Udp::bind(address)?;
    if let Some(cpus) = cpus {
        udp = udp.cpus(cpus);
    }
    if let Some(time) = busy_poll {
        udp = udp.busy_poll(wait::seconds(time)?);
    }
    if let Some(quiet) = takeover_after {
        udp = udp.takeover_after(wait::seconds(quiet)?);
    }
    if let Some(sockets) = sockets {
        udp = udp.sockets(sockets)?;
    }
    if let Some(bytes) = receive_buffer {
        udp = udp.receive_buffer(bytes);
    }
    if let Some(timeout) = timeout {
        udp = udp.timeout(wait::seconds(timeout)?);
    }
    if let Some(window) = window {
        udp = udp.window(window);
    }
    if let Some(stream) = stream {
        udp = udp.stream(stream);
    }
    let (address, meter) = (udp.address()?.to_string(), udp.meter());
    Ok(PySource { address: Some(address), meter: Some(meter), ..PySource::new("UDP", udp) })
}

/// Receives frames as raw bytes over one TCP connection: to an address, or with `listen` from the sender that connects there.
#[pyfunction]
#[pyo3(signature = (address, listen=false, timeout=10.0))]
pub(crate) fn source_tcp(
    py: Python<'_>,
    address: &str,
    listen: bool,
    timeout: f64,
) -> Result<PySource> {
    let timeout: Duration = wait::seconds(timeout)?;
    let tcp = detached(py, || match listen {
        true => source::Tcp::listen(address, timeout),
        false => source::Tcp::connect_while(address, timeout, wait::go_on),
    })?;
    let at = tcp.address()?.to_string();
    Ok(PySource { address: Some(at), ..PySource::new("TCP", tcp) })
}

/// Appends frames to a file as raw bytes. An existing file is truncated.
#[pyfunction]
pub(crate) fn sink_file(path: PathBuf) -> Result<PySink> {
    Ok(PySink::new("file", sink::File::create(path)?))
}

/// Appends frames to a NumPy file, whose first axis counts them. `shape` is that of a frame.
#[pyfunction]
pub(crate) fn sink_npy(
    path: PathBuf,
    shape: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
) -> Result<PySink> {
    let (shape, dtype) = (crate::layout::shape(shape)?, Dtype::parse(dtype)?);
    with_element!(dtype, T => {
        let file = sink::Npy::<T>::create(&path, &shape)?;
        Ok(PySink::new("NumPy file", Typed::<_, T>::new(file)))
    })
}

/// Sends frames as onebuf's UDP packets. `rate` is in bytes per second.
#[pyfunction]
#[pyo3(signature = (address, rate=None, stream=None, payload=None))]
pub(crate) fn sink_udp(
    address: &str,
    rate: Option<f64>,
    stream: Option<u32>,
    payload: Option<usize>,
) -> Result<PySink> {
    let mut udp = sink::Udp::connect(address)?;
    if let Some(payload) = payload {
        udp = udp.payload(payload)?;
    }
    if let Some(rate) = rate {
        udp = udp.rate(rate)?;
    }
    if let Some(stream) = stream {
        udp = udp.stream(stream);
    }
    let meter = udp.meter();
    let sender = Sender { udp: Arc::new(Mutex::new(udp)), meter };
    Ok(PySink { udp: Some(sender.clone()), ..PySink::new("UDP", sender) })
}
