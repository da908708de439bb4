//! Sinks
//!
//! Where a pipeline's frames go, where that is no function of the caller's: memory, files, the network. A pipeline that is
//! given one (`onebuf_pipeline_options.drain`) has it until it is freed; the handle is still there to ask it, and is freed on its
//! own.

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

/// A sink. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_sink {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_sink, Drainer, 20);

/// Frames in packets, for onebuf_source_udp(). Zeroes are the defaults, but for `address`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_udp_sink_options {
    /// `sizeof(onebuf_udp_sink_options)`.
    pub size: usize,
    /// Where to, such as `127.0.0.1:5000`.
    pub address: *const c_char,
    /// Not zero: the stream has the number `stream`, and not some number.
    pub one_stream: u32,
    /// That number.
    pub stream: u32,
    /// How many bytes of a frame a packet carries at most; zero: as many as fit the way there, and no more than 8192.
    pub payload_bytes: usize,
    /// So many bytes of frames per second and no more, evenly; zero: as fast as it goes.
    pub bytes_per_s: f64,
    /// On purpose: which part of the packets is lost, from 0 to 1.
    pub lose: f64,
    /// On purpose: which part of them comes twice, from 0 to 1.
    pub duplicate: f64,
    /// On purpose: by how many packets of its frame one may be late.
    pub reorder: usize,
    /// For other bad luck; zero: 1.
    pub seed: u64,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_udp_sink_options {}

/// What a UDP sink has sent.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_udp_sent {
    /// `sizeof(onebuf_udp_sent)`: set it before the call.
    pub size: usize,
    /// Frames.
    pub frames: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes of frames, without the packets' heads.
    pub bytes: u64,
    /// Packets that were lost on purpose.
    pub lost_packets: u64,
    /// Packets that were sent twice on purpose.
    pub duplicate_packets: u64,
    /// How often the other end said that nobody listens there.
    pub refused: u64,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_udp_sent {}

/// A sink, and what can be asked of it while a pipeline has it.
#[doc(hidden)]
pub struct Drainer {
    sink: Arc<Claimable<Drain>>,
    udp: Option<Sender>,
}

impl Drainer {
    fn new(sink: impl Sink<u8> + Send + 'static) -> Self {
        Self { sink: Claimable::new(Box::new(sink)), udp: None }
    }

    /// For a pipeline.
    pub(crate) fn claim(&self) -> Result<Claim<Drain>> {
        Claim::new(&self.sink, "sink")
    }

    fn sender(&self) -> Result<&Sender> {
        let none = || Error::unsupported("what a sink has sent", "one of UDP");
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

/// A UDP sink that can be asked while a pipeline has it.
#[derive(Clone)]
struct Sender {
    udp: Arc<Mutex<Udp>>,
    /// Apart: the lock is held for as long as a frame is being sent.
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

/// Frames go one behind the other into the caller's memory, which stays, and is nobody else's, until the sink and the pipeline that
/// has it are freed. A frame that finds no room stops the pipeline with ONEBUF_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_sink_memory(
    data: *mut c_void,
    bytes: usize,
    sink: Slot<'_, onebuf_sink>,
) -> onebuf_status {
    entry(|| {
        let sink = out(sink, "sink")?;
        // SAFETY: the caller's promise.
        let all: &'static mut [u8] = unsafe { bytes_mut(data, bytes, "data")? };
        *sink = onebuf_sink::put(Drainer::new(Area { all, used: 0 }))?;
        Ok(())
    })
}

/// Frames go one behind the other into a file, as they lie in memory. A file that there is is emptied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_sink_file(
    path: *const c_char,
    sink: Slot<'_, onebuf_sink>,
) -> onebuf_status {
    entry(|| {
        let sink = out(sink, "sink")?;
        // SAFETY: the caller's promise.
        let file = File::create(unsafe { input::path(path, "path")? })?;
        *sink = onebuf_sink::put(Drainer::new(file))?;
        Ok(())
    })
}

fn npy<T: NpyElement>(path: &Path, shape: &[usize]) -> Result<Drainer> {
    Ok(Drainer::new(Typed::<_, T>::new(Npy::<T>::create(path, shape)?)))
}

/// Frames of this shape go into a NumPy file whose first axis counts them; it is whole after each of them. `element` is what NumPy
/// calls their elements: `<f4` are floats, `<c8` pairs of them.
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
        // SAFETY: the caller's promise.
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
    if given.payload_bytes != 0 {
        udp = udp.payload(given.payload_bytes)?;
    }
    Ok(if given.bytes_per_s == 0.0 { udp } else { udp.rate(given.bytes_per_s)? })
}

/// Frames go out in packets, over UDP, straight out of the slots where the host sees those. onebuf_sink_finish() says that
/// there are no more; so does the end of the sink and the pipeline that has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_sink_udp(
    options: *const onebuf_udp_sink_options,
    sink: Slot<'_, onebuf_sink>,
) -> onebuf_status {
    entry(|| {
        let sink = out(sink, "sink")?;
        // SAFETY: the caller's promise.
        let given = unsafe { self::options(options)? };
        // SAFETY: as above.
        let udp = sender(&given, unsafe { text(given.address, "address")? })?;
        let udp = Sender::new(udp);
        *sink = onebuf_sink::put(Drainer { udp: Some(udp.clone()), ..Drainer::new(udp) })?;
        Ok(())
    })
}

/// Says that there are no more frames, after a run: the receiver's pipeline ends. A frame after that begins a new stream.
/// ONEBUF_UNSUPPORTED for sinks that need no such word.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_sink_finish(sink: onebuf_sink) -> onebuf_status {
    entry(|| Ok(lock(&sink.get()?.sender()?.udp).finish()?))
}

/// What a UDP sink has sent, from any thread; it waits for nobody. ONEBUF_UNSUPPORTED for others.
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
        // SAFETY: the caller's promise.
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
