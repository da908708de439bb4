//! Sources
//!
//! Sources of the library, instead of callbacks: memory, files, a computed signal, the network. A pipeline claims the
//! source that it is given (`onebuf_pipeline_options.feed`) until the pipeline is freed. The source's handle can be
//! queried meanwhile, and is freed separately.

use crate::{
    claim::{Claim, Claimable, Feed},
    entry::{entry, free},
    fault::{Fault, Result},
    handle::{Noun, noun},
    input::{
        self, Options, Slot, array, bytes, bytes_mut, fill, give, options, out, text, timeout,
    },
    status::onebuf_status,
    string::{self, onebuf_string},
    typed::{Typed, with_element},
};
use onebuf::{
    Complex32, Error, bytemuck,
    pipeline::{
        NpyElement,
        source::{File, FrameSource, Memory, Npy, Synthetic, Tcp, Udp, UdpCounts, UdpMeter, Wave},
    },
};
use std::{
    ffi::{c_char, c_void},
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// A source. Free it with onebuf_source_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_source {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_source, Feeder, 19);

/// Repeats without end.
pub const ONEBUF_FOREVER: u64 = u64::MAX;

/// One plane wave.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_wave {
    /// Its amplitude.
    pub level: f64,
    /// Frequency in cycles per sample, from -0.5 to 0.5.
    pub frequency: f64,
    /// Direction: degrees from straight ahead, from -90 to 90.
    pub direction: f64,
}

/// Options of a computed signal: plane waves and noise on a line of sensors half a wavelength apart. Zero in every
/// field means the default, except for `channels` and `samples`. A frame is one channel after another, each a sequence
/// of samples of two floats.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_synthetic_options {
    /// `sizeof(onebuf_synthetic_options)`.
    pub size: usize,
    /// Number of sensors.
    pub channels: usize,
    /// Number of samples per sensor.
    pub samples: usize,
    /// The waves; NULL: three, from the left, from ahead and from the right.
    pub waves: *const onebuf_wave,
    /// Number of waves.
    pub wave_count: usize,
    /// Amplitude of the noise, which is uniform between plus and minus this value in both parts; zero: 0.1, negative:
    /// none.
    pub noise: f64,
    /// Seed of the noise; zero: 1.
    pub seed: u64,
    /// Number of frames; zero: unlimited.
    pub frames: u64,
    /// How many samples each sensor is late; NULL: none is.
    pub late: *const f64,
    /// Number of sensors with such a delay.
    pub late_count: usize,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_synthetic_options {}

/// Options of a UDP source, for packets of onebuf_sink_udp() and `onebuf send`. Zero in every field means the default,
/// except for `address`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_udp_source_options {
    /// `sizeof(onebuf_udp_source_options)`.
    pub size: usize,
    /// Address to listen at, such as `0.0.0.0:5000`; with port 0 the system chooses one.
    pub address: *const c_char,
    /// Not zero: receives only the stream of the number `stream`, instead of the first that arrives.
    pub one_stream: u32,
    /// The number of the stream.
    pub stream: u32,
    /// Number of frames that may be incomplete at a time; zero: 2.
    pub window: usize,
    /// Time without useful packets before the source fails with ONEBUF_TIMEOUT; zero: 10 seconds.
    pub timeout_ms: u64,
    /// Size of the socket's receive buffer, which the system may limit; zero: 32 MiB.
    pub receive_buffer_bytes: usize,
    /// Time without useful packets of a stream before another stream takes over; zero: 1 second.
    pub takeover_ms: u64,
    /// Not zero: receives on `socket`, a bound UDP socket with its present receive buffer, instead of `address`.
    pub has_socket: u32,
    /// The socket's descriptor. It stays the caller's: onebuf duplicates it.
    pub socket: i32,
    /// Number of sockets at `address`, at most 64, each with a thread that receives one range of a frame's packets; zero:
    /// one, on the pipeline's thread.
    pub sockets: usize,
    /// Processors that the sockets' threads are pinned to, the pipeline's own thread of the source to the first; they
    /// repeat if there are more sockets. NULL: no thread is pinned.
    pub cpus: *const u32,
    /// Number of processors.
    pub cpu_count: usize,
    /// Time for which receive calls poll the network card before they sleep, in microseconds; zero: the system's setting.
    pub busy_poll_us: u64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_udp_source_options {}

