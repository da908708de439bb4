//! The report of the demonstration, as text and as JSON.

use super::{
    account::{self, Column},
    batch::Batch,
    graft::Graft,
    live::both,
    pipeline::{Measured, hops},
    stream::Streamed,
};
use crate::{
    out::Answer,
    screen::{Colour, Screen},
    table::{Cell, Table},
    units,
};
use onebuf::{
    Complex32, Device,
    pipeline::{Latency, StageReport, source::UdpCounts},
};
use onebuf_demo::{Adapted, Detection, Pipeline, Shape, direction};
use serde_json::{Value, json};
use std::time::Duration;

/// Number of detections that are listed, the strongest first.
const LISTED: usize = 8;

pub struct Report<'r> {
    pub pipeline: &'r Pipeline,
    /// How the weights were computed, if they were adapted.
    pub adapted: Option<Adapted>,
    /// The streaming run.
    pub streamed: Streamed,
    /// The best way; `None` if only the staged one was requested.
    pub direct: Option<Measured>,
    /// The staged way; `None` for a single device.
    pub staged: Option<Measured>,
    pub batch: Batch,
    /// Why copies could not be forbidden.
    pub obstacle: Option<String>,
    pub graft: &'r Graft,
    /// Where the time went, if it was traced.
    pub columns: Vec<Column>,
}

