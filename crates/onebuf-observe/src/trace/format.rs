//! The Trace Event format: one JSON object that Perfetto and `chrome://tracing` open.

use super::{Clock, Event, What, lanes, recorder::Track};
use onebuf_core::topology::{DeviceIx, Topology};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    time::Duration,
};

/// A row in the viewer: a device, its queue or part, and a clock.
type Row = (DeviceIx, Track, Clock);

/// Writes the events, one line each.
pub(super) fn write(
    mut to: impl Write,
    events: &[Event],
    dropped: u64,
    topology: &Topology,
    own: &BTreeSet<usize>,
) -> io::Result<()> {
    let picture = Picture::of(events);
    let other = json!({ "schema": 2, "program": "onebuf", "dropped": dropped });
    write!(to, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{other},\"traceEvents\":[")?;
    let lines = picture.names(topology, own).into_iter().chain(picture.slices(topology));
    for (number, line) in lines.chain(picture.arrows()).enumerate() {
        write!(to, "{}\n{line}", if number == 0 { "" } else { "," })?;
    }
    writeln!(to, "\n]}}")
}

/// Events with their rows and lanes.
struct Picture<'e> {
    /// Sorted by start.
    placed: Vec<(&'e Event, usize)>,
    /// The row and lane of each thread in the viewer.
    threads: Vec<(Row, usize)>,
}

impl<'e> Picture<'e> {
    fn of(events: &'e [Event]) -> Self {
        let mut rows: BTreeMap<Row, Vec<&Event>> = BTreeMap::new();
        for event in events {
            rows.entry((event.device, Track::of(event), event.clock)).or_default().push(event);
        }
        let mut picture = Self { placed: Vec::with_capacity(events.len()), threads: Vec::new() };
        for (row, mut events) in rows {
            // Nested events end first and are recorded first, so they must be sorted.
            events.sort_by_key(|event| (event.start, std::cmp::Reverse(event.end)));
            let (lanes, first) = (lanes::assign(&events), picture.threads.len());
            let count = lanes.iter().max().map_or(0, |most| most + 1);
            picture.threads.extend((0..count).map(|lane| (row, lane)));
            picture.placed.extend(events.into_iter().zip(lanes.iter().map(|lane| first + lane)));
        }
        picture.placed.sort_by_key(|(event, _)| event.start);
        picture
    }

    /// Names and sort order of processes and threads.
    fn names(&self, topology: &Topology, own: &BTreeSet<usize>) -> Vec<Value> {
        let mut names = Vec::new();
        let mut last = None;
        for (tid, ((device, track, clock), lane)) in self.threads.iter().enumerate() {
            let (pid, tid) = (pid(*device), tid + 1);
            if last.replace(device) != Some(device) {
                let node = topology.node(*device);
                let name = format!("{} ({})", node.id, node.info.name);
                names.push(meta("process_name", pid, 0, json!({ "name": name })));
                names.push(meta("process_sort_index", pid, 0, json!({ "sort_index": pid })));
            }
            let name = row_name(*track, *clock, *lane, own);
            names.push(meta("thread_name", pid, tid, json!({ "name": name })));
            names.push(meta("thread_sort_index", pid, tid, json!({ "sort_index": tid })));
        }
        names
    }

    fn slices(&self, topology: &Topology) -> impl Iterator<Item = Value> {
        self.placed.iter().map(|(event, thread)| {
            json!({
                "ph": "X",
                "cat": event.what.name(),
                "name": event.name,
                "pid": pid(event.device),
                "tid": thread + 1,
                "ts": us(event.start),
                "dur": us(event.end.saturating_sub(event.start)),
                "args": args(event, topology),
            })
        })
    }

    /// Arrows from the other queue's last event to the hand-over.
    fn arrows(&self) -> impl Iterator<Item = Value> {
        let mut latest: BTreeMap<usize, (&Event, usize)> = BTreeMap::new();
        let mut arrows = Vec::new();
        for &(event, thread) in &self.placed {
            let source = event.from_queue.and_then(|queue| latest.get(&queue));
            if let Some((before, from)) = source.filter(|_| event.what == What::HandOver) {
                let id = arrows.len() / 2 + 1;
                arrows.push(arrow("s", id, before, *from));
                arrows.push(arrow("f", id, event, thread));
            }
            if let (Some(queue), Clock::Host) = (event.queue, event.clock) {
                latest.insert(queue, (event, thread));
            }
        }
        arrows.into_iter()
    }
}

fn arrow(ph: &str, id: usize, at: &Event, thread: usize) -> Value {
    let (pid, name) = (pid(at.device), What::HandOver.name());
    let mut arrow = json!({ "ph": ph, "id": id, "cat": name, "name": name, "pid": pid, "tid": thread + 1, "ts": us(at.start) });
    if ph == "f" {
        // Binds to the enclosing slice instead of the next one.
        arrow["bp"] = json!("e");
    }
    arrow
}

fn meta(name: &str, pid: usize, tid: usize, args: Value) -> Value {
    json!({ "ph": "M", "name": name, "pid": pid, "tid": tid, "args": args })
}

fn row_name(track: Track, clock: Clock, lane: usize, own: &BTreeSet<usize>) -> String {
    let row = match track {
        Track::Queue(number) if own.contains(&number) => format!("queue {number}, onebuf's own"),
        Track::Queue(number) => format!("queue {number}"),
        Track::Part(name) => name.to_owned(),
    };
    let clock = if clock == Clock::Device { ", on the device" } else { "" };
    let lane = if lane > 0 { format!(" ({})", lane + 1) } else { String::new() };
    format!("{row}{clock}{lane}")
}

/// The fields of an event other than its time and place.
fn args(event: &Event, topology: &Topology) -> Value {
    let id = |device: Option<DeviceIx>| device.map(|device| json!(topology.node(device).id));
    let fields = [
        ("device", id(Some(event.device))),
        ("queue", event.queue.map(|queue| json!(queue))),
        ("from", id(event.from)),
        ("from_queue", event.from_queue.map(|queue| json!(queue))),
        ("to", id(event.to)),
        ("bytes", event.bytes.map(|bytes| json!(bytes))),
        ("route", event.route.map(|route| json!(route))),
        ("sync", event.sync_method.map(|sync_method| json!(sync_method))),
        ("buffer", event.buffer.as_ref().map(|name| json!(name))),
        ("cause", event.cause.map(|cause| json!(cause))),
        ("frame", event.frame.map(|frame| json!(frame))),
        ("failed", event.failed.then_some(json!(true))),
        ("why", event.why.as_ref().map(|why| json!(why))),
        ("clock", Some(json!(if event.clock == Clock::Device { "device" } else { "host" }))),
    ];
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(known.collect::<Map<_, _>>())
}

/// Process numbers start at one.
fn pid(device: DeviceIx) -> usize {
    device.get() + 1
}

fn us(at: Duration) -> f64 {
    at.as_nanos() as f64 / 1e3
}