/// Options of a TCP source: frames as raw bytes over one connection. Zero in every field means the default, except for
/// `address`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_tcp_source_options {
    /// `sizeof(onebuf_tcp_source_options)`.
    pub size: usize,
    /// The sender's address, such as `192.168.0.7:5000`; or the address to listen at.
    pub address: *const c_char,
    /// Not zero: listens for the sender, which connects once the pipeline runs.
    pub listen: u32,
    /// Timeout for connecting, and for every pause afterwards; zero: 10 seconds.
    pub timeout_ms: u64,
    /// Time limit from the first to the last byte of a frame, however steadily bytes arrive, before the source fails
    /// with ONEBUF_TIMEOUT; zero: 60 seconds, and one second more for every megabyte of the frame.
    pub frame_limit_ms: u64,
    /// Not zero: reads from `socket`, an established connection, instead of `address`.
    pub has_socket: u32,
    /// The socket's descriptor. It stays the caller's: onebuf duplicates it.
    pub socket: i32,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_tcp_source_options {}

/// Counters of a UDP source.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_udp_counts {
    /// `sizeof(onebuf_udp_counts)`: set it before the call.
    pub size: usize,
    /// Complete frames.
    pub frames: u64,
    /// Incomplete frames, which are not passed on.
    pub incomplete_frames: u64,
    /// Useful packets.
    pub packets: u64,
    /// Packets that never arrived, or too late.
    pub lost_packets: u64,
    /// Packets that arrived after their frame had ended.
    pub late_packets: u64,
    /// Duplicate packets.
    pub duplicate_packets: u64,
    /// Packets of streams or senders other than the one being received.
    pub stray_packets: u64,
    /// Packets in another format, or that do not fit the frames.
    pub malformed_packets: u64,
    /// Packets that were copied once, because they did not arrive in the expected order.
    pub moved_packets: u64,
    /// Packets that the system dropped because the receive buffer was full.
    pub kernel_drops: u64,
    /// Size of the receive buffer that the system granted.
    pub receive_buffer_bytes: u64,
    /// Streams that took over from one whose sender had stopped sending.
    pub takeovers: u64,
    /// Bytes of all packets that a stream's sockets received, headers and useless packets included.
    pub bytes: u64,
    /// Calls that received them: one for each message of joined packets, or for up to 64 packets.
    pub batches: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_udp_counts {}

/// A source, and what can be queried while a pipeline has it.
#[doc(hidden)]
pub struct Feeder {
    source: Arc<Claimable<Feed>>,
    address: Option<String>,
    meter: Option<UdpMeter>,
    shape: Vec<usize>,
}

impl Feeder {
    fn new(source: impl FrameSource<u8> + Send + 'static) -> Self {
        Self {
            source: Claimable::new(Box::new(source)),
            address: None,
            meter: None,
            shape: Vec::new(),
        }
    }

    /// Hands the source to a pipeline.
    pub(crate) fn claim(&self) -> Result<Claim<Feed>> {
        Claim::new(&self.source, "source")
    }
}

/// A descriptor of our own for the caller's socket.
fn duplicate(socket: i32) -> Result<OwnedFd> {
    if socket < 0 {
        return Err(Fault::invalid(format!("socket {socket} is no descriptor")));
    }
    // SAFETY: borrowed for this call only; a number that is not open is an error of the system.
    let given = unsafe { BorrowedFd::borrow_raw(socket) };
    given.try_clone_to_owned().map_err(|why| Fault::invalid(format!("socket {socket}: {why}")))
}

/// The default timeout.
const SILENCE: Duration = Duration::from_secs(10);

fn silence(timeout_ms: u64) -> Duration {
    if timeout_ms == 0 { SILENCE } else { timeout(timeout_ms).unwrap_or(SILENCE) }
}

/// Number of repetitions.
macro_rules! played {
    ($source:expr, $times:expr) => {
        match $times {
            0 => return Err(Fault::invalid("`times` is 0: pass at least 1, or ONEBUF_FOREVER")),
            ONEBUF_FOREVER => $source.forever(),
            times => $source.times(times),
        }
    };
}

/// Plays frames that are stored one after another in the caller's memory, `times` times (ONEBUF_FOREVER: without end).
/// The memory must stay allocated and unchanged until the source and the pipeline that has it are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_memory(
    data: *const c_void,
    bytes: usize,
    times: u64,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: guaranteed by the caller.
        let all: &'static [u8] = unsafe { self::bytes(data, bytes, "data")? };
        *source = onebuf_source::put(Feeder::new(played!(Memory::new(all), times)))?;
        Ok(())
    })
}

/// Plays the frames of a file of raw bytes, `times` times (ONEBUF_FOREVER: without end).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_file(
    path: *const c_char,
    times: u64,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: guaranteed by the caller.
        let file = File::open(unsafe { input::path(path, "path")? })?;
        *source = onebuf_source::put(Feeder::new(played!(file, times)))?;
        Ok(())
    })
}

