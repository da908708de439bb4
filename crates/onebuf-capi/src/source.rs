//! Sources
//!
//! Where a pipeline's frames come from, where that is no function of the caller's: memory, files, a signal that is
//! computed, the network. A pipeline that is given one (`onebuf_pipeline_options.feed`) has it until it is freed; the handle
//! is still there to ask it, and is freed on its own.

use crate::{
    claim::{Claim, Claimable, Feed},
    entry::{entry, free},
    fault::{Fault, Result},
    handle::{Noun, noun},
    input::{self, Options, Slot, array, bytes, give, options, out, text, timeout},
    status::onebuf_status,
    string::{self, onebuf_string},
    typed::{Typed, with_element},
};
use onebuf::{
    Complex32, Error,
    pipeline::{
        NpyElement,
        source::{File, FrameSource, Memory, Npy, Synthetic, Tcp, Udp, UdpCounts, UdpMeter, Wave},
    },
};
use std::{
    ffi::{c_char, c_void},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// A source. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_source {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_source, Feeder, 19);

/// So many times that there is no end.
pub const ONEBUF_FOREVER: u64 = u64::MAX;

/// One plane wave.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_wave {
    /// Its amplitude.
    pub level: f64,
    /// Turns per sample, from -0.5 to 0.5.
    pub frequency: f64,
    /// Where it comes from: degrees from straight ahead, from -90 to 90.
    pub direction: f64,
}

/// A signal that is computed: plane waves and noise on a line of sensors half a wavelength apart. Zeroes are the
/// defaults, but for `channels` and `samples`. A frame is channels of samples, one channel behind the other, each
/// sample two floats.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_synthetic_options {
    /// `sizeof(onebuf_synthetic_options)`.
    pub size: usize,
    /// How many sensors.
    pub channels: usize,
    /// How many samples of each.
    pub samples: usize,
    /// The waves; NULL: three, from the left, from ahead and from the right.
    pub waves: *const onebuf_wave,
    /// How many waves.
    pub wave_count: usize,
    /// How large the noise is, evenly between this and its negative in both parts; zero: 0.1, negative: none.
    pub noise: f64,
    /// For other noise; zero: 1.
    pub seed: u64,
    /// How many frames; zero: without an end.
    pub frames: u64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_synthetic_options {}

/// Frames in the packets of onebuf_sink_udp() and `onebuf send`. Zeroes are the defaults, but for `address`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_udp_source_options {
    /// `sizeof(onebuf_udp_source_options)`.
    pub size: usize,
    /// Where to listen, such as `0.0.0.0:5000`; with port 0 the system chooses one.
    pub address: *const c_char,
    /// Not zero: only the stream of this number, and not the first that comes.
    pub one_stream: u32,
    /// That number.
    pub stream: u32,
    /// How many frames may be open at a time; zero: 2.
    pub window: usize,
    /// For how long nothing of use may come before that is ONEBUF_TIMEOUT; zero: 10 seconds.
    pub timeout_ms: u64,
    /// Room for packets that wait, which the system may have a limit for; zero: 32 MiB.
    pub receive_buffer_bytes: usize,
    /// For how long nothing of use may come from a stream's sender before another stream takes over; zero: 1 second.
    pub takeover_ms: u64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_udp_source_options {}

/// Frames as they lie in memory, over one connection. Zeroes are the defaults, but for `address`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_tcp_source_options {
    /// `sizeof(onebuf_tcp_source_options)`.
    pub size: usize,
    /// Where the sender is, such as `192.168.0.7:5000`; or where to listen for it.
    pub address: *const c_char,
    /// Not zero: the sender connects, once the pipeline runs.
    pub listen: u32,
    /// For connecting, and for every silence afterwards; zero: 10 seconds.
    pub timeout_ms: u64,
    /// How long a frame may take from its first byte to its last, however steadily bytes come, before that is ONEBUF_TIMEOUT;
    /// zero: 60 seconds, and a second more for every megabyte of the frame.
    pub frame_limit_ms: u64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_tcp_source_options {}

/// What has come over UDP, and what has not.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_udp_counts {
    /// `sizeof(onebuf_udp_counts)`: set it before the call.
    pub size: usize,
    /// Frames that came whole.
    pub frames: u64,
    /// Frames of which something is missing: they are not passed on.
    pub incomplete_frames: u64,
    /// Packets that came and were of use.
    pub packets: u64,
    /// Packets that never came, or too late.
    pub lost_packets: u64,
    /// Packets that came when their frame was over.
    pub late_packets: u64,
    /// Packets that had come before.
    pub duplicate_packets: u64,
    /// Packets of other streams or other senders than the one that is received.
    pub stray_packets: u64,
    /// Packets that are not ours, or do not fit the frames.
    pub malformed_packets: u64,
    /// Packets that were copied once, because they did not come where they were expected.
    pub moved_packets: u64,
    /// Packets that the system had no room for.
    pub kernel_drops: u64,
    /// The room that the system gives to packets that wait.
    pub receive_buffer_bytes: u64,
    /// Streams that took over from one whose sender had gone quiet.
    pub takeovers: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_udp_counts {}

/// A source, and what can be asked of it while a pipeline has it.
#[doc(hidden)]
pub struct Feeder {
    source: Arc<Claimable<Feed>>,
    address: Option<String>,
    meter: Option<UdpMeter>,
}

impl Feeder {
    fn new(source: impl FrameSource<u8> + Send + 'static) -> Self {
        Self { source: Claimable::new(Box::new(source)), address: None, meter: None }
    }

    /// For a pipeline.
    pub(crate) fn claim(&self) -> Result<Claim<Feed>> {
        Claim::new(&self.source, "source")
    }
}

