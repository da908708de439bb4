//! The report of all ranks, by rank 0: as text, and as JSON with the fields of a single process.

use super::{
    super::{
        live::both,
        report::{found, listed, packets, stage, us},
    },
    losses::LeftOut,
    part::{CORNER_TURN, Part, Ran},
};
use crate::{
    out::Answer,
    screen::Screen,
    table::{Cell, Table},
    units,
};
use onebuf::Complex32;
use onebuf_demo::{Beams, Shape, Spectrum};
use onebuf_mpi::World;
use serde_json::{Value, json};

/// What rank 0 knows of all ranks.
pub struct Whole<'r> {
    /// Of rank 0.
    pub part: &'r Part,
    pub ran: &'r Ran,
    /// What every rank told.
    pub parts: &'r [Value],
    /// Frames of the ranks' ports that are in no result.
    pub left_out: LeftOut,
    pub world: &'r World,
}

/// Where rank 0 measured the stage of this name.
fn stage_us<'v>(part: &'v Value, name: &str) -> &'v Value {
    let stages = part["stages"].as_array();
    let stage = stages.and_then(|all| all.iter().find(|stage| stage["name"] == name));
    stage.map_or(&Value::Null, |stage| &stage["us"])
}

impl Whole<'_> {
    pub fn answer(&self, screen: Screen) -> Answer {
        Answer { json: self.json(), text: self.text(screen) }
    }

    /// The sums of the counters of all ranks' ports.
    fn network(&self) -> Option<Value> {
        let ports: Vec<&Value> = self
            .parts
            .iter()
            .map(|part| &part["network"])
            .filter(|port| port.is_object())
            .collect();
        let mut sums = ports.first()?.as_object()?.clone();
        for (name, sum) in &mut sums {
            let sockets = ports.iter().filter_map(|port| port[name].as_array()).flatten();
            *sum = match sum {
                Value::Array(_) => sockets.cloned().collect(),
                _ => ports.iter().filter_map(|port| port[name].as_u64()).sum::<u64>().into(),
            };
        }
        Some(sums.into())
    }

    fn shape(&self) -> Shape {
        self.part.setup.shape
    }

    fn sum(&self, field: &str) -> u64 {
        self.parts.iter().filter_map(|part| part[field].as_u64()).sum()
    }

    /// The median of the corner turn on the rank where it is longest.
    fn corner_turn_us(&self) -> Option<f64> {
        let all = self.parts.iter().filter_map(|part| stage_us(part, CORNER_TURN)["p50"].as_f64());
        all.reduce(f64::max)
    }

    /// MPI's name and version: the first line of what it says of itself.
    fn mpi(&self) -> String {
        let line = self.world.library().lines().next().unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn gb_per_s(&self) -> f64 {
        let bytes = self.shape().samples() * size_of::<Complex32>();
        self.ran.frames_per_s * bytes as f64 / 1e9
    }

    fn json(&self) -> Value {
        let (shape, Ran { report, findings, .. }) = (self.shape(), self.ran);
        let [first, second] = self.part.devices.each_ref().map(|device| device.id());
        let on = |name: &str, device: &str| json!({ "name": name, "device": device });
        let (nothing, claim) = (Value::Null, self.world.gpu_claim());
        let (network, LeftOut { incomplete, dropped }) = (self.network(), self.left_out);
        json!({
            "stages": [
                on(Spectrum::NAME, first),
                on(CORNER_TURN, "host"),
                on(Beams::NAME, second),
                on("detect", "host"),
            ],
            "routes": nothing,
            "sync": nothing,
            "frames": report.frames,
            "samples": shape.samples(),
            "channels": shape.channels,
            "beams": shape.beams,
            "order": self.part.setup.interpolator.order(),
            "adaptive": nothing,
            "grafted": false,
            "not_grafted_why": "a corner turn lies between the stages",
            "batch": 1,
            "batch_why": "several ranks",
            "stage_us": nothing,
            "lost_packets": network.as_ref().map_or(&0.into(), |network| &network["lost_packets"]),
            "network": network,
            "incomplete_frames": incomplete,
            "dropped_frames": dropped,
            "stream": {
                "frames": report.frames,
                "checked_frames": findings.checked,
                "seconds": report.elapsed.as_secs_f64(),
                "frames_per_s": self.ran.frames_per_s,
                "gb_per_s": self.gb_per_s(),
                "latency_us": us(report.latency),
                "source_us": us(report.source),
                "stages": report.stages.iter().map(stage).collect::<Vec<_>>(),
                "detect_us": us(report.sink),
                "ring": self.ran.ring,
                "batch": 1,
                "one_thread": report.one_thread.is_some(),
                "bytes_copied": self.sum("bytes_copied"),
                "detections": self.ran.detected,
            },
            "detections": listed(&self.ran.detections, shape),
            "frame_us": 1e6 / self.ran.frames_per_s,
            "staged_frame_us": nothing,
            "handoff_us": nothing,
            "staged_handoff_us": nothing,
            "bytes_copied": self.sum("bytes_copied"),
            "staged_bytes_copied": nothing,
            "io_bytes_copied": nothing,
            "staged_io_bytes_copied": nothing,
            "speedup": nothing,
            "account": nothing,
            "max_rel_error": findings.max_rel_error,
            "ranks": self.parts,
            "corner_turn_us": self.corner_turn_us(),
            "bytes_sent": self.sum("bytes_received"),
            "mpi": self.mpi(),
            // What MPI was given, and what it says that it takes.
            "gpu_aware": self.sum("device_bytes") > 0,
            "gpu_claim": { "cuda": claim.cuda, "hip": claim.hip },
        })
    }

    fn text(&self, screen: Screen) -> String {
        let (Shape { length, channels, beams }, Ran { report, findings, .. }) =
            (self.shape(), self.ran);
        let bytes = length * channels * size_of::<Complex32>();
        let mut text = format!(
            "{} frames of {channels} x {length} complex samples ({}), {beams} beams, on {} ranks of {}\n\
             MPI was given {}; {}\n\n",
            report.frames,
            units::bytes(bytes as u64),
            self.parts.len(),
            self.mpi(),
            match self.sum("device_bytes") {
                0 => "memory of the host alone".into(),
                bytes => format!("{} in devices' memory", units::bytes(bytes)),
            },
            self.world.gpu_claim(),
        );
        text += &self.table(screen);
        text += &format!(
            "\nstreaming: {:.1} frames/s, {:.2} GB/s; a ring of {} on each rank\n  latency {}\n",
            self.ran.frames_per_s,
            self.gb_per_s(),
            self.ran.ring,
            both(report.latency),
        );
        text += &self.ports();
        text += &format!(
            "  {} frames, {} checked; {} between ranks; implied copies: {}\n\n",
            report.frames,
            findings.checked,
            units::bytes(self.sum("bytes_received")),
            units::bytes(self.sum("bytes_copied")),
        );
        text += &found(self.ran.detected, &self.ran.detections, self.shape(), screen);
        text += &format!(
            "{} frames were checked, and every beam is correct: the largest relative error is {:.1e}.\n",
            findings.checked, findings.max_rel_error
        );
        text
    }

    /// What came to each rank's port, and what was left out.
    fn ports(&self) -> String {
        let of_rank = |part: &Value| {
            let network = part.get("network").filter(|network| network.is_object())?;
            Some(format!("  rank {}: {}\n", part["rank"], packets(network)))
        };
        let mut text: String = self.parts.iter().filter_map(of_rank).collect();
        if !text.is_empty() {
            let LeftOut { incomplete, dropped } = self.left_out;
            text += &format!("  {incomplete} frames not whole at every rank, {dropped} dropped\n");
        }
        text
    }

    /// Each rank's share, and the medians of its stages.
    fn table(&self, screen: Screen) -> String {
        let names = [Spectrum::NAME, CORNER_TURN, Beams::NAME];
        let heads = ["rank", "host", "channels", "frequencies", names[0], names[1], names[2]];
        let mut table = Table::new(heads);
        for part in self.parts {
            let time = |name| {
                let us = stage_us(part, name)["p50"].as_f64();
                Cell::number(us.map_or_else(|| "-".into(), units::time))
            };
            let number = |field: &str| Cell::number(part[field].to_string());
            let host = Cell::from(part["host"].as_str().unwrap_or_default());
            let [first, turn, second] = names.map(time);
            let (rank, channels) = (number("rank"), number("channels"));
            table.row([rank, host, channels, number("frequencies"), first, turn, second], "");
        }
        table.render(screen)
    }
}
