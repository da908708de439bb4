//! The machine's description in every report, and the block for bug reports.

use super::{
    cell,
    markup::{Element, el},
    number, row, section, table,
};
use crate::{devices, units};
use onebuf::Hub;

/// The machine of a measurement.
pub struct Machine {
    /// Program, system, kernel: name and value.
    facts: Vec<(&'static str, String)>,
    devices: Vec<Listed>,
    missing: Vec<onebuf::Unavailable>,
    missing_text: String,
}

struct Listed {
    id: String,
    name: String,
    platform: String,
    version: String,
    driver: String,
    memory: String,
}

impl Machine {
    pub fn of(hub: &Hub) -> Self {
        let here = onebuf_verdicts::Machine::here();
        let text = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
        let facts = vec![
            ("onebuf", env!("CARGO_PKG_VERSION").into()),
            ("kernel", format!("Linux {} ({})", text(here.kernel), text(here.architecture))),
            ("system", text(here.system)),
            ("cores", here.processors.unwrap_or(0).to_string()),
        ];
        let devices = hub.devices().iter().map(Listed::of).collect();
        let missing = hub.unavailable().to_vec();
        Self { facts, devices, missing, missing_text: devices::missing_text(hub) }
    }

    /// The drivers, and libraries that could not be loaded.
    pub fn section(&self) -> Element {
        let heads = ["device", "name", "platform", "version", "driver", "#memory"];
        let device = |d: &Listed| {
            let cells = [&d.name, &d.platform, &d.version, &d.driver].map(cell);
            row(&d.id, cells).child(number(&d.memory))
        };
        let facts =
            self.facts.iter().flat_map(|(name, value)| [el("dt").text(name), el("dd").text(value)]);
        let section = section("machine", "This machine")
            .child(el("dl").children(facts))
            .child(table("Devices and their drivers", &heads, self.devices.iter().map(device)));
        if self.missing.is_empty() {
            return section;
        }
        let missing = self.missing.iter().map(|api| {
            let hint = api.hint.as_deref().unwrap_or_default();
            row(api.api, [cell(&api.reason), cell(api.tried.join(", ")), cell(hint)])
        });
        section.child(table("Not available", &["API", "why", "tried", "what would help"], missing))
    }

    /// All facts as text, in one block that a click selects.
    pub fn paste(&self, findings: &str) -> Element {
        let facts = self.facts.iter().map(|(name, value)| format!("{name}: {value}\n"));
        let device = |d: &Listed| {
            let Listed { id, name, platform, version, driver, memory } = d;
            format!("{id}: {name} | {platform} | {version} | {driver} | {memory}\n")
        };
        let devices = self.devices.iter().map(device);
        let text: String = facts.chain(devices).collect();
        let text = format!("{text}{}\n{findings}", self.missing_text);
        let block = el("pre").class("paste").attr("tabindex", "0").text(text);
        section("paste", "For a bug report")
            .child(el("p").text(
                "Click to select all. It contains no serial numbers and no paths in your home folder.",
            ))
            .child(block)
    }
}

impl Listed {
    fn of(device: &onebuf::Device) -> Self {
        let info = device.info();
        let memory = match info.memory_bytes {
            0 => "-".into(),
            bytes => units::bytes(bytes),
        };
        let text = |text: &str| text.trim().to_owned();
        Self {
            id: device.id().into(),
            name: text(&info.name),
            platform: text(&info.platform),
            version: text(&info.version),
            driver: text(&info.driver),
            memory,
        }
    }
}