fn npy<T: NpyElement>(path: &Path, times: u64) -> Result<Feeder> {
    let file = Npy::<T>::open(path)?;
    let axes = file.shape().iter().map(|axis| usize::try_from(*axis).unwrap_or(usize::MAX));
    let shape = axes.collect();
    Ok(Feeder { shape, ..Feeder::new(Typed::<_, T>::new(played!(file, times))) })
}

/// Plays the frames of a NumPy file, `times` times (ONEBUF_FOREVER: without end). Its first axis counts the frames, or
/// the whole array is one frame. `element` is NumPy's type string: `<f4` is float, `<c8` is a pair of floats.
/// ONEBUF_INVALID_ARGUMENT for a file of another type, or one that is truncated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_npy(
    path: *const c_char,
    element: *const c_char,
    times: u64,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: guaranteed by the caller.
        let (path, element) = unsafe { (input::path(path, "path")?, text(element, "element")?) };
        *source = onebuf_source::put(with_element!(element, T => npy::<T>(path, times))?)?;
        Ok(())
    })
}

/// # Safety
/// As for [`onebuf_source_synthetic`].
unsafe fn signal(given: &onebuf_synthetic_options) -> Result<Synthetic> {
    let mut signal = Synthetic::new(given.channels, given.samples);
    if !given.waves.is_null() {
        // SAFETY: guaranteed by the caller.
        let waves = unsafe { array(given.waves, given.wave_count, "waves")? };
        let wave =
            |&onebuf_wave { level, frequency, direction }: &_| Wave { level, frequency, direction };
        signal = signal.waves(waves.iter().map(wave).collect::<Vec<_>>());
    }
    if given.noise != 0.0 {
        signal = signal.noise(given.noise.max(0.0));
    }
    if given.seed != 0 {
        signal = signal.seed(given.seed);
    }
    if given.frames != 0 {
        signal = signal.frames(given.frames);
    }
    if !given.late.is_null() {
        // SAFETY: guaranteed by the caller.
        signal = signal.late(unsafe { array(given.late, given.late_count, "late")? });
    }
    Ok(signal)
}

/// Plays a computed signal, which is the same in every run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_synthetic(
    options: *const onebuf_synthetic_options,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { self::options(options)? };
        // SAFETY: as above, also for what the options point at.
        let signal = unsafe { signal(&given)? };
        *source = onebuf_source::put(Feeder::new(Typed::<_, Complex32>::new(signal)))?;
        Ok(())
    })
}

/// Computes one frame of a signal into `bytes` bytes at `data`: as many samples of two floats as a frame has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_synthetic_frame(
    options: *const onebuf_synthetic_options,
    number: u64,
    data: *mut c_void,
    bytes: usize,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let (signal, frame) = unsafe {
            let signal = signal(&self::options(options)?)?;
            (signal, bytes_mut(data, bytes, "data")?)
        };
        let frame = bytemuck::try_cast_slice_mut::<u8, Complex32>(frame).map_err(|why| {
            Fault::invalid(format!(
                "{bytes} bytes at {data:p} are no frame of complex samples: {why}"
            ))
        })?;
        Ok(signal.frame(number, frame)?)
    })
}

/// Receives frames as UDP packets, directly into the slots if the host can access them. A frame that lacks a packet is
/// counted and not passed on. One stream is received at a time; if its sender goes silent without ending it, the next
/// stream that sends takes over (`takeover_ms`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_udp(
    options: *const onebuf_udp_source_options,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { self::options(options)? };
        let udp = match given.has_socket {
            // SAFETY: as above.
            0 => Udp::bind(unsafe { text(given.address, "address")? })?,
            _ => Udp::over(duplicate(given.socket)?.into())?,
        };
        let mut udp = udp.timeout(silence(given.timeout_ms));
        if given.one_stream != 0 {
            udp = udp.stream(given.stream);
        }
        if given.window != 0 {
            udp = udp.window(given.window);
        }
        if given.receive_buffer_bytes != 0 {
            udp = udp.receive_buffer(given.receive_buffer_bytes);
        }
        if given.takeover_ms != 0 {
            udp = udp.takeover_after(Duration::from_millis(given.takeover_ms));
        }
        if given.sockets != 0 {
            udp = udp.sockets(given.sockets)?;
        }
        if !given.cpus.is_null() {
            // SAFETY: as above.
            let cpus = unsafe { array(given.cpus, given.cpu_count, "cpus")? };
            udp = udp.cpus(cpus.iter().map(|&cpu| cpu as usize).collect::<Vec<_>>());
        }
        if given.busy_poll_us != 0 {
            udp = udp.busy_poll(Duration::from_micros(given.busy_poll_us));
        }
        let (address, meter) = (udp.address()?.to_string(), udp.meter());
        let feeder = Feeder { address: Some(address), meter: Some(meter), ..Feeder::new(udp) };
        *source = onebuf_source::put(feeder)?;
        Ok(())
    })
}

