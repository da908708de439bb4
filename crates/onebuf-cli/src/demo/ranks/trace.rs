//! One trace of all ranks, on the clock of rank 0.

use super::host;
use crate::out::{Failure, Result};
use onebuf::{
    Hub,
    trace::{HubTraceExt, Trace},
};
use onebuf_mpi::{Exchange, World};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    time::Instant,
};

/// Round trips for each rank's clock; the shortest counts.
const ROUNDS: usize = 16;

/// The tags of requests and of answers.
const TAGS: [u32; 2] = [1, 2];

/// Numbers between the ids of two ranks' processes and arrows in the trace.
const APART: u64 = 1 << 20;

/// The process of exchanges with other ranks in a rank's trace.
const MESSAGES: u64 = 1 << 16;

/// What must be added to the times of this rank's trace, in nanoseconds. All ranks call it.
pub fn offset(world: &World, hub: &Hub) -> Result<i64> {
    let trace = recorded(hub)?;
    let now = || i64::try_from(trace.now().as_nanos()).unwrap_or(i64::MAX);
    let small = host()?;
    let (ask, answer) = (small.buffer::<i64>(1).build()?, small.buffer::<i64>(1).build()?);
    let timeout = world.timeout();
    let mut own = 0;
    for rank in 1..world.size() {
        let mut best: Option<(i64, i64)> = None;
        for _ in 0..ROUNDS {
            if world.rank() == 0 {
                let before = now();
                world.send(&ask, rank, TAGS[0])?.wait(timeout)?;
                world.receive(&answer, rank, TAGS[1])?.wait(timeout)?;
                let after = now();
                let theirs = answer.to_vec()?[0];
                let found = (after - before, before + (after - before) / 2 - theirs);
                best = Some(best.map_or(found, |best| best.min(found)));
            } else if world.rank() == rank {
                world.receive(&ask, 0, TAGS[0])?.wait(timeout)?;
                answer.write(&[now()])?;
                world.send(&answer, 0, TAGS[1])?.wait(timeout)?;
            }
        }
        if let Some((_, offset)) = best {
            answer.write(&[offset])?;
            world.send(&answer, rank, TAGS[1])?.wait(timeout)?;
        } else if world.rank() == rank {
            world.receive(&answer, 0, TAGS[1])?.wait(timeout)?;
            own = answer.to_vec()?[0];
        }
    }
    Ok(own)
}

fn recorded(hub: &Hub) -> Result<Trace> {
    hub.trace().ok_or_else(|| Failure::new("no trace is recorded"))
}

/// Writes the traces of all ranks into one file, on rank 0. All ranks call it.
pub fn save(
    world: &World,
    hub: &Hub,
    offset: i64,
    path: &Path,
    exchanges: &[(&'static str, Vec<Exchange>)],
) -> Result<()> {
    let (mut own, trace) = (Vec::new(), recorded(hub)?);
    trace.write(&mut own)?;
    let mut own: Value = serde_json::from_slice(&own)?;
    if let Some(events) = own.get_mut("traceEvents").and_then(Value::as_array_mut) {
        let (now, clock) = (Instant::now(), trace.now());
        let us = |at: Instant| (clock.saturating_sub(now - at)).as_nanos() as f64 / 1e3;
        events.extend(turned(exchanges, us));
    }
    shift(&mut own, world.rank(), offset);
    let Some(all) = world.collect(own.to_string().into_bytes(), 0, world.timeout())? else {
        return Ok(());
    };
    let about =
        |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let mut events = Vec::new();
    for trace in &all {
        let mut trace: Value = serde_json::from_slice(trace)?;
        if let Some(Value::Array(own)) = trace.get_mut("traceEvents").map(Value::take) {
            events.extend(own);
        }
    }
    let whole = json!({ "displayTimeUnit": "ns", "traceEvents": events });
    let mut file = BufWriter::new(File::create(path).map_err(|error| about(&error))?);
    serde_json::to_writer(&mut file, &whole).map_err(|error| about(&error))?;
    file.flush().map_err(|error| about(&error))
}

/// The exchanges of frames with other ranks: slices that may overlap, in a process of their own.
fn turned(turns: &[(&'static str, Vec<Exchange>)], us: impl Fn(Instant) -> f64) -> Vec<Value> {
    let meta = |name: &str, args: Value| json!({ "ph": "M", "name": name, "pid": MESSAGES, "tid": 0, "args": args });
    let mut events = vec![
        meta("process_name", json!({ "name": "messages" })),
        meta("process_sort_index", json!({ "sort_index": MESSAGES })),
    ];
    for (turn, exchanges) in turns {
        for exchange in exchanges {
            let Exchange { frame, peer, received_bytes, .. } = exchange;
            let (began, ended) = (us(exchange.began), us(exchange.ended));
            // Above the numbers of arrows.
            let id = APART / 2 + events.len() as u64;
            let end = |ph: &str, ts: f64| {
                json!({
                    "ph": ph, "cat": turn, "name": format!("{turn}, rank {peer}"),
                    "pid": MESSAGES, "tid": 0, "id": id, "ts": ts,
                })
            };
            let mut first = end("b", began);
            first["args"] = json!({
                "frame": frame, "partner": peer, "bytes": received_bytes, "waited_us": ended - began,
            });
            events.extend([first, end("e", ended)]);
        }
    }
    events
}

/// Gives a rank's processes and arrows numbers of their own and the rank's name, and moves its times.
fn shift(trace: &mut Value, rank: usize, offset: i64) {
    let Some(events) = trace.get_mut("traceEvents").and_then(Value::as_array_mut) else { return };
    let apart = rank as u64 * APART;
    for event in events {
        for number in ["pid", "id"] {
            if let Some(value) = event.get(number).and_then(Value::as_u64) {
                event[number] = json!(value + apart);
            }
        }
        if let Some(us) = event.get("ts").and_then(Value::as_f64) {
            event["ts"] = json!(us + offset as f64 / 1e3);
        }
        let index = event["args"].get("sort_index").and_then(Value::as_u64);
        match event["name"].as_str() {
            Some("process_sort_index") => {
                event["args"]["sort_index"] = json!(index.unwrap_or(0) + apart);
            }
            Some("process_name") => {
                let name = event["args"]["name"].as_str().unwrap_or_default();
                event["args"]["name"] = json!(format!("rank {rank}: {name}"));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_processes_of_its_own() {
        let mut trace = json!({ "traceEvents": [
            { "ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": { "name": "opencl:0" } },
            { "ph": "M", "name": "process_sort_index", "pid": 2, "tid": 0, "args": { "sort_index": 2 } },
            { "ph": "X", "name": "beams", "pid": 2, "tid": 1, "ts": 10.5, "dur": 3.0, "args": {} },
            { "ph": "s", "name": "hand-over", "pid": 2, "tid": 1, "ts": 12.0, "id": 7 },
        ]});
        shift(&mut trace, 3, -2_500);
        let events = trace["traceEvents"].as_array().unwrap();
        let pid = 2 + 3 * APART;
        assert!(events.iter().all(|event| event["pid"] == pid), "{trace}");
        assert_eq!(events[0]["args"]["name"], "rank 3: opencl:0");
        assert_eq!(events[1]["args"]["sort_index"], pid);
        assert_eq!((events[2]["ts"].as_f64(), events[2]["dur"].as_f64()), (Some(8.0), Some(3.0)));
        assert_eq!(events[3]["id"], 7 + 3 * APART);
    }
}