/// The longest silence, unless said otherwise.
const SILENCE: Duration = Duration::from_secs(10);

fn silence(timeout_ms: u64) -> Duration {
    if timeout_ms == 0 { SILENCE } else { timeout(timeout_ms).unwrap_or(SILENCE) }
}

/// How often something is played.
macro_rules! played {
    ($source:expr, $times:expr) => {
        match $times {
            0 => return Err(Fault::invalid("no time at all: give 1, or ONEBUF_FOREVER")),
            ONEBUF_FOREVER => $source.forever(),
            times => $source.times(times),
        }
    };
}

/// Frames that lie one behind the other in the caller's memory, so many times (ONEBUF_FOREVER: without an end). The memory
/// stays, and nobody writes it, until the source and the pipeline that has it are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_memory(
    data: *const c_void,
    bytes: usize,
    times: u64,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: the caller's promise.
        let all: &'static [u8] = unsafe { self::bytes(data, bytes, "data")? };
        *source = onebuf_source::put(Feeder::new(played!(Memory::new(all), times)))?;
        Ok(())
    })
}

/// The frames of a file, as they lie in memory, so many times (ONEBUF_FOREVER: without an end).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_file(
    path: *const c_char,
    times: u64,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: the caller's promise.
        let file = File::open(unsafe { input::path(path, "path")? })?;
        *source = onebuf_source::put(Feeder::new(played!(file, times)))?;
        Ok(())
    })
}

fn npy<T: NpyElement>(path: &Path, times: u64) -> Result<Feeder> {
    Ok(Feeder::new(Typed::<_, T>::new(played!(Npy::<T>::open(path)?, times))))
}

/// The frames of a NumPy file, whose first axis counts them, or all of it is one; so many times (ONEBUF_FOREVER: without an
/// end). `element` is what NumPy calls its elements: `<f4` are floats, `<c8` pairs of them. A file that has others, or is not
/// whole, is ONEBUF_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_npy(
    path: *const c_char,
    element: *const c_char,
    times: u64,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: the caller's promise.
        let (path, element) = unsafe { (input::path(path, "path")?, text(element, "element")?) };
        *source = onebuf_source::put(with_element!(element, T => npy::<T>(path, times))?)?;
        Ok(())
    })
}

/// A signal that is computed: the same in every run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_synthetic(
    options: *const onebuf_synthetic_options,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: the caller's promise.
        let given = unsafe { self::options(options)? };
        let mut signal = Synthetic::new(given.channels, given.samples);
        if !given.waves.is_null() {
            // SAFETY: the caller's promise.
            let waves = unsafe { array(given.waves, given.wave_count, "waves")? };
            let wave = |&onebuf_wave { level, frequency, direction }: &_| Wave {
                level,
                frequency,
                direction,
            };
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
        *source = onebuf_source::put(Feeder::new(Typed::<_, Complex32>::new(signal)))?;
        Ok(())
    })
}

/// Frames in packets, over UDP: straight into the slots where the host sees those. A frame that lacks a packet is counted, and not passed
/// on. One stream is received at a time; one that goes quiet without an end is replaced by the next that sends (`takeover_ms`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_udp(
    options: *const onebuf_udp_source_options,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: the caller's promise.
        let given = unsafe { self::options(options)? };
        // SAFETY: as above.
        let address = unsafe { text(given.address, "address")? };
        let mut udp = Udp::bind(address)?.timeout(silence(given.timeout_ms));
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
        let (address, meter) = (udp.address()?.to_string(), udp.meter());
        let feeder = Feeder { address: Some(address), meter: Some(meter), ..Feeder::new(udp) };
        *source = onebuf_source::put(feeder)?;
        Ok(())
    })
}

/// Frames as they lie in memory, one behind the other, over TCP. The sender's closing is the end; within a frame it is
/// ONEBUF_PEER_LOST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_tcp(
    options: *const onebuf_tcp_source_options,
    source: Slot<'_, onebuf_source>,
) -> onebuf_status {
    entry(|| {
        let source = out(source, "source")?;
        // SAFETY: the caller's promise.
        let given = unsafe { self::options(options)? };
        // SAFETY: as above.
        let address = unsafe { text(given.address, "address")? };
        let limit = silence(given.timeout_ms);
        let mut tcp = match given.listen {
            0 => Tcp::connect(address, limit)?,
            _ => Tcp::listen(address, limit)?,
        };
        if given.frame_limit_ms != 0 {
            tcp = tcp.frame_limit(Duration::from_millis(given.frame_limit_ms));
        }
        let address = Some(tcp.address()?.to_string());
        *source = onebuf_source::put(Feeder { address, ..Feeder::new(tcp) })?;
        Ok(())
    })
}

/// Where a source of the network listens, or is connected from: `HOST:PORT`. ONEBUF_UNSUPPORTED for others.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_source_address(
    source: onebuf_source,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            let address = source.get()?.address.clone();
            let none = || Error::unsupported("a source's address", "one of the network");
            Ok(address.ok_or_else(none)?.into_bytes())
        })
    })
}

/// What a UDP source has counted, from any thread, also while a pipeline runs. ONEBUF_UNSUPPORTED for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_source_udp_counts(
    source: onebuf_source,
    counts: *mut onebuf_udp_counts,
) -> onebuf_status {
    entry(|| {
        let source = source.get()?;
        let none = || Error::unsupported("what a source has counted", "one of UDP");
        let found = source.meter.as_ref().ok_or_else(none)?.counts();
        // SAFETY: the caller's promise.
        unsafe { give(plain(&found), counts, "counts") }
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
    }
}

/// Frees a source. A pipeline that has it keeps what it needs.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_source_free(source: onebuf_source) -> onebuf_status {
    free(source)
}