/// Receives frames as raw bytes, one after another, over TCP. The stream ends when the sender closes the connection;
/// inside of a frame that is ONEBUF_PEER_LOST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_tcp(
    options: *const onebuf_tcp_source_options,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { self::options(options)? };
        // SAFETY: as above.
        let address = || unsafe { text(given.address, "address") };
        let limit = silence(given.timeout_ms);
        let mut tcp = match (given.has_socket, given.listen) {
            (0, 0) => Tcp::connect(address()?, limit)?,
            (0, _) => Tcp::listen(address()?, limit)?,
            _ => Tcp::over(duplicate(given.socket)?.into(), limit)?,
        };
        if given.frame_limit_ms != 0 {
            tcp = tcp.frame_limit(Duration::from_millis(given.frame_limit_ms));
        }
        let address = Some(tcp.address()?.to_string());
        *source = onebuf_source::put(Feeder { address, ..Feeder::new(tcp) })?;
        Ok(())
    })
}

/// The local address of a network source: `HOST:PORT`. ONEBUF_UNSUPPORTED for others.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_source_address(
    source: onebuf_source,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            let address = source.get()?.address.clone();
            let none = || Error::unsupported("a source's address", "a network source");
            Ok(address.ok_or_else(none)?.into_bytes())
        })
    })
}

/// The shape of a NumPy source's array. `axis_count` gets the number of axes, and `shape` the first `capacity` of them; with a
/// capacity of zero it may be NULL. ONEBUF_UNSUPPORTED for other sources.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_shape(
    source: onebuf_source,
    shape: *mut usize,
    capacity: usize,
    axis_count: Slot<'_, usize>,
) -> onebuf_status {
    entry(|| {
        let axis_count = out(axis_count, "axis_count")?;
        let found = &source.get()?.shape;
        if found.is_empty() {
            return Err(Error::unsupported("the shape of a source", "a NumPy source").into());
        }
        // SAFETY: guaranteed by the caller.
        unsafe { fill(found, shape, capacity, "shape")? };
        *axis_count = found.len();
        Ok(())
    })
}

/// Reads the counters of a UDP source, from any thread, also while a pipeline runs. ONEBUF_UNSUPPORTED for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_udp_counts(
    source: onebuf_source,
    counts: *mut onebuf_udp_counts,
) -> onebuf_status {
    entry(|| {
        let source = source.get()?;
        let none = || Error::unsupported("reading the counters of a source", "a UDP source");
        let found = source.meter.as_ref().ok_or_else(none)?.counts();
        // SAFETY: guaranteed by the caller.
        unsafe { give(plain(&found), counts, "counts") }
    })
}

/// Reads the counters of one of a UDP source's sockets, from 0. Frames, and packets that arrived before a stream was chosen,
/// are counted by onebuf_source_udp_counts() alone. ONEBUF_INVALID_ARGUMENT for a socket that the source does not have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_udp_socket_counts(
    source: onebuf_source,
    socket: usize,
    counts: *mut onebuf_udp_counts,
) -> onebuf_status {
    entry(|| {
        let source = source.get()?;
        let none = || Error::unsupported("reading the counters of a socket", "a UDP source");
        let all = source.meter.as_ref().ok_or_else(none)?.sockets();
        let missing =
            || Fault::invalid(format!("socket {socket} of a source that has {}", all.len()));
        let found = all.get(socket).ok_or_else(missing)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give(plain(found), counts, "counts") }
    })
}

fn plain(found: &UdpCounts) -> onebuf_udp_counts {
    onebuf_udp_counts {
        size: size_of::<onebuf_udp_counts>(),
        frames: found.frames,
        incomplete_frames: found.incomplete_frames,
        packets: found.packets,
        lost_packets: found.lost_packets,
        late_packets: found.late_packets,
        duplicate_packets: found.duplicate_packets,
        stray_packets: found.stray_packets,
        malformed_packets: found.malformed_packets,
        moved_packets: found.moved_packets,
        kernel_drops: found.kernel_drops,
        receive_buffer_bytes: found.receive_buffer_bytes,
        takeovers: found.takeovers,
        bytes: found.bytes,
        batches: found.batches,
    }
}

/// Frees a source. A pipeline that has it keeps what it needs.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_source_free(source: onebuf_source) -> onebuf_status {
    free(source)
}
