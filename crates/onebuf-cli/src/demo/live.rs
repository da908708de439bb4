//! Progress of a running pipeline: lines that are redrawn on a terminal, or occasional lines elsewhere.

use crate::{
    screen::{Screen, cut},
    units,
};
use onebuf::{
    Hub,
    pipeline::{Handle, Latency, Pulse, Report},
};
use std::{
    io::{self, Write},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

/// The interval of updates on a terminal, and elsewhere.
const OFTEN: Duration = Duration::from_millis(250);
const SELDOM: Duration = Duration::from_secs(2);

pub struct Live<'l> {
    handle: Handle,
    hub: &'l Hub,
    screen: Screen,
    scale: Scale,
    copied_before: u64,
}

/// The totals that numbers are relative to.
pub struct Scale {
    pub frames: u64,
    pub frame_bytes: u64,
    pub ring: usize,
}

impl<'l> Live<'l> {
    pub fn new(handle: Handle, hub: &'l Hub, scale: Scale) -> Self {
        let copied_before = hub.ledger().implied_bytes();
        Self { handle, hub, screen: Screen::of_stderr(), scale, copied_before }
    }

    /// Shows the progress until the other end of the channel is dropped. Leaves the terminal as it was.
    pub fn watch(&self, over: Receiver<()>) {
        let (mut drawn, pause) = (0, if self.screen.moves { OFTEN } else { SELDOM });
        let mut last = Report::default();
        while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let (report, pulse) = (self.handle.report(), self.handle.pulse());
            // If lines are not redrawn, a repeated line is useless.
            let same = report == Report { elapsed: report.elapsed, ..last };
            if self.screen.moves || !same || pulse.stalled.is_some() {
                drawn = self.draw(&report, &pulse, drawn);
            }
            last = report;
        }
        if drawn > 0 {
            eprint!("\x1b[{drawn}A\x1b[J");
        }
    }

    /// Draws over the `drawn` lines of the last update. Returns the number of lines to draw over next time.
    fn draw(&self, report: &Report, pulse: &Pulse, drawn: usize) -> usize {
        let copied = self.hub.ledger().implied_bytes() - self.copied_before;
        let lines = self.scale.lines(report, pulse, copied);
        let mut text = String::new();
        if !self.screen.moves {
            text = format!("{}\n", lines.join("; "));
        } else {
            if drawn > 0 {
                text = format!("\x1b[{drawn}A\x1b[J");
            }
            let room = self.screen.width.unwrap_or(usize::MAX);
            lines.iter().for_each(|line| text += &format!("{}\n", cut(line, room)));
        }
        // A closed standard error is ignored.
        let _ = io::stderr().write_all(text.as_bytes());
        if self.screen.moves { lines.len() } else { 0 }
    }
}

impl Scale {
    fn lines(&self, report: &Report, pulse: &Pulse, copied: u64) -> Vec<String> {
        let rate = pulse.frames_per_second;
        let stalled = pulse.stalled.map_or_else(String::new, |time| {
            format!(", stalled for {}", units::time(time.as_secs_f64() * 1e6))
        });
        let bytes = rate * self.frame_bytes as f64 / 1e9;
        let Report { frames, dropped, incomplete, on_the_way, .. } = report;
        let copied = units::bytes(copied);
        let mut lines = vec![
            format!("frame {frames} of {}, {rate:.1}/s, {bytes:.2} GB/s{stalled}", self.frames),
            format!("latency {}", both(report.latency)),
            format!(
                "ring {on_the_way} of {}, dropped {dropped}, incomplete {incomplete}, copied {copied}",
                self.ring
            ),
            format!("source {}", both(report.source)),
        ];
        for stage in &report.stages {
            lines.push(format!("{} on {}: {}", stage.name, stage.device, both(stage.latency)));
        }
        lines.push(format!("detect {}", both(report.sink)));
        lines
    }
}

/// Median and 99th percentile as text.
pub fn both(latency: Latency) -> String {
    let time = |time: Option<Duration>| {
        time.map_or_else(|| "-".into(), |time| units::time(time.as_secs_f64() * 1e6))
    };
    format!("p50 {}, p99 {}", time(latency.p50), time(latency.p99))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebuf::pipeline::StageReport;

    #[test]
    fn every_number_has_its_line() {
        let latency =
            Latency { p50: Some(Duration::from_micros(1500)), p99: Some(Duration::from_millis(2)) };
        let stage =
            StageReport { name: "fft".into(), device: "opencl:0".into(), ..Default::default() };
        let report = Report {
            frames: 10,
            dropped: 1,
            incomplete: 2,
            on_the_way: 3,
            elapsed: Duration::from_secs(2),
            latency,
            stages: vec![stage],
            ..Default::default()
        };
        let scale = Scale { frames: 64, frame_bytes: 1 << 20, ring: 4 };
        let mut pulse = Pulse::default();
        pulse.frames_per_second = 5.0;
        pulse.stalled = Some(Duration::from_secs(3));
        let lines = scale.lines(&report, &pulse, 4096).join("\n");
        for part in [
            "frame 10 of 64, 5.0/s, 0.01 GB/s, stalled for 3.00 s",
            "latency p50 1.50 ms, p99 2.00 ms",
            "ring 3 of 4, dropped 1, incomplete 2, copied 4 KiB",
            "source p50 -, p99 -",
            "fft on opencl:0: p50 -",
            "detect p50 -",
        ] {
            assert!(lines.contains(part), "{part} in {lines}");
        }
    }
}
