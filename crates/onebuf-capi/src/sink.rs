//! Sinks
//!
//! Sinks of the library, instead of callbacks: memory, files, the network. A pipeline claims the sink that it is given
//! (`onebuf_pipeline_options.drain`) until the pipeline is freed. The sink's handle can be queried meanwhile, and is
//! freed separately.

use crate::{
    claim::{Claim, Claimable, Drain, lock},
    entry::{entry, free},
    fault::Result,
    handle::{Noun, noun},
    input::{self, Options, Slot, array, bytes_mut, give, options, out, text},
    status::onebuf_status,
    typed::{Typed, with_element},
};
use onebuf::{
    Error,
    pipeline::{
        NpyElement,
        sink::{Faults, File, Npy, Sink, Udp, UdpSent, UdpSentMeter},
    },
};
use std::{
    ffi::{c_char, c_void},
    path::Path,
    sync::{Arc, Mutex},
};

/// A sink. Free it with onebuf_sink_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_sink {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_sink, Drainer, 20);

/// Options of a UDP sink, whose frames onebuf_source_udp() receives. Zero in every field means the default, except for
/// `address`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_udp_sink_options {
    /// `sizeof(onebuf_udp_sink_options)`.
    pub size: usize,
    /// Destination, such as `127.0.0.1:5000`.
    pub address: *const c_char,
    /// Not zero: uses `stream` as the number of the stream, instead of a random one.
    pub one_stream: u32,
    /// The number of the stream.
    pub stream: u32,
    /// Maximum payload of a packet in bytes; zero: as much as fits the path's MTU, at most 8192.
    pub payload_bytes: usize,
    /// Rate limit in bytes of frames per second, evenly spaced; zero: none.
    pub bytes_per_s: f64,
    /// Fault injection: fraction of packets that are dropped, from 0 to 1.
    pub lose: f64,
    /// Fault injection: fraction of packets that are sent twice, from 0 to 1.
    pub duplicate: f64,
    /// Fault injection: by how many packets of its frame a packet may be delayed.
    pub reorder: usize,
    /// Seed of the fault injection; zero: 1.
    pub seed: u64,
    /// Number of threads that send each frame, each from a port of its own, at most 64; zero: one, the pipeline's.
    pub threads: usize,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_udp_sink_options {}

/// Counters of a UDP sink.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_udp_sent {
    /// `sizeof(onebuf_udp_sent)`: set it before the call.
    pub size: usize,
    /// Frames sent.
    pub frames: u64,
    /// Packets sent.
    pub packets: u64,
    /// Bytes of frames, without packet headers.
    pub bytes: u64,
    /// Packets that fault injection dropped.
    pub lost_packets: u64,
    /// Packets that fault injection sent twice.
    pub duplicate_packets: u64,
    /// How often the other end reported that nothing listens there.
    pub refused: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_udp_sent {}

/// A sink, and what can be queried while a pipeline has it.
#[doc(hidden)]
pub struct Drainer {
    sink: Arc<Claimable<Drain>>,
    udp: Option<Sender>,
}

impl Drainer {
    fn new(sink: impl Sink<u8> + Send + 'static) -> Self {
        Self { sink: Claimable::new(Box::new(sink)), udp: None }
    }

    /// Hands the sink to a pipeline.
    pub(crate) fn claim(&self) -> Result<Claim<Drain>> {
        Claim::new(&self.sink, "sink")
    }

    fn sender(&self) -> Result<&Sender> {
        let what = "finishing a sink, or reading its counters,";
        let none = || Error::unsupported(what, "a UDP sink");
        Ok(self.udp.as_ref().ok_or_else(none)?)
    }
}

/// The caller's memory, and how much of it is used.
struct Area {
    all: &'static mut [u8],
    used: usize,
}

impl Sink<u8> for Area {
    fn take(&mut self, frame: &[u8], number: u64) -> onebuf::Result<()> {
        let (one, left) = (frame.len(), self.all.len() - self.used);
        let Some(to) = self.all.get_mut(self.used..self.used + one) else {
            return Err(Error::invalid(format!(
                "frame {number} of {one} bytes does not fit the {left} that are left of the memory"
            )));
        };
        to.copy_from_slice(frame);
        self.used += one;
        Ok(())
    }
}

/// A UDP sink that can be queried while a pipeline uses it.
#[derive(Clone)]
struct Sender {
    udp: Arc<Mutex<Udp>>,
    /// A separate lock: the other is held while a frame is being sent.
    meter: UdpSentMeter,
}

impl Sender {
    fn new(udp: Udp) -> Self {
        Self { meter: udp.meter(), udp: Arc::new(Mutex::new(udp)) }
    }

    fn sent(&self) -> UdpSent {
        self.meter.sent()
    }
}

impl Sink<u8> for Sender {
    fn take(&mut self, frame: &[u8], number: u64) -> onebuf::Result<()> {
        lock(&self.udp).take(frame, number)
    }
}