impl Report<'_> {
    pub fn answer(&self, screen: Screen) -> Answer {
        Answer { json: self.json(), text: self.text(screen) }
    }

    /// The way that the report is about.
    fn main(&self) -> Option<&Measured> {
        self.direct.as_ref().or(self.staged.as_ref())
    }

    fn speedup(&self) -> Option<f64> {
        let (direct, staged) = (self.direct.as_ref()?, self.staged.as_ref()?);
        Some(staged.frame_us / direct.frame_us)
    }

    fn json(&self) -> Value {
        let of = |way: &Option<Measured>, value: fn(&Measured) -> f64| way.as_ref().map(value);
        let bytes = |way: &Option<Measured>, value: fn(&Measured) -> u64| way.as_ref().map(value);
        let stage =
            |(name, device): (&str, &Device)| json!({ "name": name, "device": device.id() });
        let mut stages: Vec<Value> = self.stages().map(stage).collect();
        for (number, stage) in stages.iter_mut().enumerate() {
            if let Some(from) = self.pipeline.compiler(number) {
                stage["grafted_from"] = json!(from.id());
            }
        }
        stages.push(json!({ "name": "detect", "device": "host" }));
        let errors = [&self.direct, &self.staged].into_iter().flatten().map(|m| m.max_rel_error);
        let errors = errors.chain([self.streamed.findings.max_rel_error]);
        let shape = self.pipeline.shape();
        json!({
            "stages": stages,
            "routes": self.main().map(|measured| self.routes(measured)),
            "sync": self.main().map(|measured| measured.sync),
            "frames": self.streamed.report.frames,
            "samples": shape.samples(),
            "channels": shape.channels,
            "beams": shape.beams,
            "order": self.pipeline.setup.interpolator.order(),
            "adaptive": self.adapted.as_ref().map(|adapted| json!({
                "channels": self.pipeline.setup.used,
                "device": adapted.device.id(),
                "max_rel_error": adapted.max_rel_error,
            })),
            "grafted": self.pipeline.grafted_from.is_some(),
            "not_grafted_why": self.graft.why_not(),
            "batch": self.batch.frames,
            "batch_why": self.batch.why,
            "stage_us": self.batch.stage_us,
            "lost_packets": self.streamed.network.map_or(0, |counts| counts.lost_packets),
            "network": self.network(),
            "incomplete_frames": self.streamed.report.incomplete,
            "dropped_frames": self.streamed.report.dropped,
            "stream": self.stream(),
            "detections": listed(&self.streamed.detections, shape),
            "frame_us": of(&self.direct, |m| m.frame_us),
            "staged_frame_us": of(&self.staged, |m| m.frame_us),
            "handoff_us": of(&self.direct, |m| m.handoff_us),
            "staged_handoff_us": of(&self.staged, |m| m.handoff_us),
            "bytes_copied": bytes(&self.direct, |m| m.bytes_copied),
            "staged_bytes_copied": bytes(&self.staged, |m| m.bytes_copied),
            "io_bytes_copied": bytes(&self.direct, |m| m.io_bytes_copied),
            "staged_io_bytes_copied": bytes(&self.staged, |m| m.io_bytes_copied),
            "speedup": self.speedup(),
            "account": account::json(&self.columns),
            "max_rel_error": errors.fold(0.0, f64::max),
        })
    }

    /// The results of the streaming run.
    fn stream(&self) -> Value {
        let Streamed { report, ring, batch, bytes_copied, findings, detected, .. } = &self.streamed;
        json!({
            "frames": report.frames,
            "checked_frames": findings.checked,
            "seconds": report.elapsed.as_secs_f64(),
            "frames_per_s": self.streamed.frames_per_s,
            "gb_per_s": self.gb_per_s(),
            "latency_us": us(report.latency),
            "source_us": us(report.source),
            "stages": report.stages.iter().map(stage).collect::<Vec<_>>(),
            "detect_us": us(report.sink),
            "ring": ring,
            "batch": batch,
            "one_thread": report.one_thread.is_some(),
            "bytes_copied": bytes_copied,
            "detections": detected,
        })
    }

    fn gb_per_s(&self) -> f64 {
        let bytes = self.pipeline.shape().samples() * size_of::<Complex32>();
        self.streamed.frames_per_s * bytes as f64 / 1e9
    }

    /// The stages' names and devices.
    fn stages(&self) -> impl Iterator<Item = (&'static str, &Device)> {
        Pipeline::STAGES.into_iter().zip(&self.pipeline.devices)
    }

    fn routes(&self, measured: &Measured) -> Vec<Value> {
        let id = |device| self.pipeline.devices[0].hub().topology().node(device).id.as_str();
        let hops = hops(self.pipeline, &measured.plan).into_iter();
        hops.map(|hop| json!({ "to": id(hop.to), "kind": hop.kind, "sync": hop.sync })).collect()
    }

    fn text(&self, screen: Screen) -> String {
        let Shape { length, channels, beams } = self.pipeline.shape();
        let bytes = length * channels * size_of::<Complex32>();
        let mut text = format!(
            "{} frames of {channels} x {length} complex samples ({}), {beams} beams\n\n",
            self.streamed.report.frames,
            units::bytes(bytes as u64),
        );
        text += &self.stage_table(screen);
        text += &self.switching();
        text += &self.weights();
        text += &self.flow();
        text += &found(
            self.streamed.detected,
            &self.streamed.detections,
            self.pipeline.shape(),
            screen,
        );
        text += &self.costs(screen);
        text += &account::text(&self.columns, screen);
        text += &self.verdict(screen);
        text
    }

    fn stage_table(&self, screen: Screen) -> String {
        let Some(measured) = self.main() else { return String::new() };
        let hub = self.pipeline.devices[0].hub();
        let mut table = Table::new(["stage", "device", "route", "sync"]).remark("name");
        for ((name, device), sync_method) in self.stages().zip(measured.sync) {
            let hops = hops(self.pipeline, &measured.plan);
            let hop = hops.iter().find(|hop| hop.to == device.index());
            let kind = hop.map_or_else(|| "same".into(), |hop| hop.kind.to_string());
            let info = device.info();
            let cells = [name, device.id(), &kind, &sync_method.to_string()].map(Cell::from);
            table.row(cells, format!("{} ({})", info.name.trim(), info.platform.trim()));
        }
        let home = &hub.topology().node(measured.plan.allocate_on).id;
        format!(
            "{}\nthe buffer is allocated on {home} as {}\n",
            table.render(screen),
            measured.plan.memory_kind
        )
    }

    fn switching(&self) -> String {
        let Batch { frames, why, .. } = &self.batch;
        if let Some(from) = &self.pipeline.grafted_from {
            let grafted = |stage: &usize| self.pipeline.compiler(*stage).is_some();
            let names: Vec<&str> = (0..2).filter(grafted).map(|at| Pipeline::STAGES[at]).collect();
            return format!(
                "the kernels of {} are compiled by {from} and grafted: no switch between the stages\n\n",
                names.join(" and ")
            );
        }
        let not = self.graft.why_not().map(|why| format!("not grafted: {why}\n"));
        let not = not.unwrap_or_default();
        let many = if *frames == 1 { "frame" } else { "frames" };
        format!("{not}{frames} {many} per switch: {why}\n\n")
    }

    fn weights(&self) -> String {
        let Some(Adapted { device, max_rel_error, .. }) = &self.adapted else {
            return String::new();
        };
        let used = self.pipeline.setup.used;
        format!(
            "weights for {used} channels, solved on {device}, relative error {max_rel_error:.1e}\n\n"
        )
    }

    /// The streaming run in a few lines of text.
    fn flow(&self) -> String {
        let Streamed { report, ring, batch, bytes_copied, findings, .. } = &self.streamed;
        let thread = if report.one_thread.is_some() { ", on one thread" } else { "" };
        let mut text = format!(
            "streaming: {:.1} frames/s, {:.2} GB/s; a ring of {ring}, batches of {batch}{thread}\n",
            self.streamed.frames_per_s,
            self.gb_per_s(),
        );
        text += &format!("  latency {}\n  source {}\n", both(report.latency), both(report.source));
        for stage in &report.stages {
            text += &format!("  {} on {}: {}\n", stage.name, stage.device, both(stage.latency));
        }
        text += &format!("  detect {}\n{}", both(report.sink), self.packets());
        text += &format!(
            "  {} frames, {} checked, {} dropped, {} incomplete; implied copies: {}\n\n",
            report.frames,
            findings.checked,
            report.dropped,
            report.incomplete,
            units::bytes(*bytes_copied),
        );
        text
    }

    fn network(&self) -> Option<Value> {
        self.streamed.network.map(|counts| network(&counts, &self.streamed.sockets))
    }

    fn packets(&self) -> String {
        let Some(network) = self.network() else { return String::new() };
        let mut text = format!("  {}\n", packets(&network));
        if self.streamed.sockets.len() > 1 {
            let packets = self.streamed.sockets.iter().map(|socket| socket.packets.to_string());
            let packets: Vec<String> = packets.collect();
            text += &format!("  packets of each socket: {}\n", packets.join(", "));
        }
        let takeovers = self.streamed.network.map_or(0, |counts| counts.takeovers);
        if takeovers > 0 {
            let times = if takeovers == 1 { "once" } else { "several times" };
            text += &format!("  a sender stopped and another took over, {times}\n");
        }
        text
    }

    fn costs(&self, screen: Screen) -> String {
        let direct = if self.obstacle.is_some() { "best way" } else { "zero-copy" };
        let mut table = Table::new(["", direct, "staged"]);
        let mut row = |name: &str, show: fn(&Measured) -> String| {
            let cell = |way: &Option<Measured>| {
                Cell::number(way.as_ref().map_or_else(|| "-".into(), show))
            };
            table.row([Cell::from(name), cell(&self.direct), cell(&self.staged)], "");
        };
        row("frame, median of batches", |m| units::time(m.frame_us));
        row("hand-over, median", |m| units::time(m.handoff_us));
        row("copied by hand-overs", |m| units::bytes(m.bytes_copied));
        row("copied by upload, read", |m| units::bytes(m.io_bytes_copied));
        row("largest relative error", |m| format!("{:.1e}", m.max_rel_error));
        table.render(screen)
    }

    /// The concluding sentence.
    fn verdict(&self, screen: Screen) -> String {
        let [first, second] = self.pipeline.devices.each_ref().map(Device::id);
        let sentence = match (&self.direct, &self.obstacle, self.speedup()) {
            (None, ..) => "Every frame was staged, as requested, and every beam is correct.".into(),
            (_, Some(why), _) => format!("No zero-copy route between {first} and {second}: {why}."),
            (_, _, None) => format!(
                "Both stages ran on {first}, so nothing was handed over. {}",
                match first {
                    "host" => "Install OpenCL to share a buffer between two devices.",
                    _ => "Name two different devices to see a hand-over.",
                }
            ),
            (Some(direct), _, Some(speedup)) => {
                let (copied, colour) = copied(direct);
                let turns = match &self.pipeline.grafted_from {
                    Some(from) if (0..2).any(|stage| self.pipeline.compiler(stage).is_none()) => {
                        format!(
                            "{from}'s kernels and {second}'s library ran in one stream: {copied}."
                        )
                    }
                    Some(from) => {
                        format!("{from}'s kernels ran in one stream of {second}: {copied}.")
                    }
                    None => format!("{first} and {second} took turns on one buffer: {copied}."),
                };
                let turns = screen.paint(colour, &turns);
                format!("{turns} Staged frames take {speedup:.2} times as long.")
            }
        };
        format!("\n{sentence}\n")
    }
}

