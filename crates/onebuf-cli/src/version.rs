//! `onebuf --version`: the program's version and the drivers it found.

use crate::{
    devices,
    out::{Answer, Output, Result},
};
use onebuf::Hub;
use serde_json::{Value, json};
use std::{sync::mpsc, thread, time::Duration};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time limit, so that a driver that hangs while loading does not hang `--version`.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(output: &Output) -> Result<Answer> {
    // Printed first, because loading a driver can crash.
    output.say(&format!("onebuf {VERSION}\n"))?;
    let (send, found) = mpsc::channel();
    thread::spawn(move || send.send(onebuf::discover()));
    Ok(match found.recv_timeout(PATIENCE) {
        Ok(Ok(hub)) => drivers(&hub),
        Ok(Err(error)) => unknown(error.to_string()),
        Err(_) => unknown(format!("a driver did not load within {} s", PATIENCE.as_secs())),
    })
}

fn drivers(hub: &Hub) -> Answer {
    let row = |device: &onebuf::Device| -> Value {
        let info = device.info();
        json!({ "device": device.id(), "platform": info.platform, "driver": info.driver })
    };
    let mut text = String::new();
    for device in hub.devices() {
        let info = device.info();
        text += &format!("  {device:<9} {} {}\n", info.platform.trim(), info.driver.trim());
    }
    text += &devices::missing_text(hub);
    let drivers: Vec<Value> = hub.devices().iter().map(row).collect();
    let json = json!({ "version": VERSION, "drivers": drivers, "unavailable": hub.unavailable() });
    Answer { json, text }
}

/// The answer if the drivers are unknown. The version is printed in any case.
fn unknown(why: String) -> Answer {
    let text = format!("  drivers: {why}\n");
    Answer { json: json!({ "version": VERSION, "drivers": null, "unavailable": null }), text }
}