/// Appends frames to the caller's memory. The memory must stay allocated, and must not be used by others, until the
/// sink and the pipeline that has it are freed. A frame that does not fit stops the pipeline with
/// ONEBUF_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_sink_memory(
    data: *mut c_void,
    bytes: usize,
    sink: Slot<'_, onebuf_sink>,
) -> onebuf_status {
    entry(|| {
        let sink = out(sink, "sink")?;
        // SAFETY: guaranteed by the caller.
        let all: &'static mut [u8] = unsafe { bytes_mut(data, bytes, "data")? };
        *sink = onebuf_sink::put(Drainer::new(Area { all, used: 0 }))?;
        Ok(())
    })
}

/// Appends frames to a file as raw bytes. An existing file is truncated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_sink_file(
    path: *const c_char,
    sink: Slot<'_, onebuf_sink>,
) -> onebuf_status {
    entry(|| {
        let sink = out(sink, "sink")?;
        // SAFETY: guaranteed by the caller.
        let file = File::create(unsafe { input::path(path, "path")? })?;
        *sink = onebuf_sink::put(Drainer::new(file))?;
        Ok(())
    })
}

fn npy<T: NpyElement>(path: &Path, shape: &[usize]) -> Result<Drainer> {
    Ok(Drainer::new(Typed::<_, T>::new(Npy::<T>::create(path, shape)?)))
}

/// Writes frames of this shape to a NumPy file whose first axis counts them; the file is valid after each frame.
/// `element` is NumPy's type string: `<f4` is float, `<c8` is a pair of floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_sink_npy(
    path: *const c_char,
    element: *const c_char,
    shape: *const usize,
    axis_count: usize,
    sink: Slot<'_, onebuf_sink>,
) -> onebuf_status {
    entry(|| {
        let sink = out(sink, "sink")?;
        // SAFETY: guaranteed by the caller.
        let (path, element, shape) = unsafe {
            (
                input::path(path, "path")?,
                text(element, "element")?,
                array(shape, axis_count, "shape")?,
            )
        };
        *sink = onebuf_sink::put(with_element!(element, T => npy::<T>(path, shape))?)?;
        Ok(())
    })
}

fn sender(given: &onebuf_udp_sink_options, address: &str) -> Result<Udp> {
    let seed = given.seed.max(1);
    let faults =
        Faults { lose: given.lose, duplicate: given.duplicate, reorder: given.reorder, seed };
    let mut udp = Udp::connect(address)?.faults(faults);
    if given.one_stream != 0 {
        udp = udp.stream(given.stream);
    }
    if given.threads != 0 {
        udp = udp.threads(given.threads)?;
    }
    if given.payload_bytes != 0 {
        udp = udp.payload(given.payload_bytes)?;
    }
    Ok(if given.bytes_per_s == 0.0 { udp } else { udp.rate(given.bytes_per_s)? })
}

/// Sends frames as UDP packets, directly from the slots if the host can access them. onebuf_sink_finish() announces the
/// end of the stream; so does freeing the sink and the pipeline that has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_sink_udp(
    options: *const onebuf_udp_sink_options,
    sink: Slot<'_, onebuf_sink>,
) -> onebuf_status {
    entry(|| {
        let sink = out(sink, "sink")?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { self::options(options)? };
        // SAFETY: as above.
        let udp = sender(&given, unsafe { text(given.address, "address")? })?;
        let udp = Sender::new(udp);
        *sink = onebuf_sink::put(Drainer { udp: Some(udp.clone()), ..Drainer::new(udp) })?;
        Ok(())
    })
}

/// Announces the end of the stream after a run, so that the receiver's pipeline ends. A later frame begins a new
/// stream. ONEBUF_UNSUPPORTED for sinks that need no such announcement.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_sink_finish(sink: onebuf_sink) -> onebuf_status {
    entry(|| Ok(lock(&sink.get()?.sender()?.udp).finish()?))
}

/// Reads the counters of a UDP sink, from any thread, without waiting. ONEBUF_UNSUPPORTED for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_sink_udp_sent(
    sink: onebuf_sink,
    sent: *mut onebuf_udp_sent,
) -> onebuf_status {
    entry(|| {
        let found = sink.get()?.sender()?.sent();
        let plain = onebuf_udp_sent {
            size: size_of::<onebuf_udp_sent>(),
            frames: found.frames,
            packets: found.packets,
            bytes: found.bytes,
            lost_packets: found.lost_packets,
            duplicate_packets: found.duplicate_packets,
            refused: found.refused,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give(plain, sent, "sent") }
    })
}

/// Frees a sink. A pipeline that has it keeps what it needs.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_sink_free(sink: onebuf_sink) -> onebuf_status {
    free(sink)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread, time::Duration};

    #[test]
    fn counts_do_not_wait_for_a_frame_that_is_being_sent() {
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut sender = Sender::new(Udp::connect(receiver.local_addr().unwrap()).unwrap());
        sender.take(&[1; 100], 0).unwrap();
        let (asking, (told, answer)) = (sender.clone(), mpsc::channel());
        let sending = lock(&sender.udp);
        thread::spawn(move || told.send(asking.sent()));
        let sent = answer.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!((sent, sent.frames, sent.bytes), (sending.sent(), 1, 100));
    }
}