/// The counters of UDP, and those that each socket has, as JSON.
pub fn network(counts: &UdpCounts, sockets: &[UdpCounts]) -> Value {
    let of_socket = |counts: &UdpCounts| {
        json!({
            "packets": counts.packets,
            "bytes": counts.bytes,
            "batches": counts.batches,
            "kernel_drops": counts.kernel_drops,
        })
    };
    let mut all = json!(counts);
    all["sockets"] = sockets.iter().map(of_socket).collect();
    all
}

/// The counters of packets, as text.
pub fn packets(network: &Value) -> String {
    let [received, lost, late, duplicate, stray, dropped] = [
        "packets",
        "lost_packets",
        "late_packets",
        "duplicate_packets",
        "stray_packets",
        "kernel_drops",
    ]
    .map(|name| &network[name]);
    format!(
        "{received} packets received, {lost} lost, {late} late, {duplicate} duplicate, {stray} of other streams, {dropped} dropped by the kernel"
    )
}

/// The strongest detections of the last frame.
fn strongest(last: &[Detection]) -> Vec<Detection> {
    let mut all = last.to_vec();
    all.sort_by(|a, b| b.power.total_cmp(&a.power));
    all.truncate(LISTED);
    all
}

/// The strongest detections of the last frame, as JSON.
pub fn listed(last: &[Detection], shape: Shape) -> Vec<Value> {
    let listed = strongest(last).into_iter().map(|Detection { beam, bin, power, floor }| {
        json!({
            "beam": beam,
            "bin": bin,
            "degrees": direction(beam, shape.beams).asin().to_degrees(),
            "frequency": frequency(bin, shape.length),
            "power": power,
            "over_noise_db": decibels(power / floor),
        })
    });
    listed.collect()
}

