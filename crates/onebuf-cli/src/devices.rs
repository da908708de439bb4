//! `onebuf devices`: the devices, and the unavailable APIs with reasons.

use crate::{
    out::{self, Answer, Result},
    screen::Screen,
    table::{Cell, Table},
    units,
};
use onebuf::{Device, Hub};
use onebuf_verdicts::device_json;
use serde_json::{Value, json};

/// List the devices of every API, and the APIs that are unavailable
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  onebuf devices
  onebuf devices --json | jq -r '.devices[].id'
  ONEBUF_OPENCL_LIB=none onebuf devices     without OpenCL
  ONEBUF_CUDA_LIB=none ONEBUF_HIP_LIB=none onebuf devices     without CUDA and HIP")]
pub struct DevicesArgs {}

pub fn run(screen: Screen) -> Result<Answer> {
    let hub = discover()?;
    let text = table(&hub, screen) + &limits_text(&hub) + &missing_text(&hub);
    Ok(Answer { json: json(&hub), text })
}

/// Discovers the devices, and prints problems that did not stop the discovery.
pub fn discover() -> Result<Hub> {
    let hub = onebuf::discover()?;
    hub.notes().iter().for_each(out::warn);
    Ok(hub)
}

/// The devices and the unavailable APIs as JSON.
pub fn json(hub: &Hub) -> Value {
    let devices: Vec<Value> = hub.devices().iter().map(device_json).collect();
    json!({ "devices": devices, "unavailable": hub.unavailable() })
}

fn table(hub: &Hub, screen: Screen) -> String {
    let mut table = Table::new(["id", "name", "platform", "driver", "memory"]).remark("can do");
    for device in hub.devices() {
        let info = device.info();
        let memory = match info.memory_bytes {
            0 => "-".into(),
            bytes => units::bytes(bytes),
        };
        let text = |text: &str| Cell::from(text.trim());
        let cells = [device.id(), &info.name, &info.platform, &info.driver].map(text);
        table.row(cells.into_iter().chain([Cell::number(memory)]).collect::<Vec<_>>(), {
            info.caps.words().join(" ")
        });
    }
    table.render(screen)
}

/// Known limits of a device that make results wrong without an error.
fn limits_text(hub: &Hub) -> String {
    let line = |device: &Device| {
        let (id, most) = (device.id(), device.info().caps.max_loop_iterations?);
        Some(format!(
            "\nnote: {id}: the driver ends all loops of a kernel after {most} iterations, and results of longer loops are wrong\n"
        ))
    };
    hub.devices().iter().filter_map(line).collect()
}

/// The unavailable APIs, one paragraph each; empty if there are none.
pub fn missing_text(hub: &Hub) -> String {
    let paragraph = |api: &onebuf::Unavailable| {
        let tried = match api.tried.is_empty() {
            true => String::new(),
            false => format!(" (tried {})", api.tried.join(", ")),
        };
        let hint = api.hint.as_ref().map_or_else(String::new, |hint| format!("  {hint}\n"));
        format!("\nnot available: {}: {}{tried}\n{hint}", api.api, api.reason)
    };
    hub.unavailable().iter().map(paragraph).collect()
}