/// The table of detections.
pub fn found(all: u64, last: &[Detection], shape: Shape, screen: Screen) -> String {
    let mut table = Table::new(["beam", "degrees", "bin", "cycles/sample", "over noise"]);
    for Detection { beam, bin, power, floor } in strongest(last) {
        let degrees = direction(beam, shape.beams).asin().to_degrees();
        let cells = [
            beam.to_string(),
            format!("{degrees:.1}"),
            bin.to_string(),
            format!("{:.3}", frequency(bin, shape.length)),
            format!("{:.0} dB", decibels(power / floor)),
        ];
        table.row(cells.map(Cell::number), "");
    }
    let (last, table) = (last.len(), table.render(screen));
    match last {
        0 => format!("{all} detections, none in the last frame\n\n"),
        _ => {
            format!(
                "{all} detections, {last} in the last frame, of which the strongest:\n{table}\n"
            )
        }
    }
}

/// A stage of a stream, as JSON.
pub fn stage(stage: &StageReport) -> Value {
    let busy_us = stage.busy.as_secs_f64() * 1e6 / stage.frames.max(1) as f64;
    let us = us(stage.latency);
    json!({ "name": stage.name, "device": stage.device, "us": us, "busy_us": busy_us })
}

/// Cycles per sample; the upper half of the bins has negative frequencies.
fn frequency(bin: usize, length: usize) -> f64 {
    let turns = bin as f64 / length as f64;
    if turns < 0.5 { turns } else { turns - 1.0 }
}

fn decibels(ratio: f64) -> f64 {
    10.0 * ratio.log10()
}

pub fn us(latency: Latency) -> Value {
    let us = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e6);
    json!({ "p50": us(latency.p50), "p99": us(latency.p99) })
}

/// The ledger's result for a plan that excludes copies. Uploads and reads are not part of the plan and are reported
/// separately.
fn copied(direct: &Measured) -> (&'static str, Colour) {
    match (direct.bytes_copied, direct.io_bytes_copied) {
        (0, 0) => ("no implied copies", Colour::Green),
        (0, _) => ("hand-overs copied nothing, but uploads or reads did", Colour::Yellow),
        _ => ("hand-overs copied, although the plan excluded copies", Colour::Red),
    }
}
