//! Finds the devices, each API in a process of its own: a driver that crashes as it is loaded costs its API only.

use crate::{
    job::Tools,
    process::Ended,
    result::{Counts, Row},
};
use serde_json::{Value, json};
use std::time::Duration;

/// Every API, as in device ids, and the variable that names its library.
pub const APIS: [(&str, &str); 5] = [
    ("opencl", "ONEBUF_OPENCL_LIB"),
    ("cuda", "ONEBUF_CUDA_LIB"),
    ("hip", "ONEBUF_HIP_LIB"),
    ("gl", "ONEBUF_EGL_LIB"),
    ("vulkan", "ONEBUF_VULKAN_LIB"),
];
pub const CHAPTER: &str = "discovery";
const LIMIT: Duration = Duration::from_secs(120);

/// A device that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: String,
    pub api: String,
    /// Name, platform, version and driver, for people.
    pub about: [String; 4],
    row: Value,
    /// Everything that is known of it.
    pub whole: Value,
}

impl Found {
    /// The device as the JSON report has it.
    pub fn json(&self) -> &Value {
        &self.row
    }

    pub fn is_gpu(&self) -> bool {
        self.row["kind"] == "gpu"
    }

    /// Whether a name of the command line means it: its id, its API, or a part of its names.
    fn fits(&self, name: &str) -> bool {
        let lower = name.to_lowercase();
        let named = |text: &String| text.to_lowercase().contains(&lower);
        self.id == name || self.api == name || self.about[..2].iter().any(named)
    }
}

/// The devices of this machine, and how the search went.
#[derive(Debug, Default)]
pub struct Devices {
    pub found: Vec<Found>,
    /// APIs whose discovery failed: no other chapter loads their drivers.
    pub broken: Vec<&'static str>,
    /// The APIs without a device, as the program listed them.
    pub missing: Vec<Value>,
    pub rows: Vec<Row>,
}

impl Devices {
    /// Starts one process for each API.
    pub fn find(tools: &Tools) -> Self {
        let mut all = Self::default();
        for (api, _) in APIS {
            let arguments = ["--devices", "--apis", api].map(str::to_owned);
            let ended = tools.run("bin/conformance", &arguments, &Default::default(), LIMIT);
            let counts = all.take(api, &ended);
            let (of, took) = (Vec::new(), ended.took);
            let row = Row { chapter: CHAPTER, device: api.to_owned(), of, counts, took };
            all.rows.push(tools.scrubbed(row));
        }
        all
    }

    pub fn take(&mut self, api: &'static str, ended: &Ended) -> Counts {
        let mut counts = Counts::default();
        let Some(report) = report(ended) else {
            self.broken.push(api);
            let how = ended.how.trouble().unwrap_or_else(|| "printed no list of devices".into());
            counts.fail(how);
            return counts;
        };
        let rows = report["devices"].as_array().into_iter().flatten();
        for one in rows.filter_map(found) {
            if self.found.iter().all(|known| known.id != one.id) {
                self.found.push(one);
            }
        }
        match self.found.iter().any(|one| one.api == api) {
            true => counts.passed += 1,
            false => {
                let row = unavailable(&report, api);
                let reason = row.and_then(|row| row["reason"].as_str());
                counts.skip(reason.unwrap_or("no device"));
                self.missing.extend(row.cloned());
            }
        }
        counts
    }

    /// The devices that the names mean; all if there are none.
    ///
    /// # Errors
    /// A name that fits no device, with a list of those that there are.
    pub fn chosen(&self, names: &[String]) -> Result<Vec<Found>, String> {
        if let Some(name) = names.iter().find(|name| !self.found.iter().any(|one| one.fits(name))) {
            let ids: Vec<&str> = self.found.iter().map(|one| one.id.as_str()).collect();
            return Err(format!("no device fits `{name}`; there are {}", ids.join(", ")));
        }
        let wanted = |one: &&Found| names.is_empty() || names.iter().any(|name| one.fits(name));
        Ok(self.found.iter().filter(wanted).cloned().collect())
    }
}

/// The object that the program printed; `None` if it failed, or printed something else.
fn report(ended: &Ended) -> Option<Value> {
    if ended.how.trouble().is_some() {
        return None;
    }
    let objects = ended.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.into_iter().find(|object| object["devices"].is_array())
}

fn found(row: &Value) -> Option<Found> {
    let whole = row.clone();
    let text = |name: &str| row[name].as_str().unwrap_or_default().trim().to_owned();
    let id = row["id"].as_str().filter(|id| !id.is_empty())?.to_owned();
    let about = ["name", "platform", "version", "driver"].map(text);
    let [name, platform, version, driver] = &about;
    let row = json!({
        "id": id, "api": text("api"), "name": name, "platform": platform, "version": version,
        "driver": driver, "kind": row["kind"], "memory_bytes": row["memory_bytes"],
    });
    Some(Found { id, api: text("api"), about, row, whole })
}

/// What is said of an API without a device.
fn unavailable<'r>(report: &'r Value, api: &str) -> Option<&'r Value> {
    report["unavailable"].as_array().into_iter().flatten().find(|row| row["api"] == api)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::How;

    fn ended(how: How, stdout: &str) -> Ended {
        Ended { how, stdout: stdout.into(), stderr: String::new(), took: LIMIT }
    }

    const TWO: &str = r#"{"devices":[{"id":"host","api":"host","name":"CPU"},{"id":"opencl:0","api":"opencl","name":"Big GPU","platform":"Acme"}],
        "unavailable":[{"api":"cuda","reason":"no library"}]}"#;

    #[test]
    fn devices_are_found_once_and_chosen_by_name() {
        let mut all = Devices::default();
        let two = TWO.replace('\n', "");
        assert_eq!(all.take("opencl", &ended(How::Exit(0), &two)).passed, 1);
        let none = all.take("cuda", &ended(How::Exit(0), &two));
        assert_eq!((none.skipped, none.why().as_str()), (1, "no library"));
        assert_eq!(all.found.len(), 2);
        let ids = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let chosen = all.chosen(&names).map(|all| all.into_iter().map(|one| one.id));
            chosen.map(Iterator::collect::<Vec<String>>)
        };
        assert_eq!(ids(&[]).unwrap(), ["host", "opencl:0"]);
        assert_eq!(ids(&["acme"]).unwrap(), ["opencl:0"]);
        assert!(ids(&["gl"]).unwrap_err().contains("there are host, opencl:0"));
    }

    #[test]
    fn a_driver_that_crashes_costs_its_api() {
        let mut all = Devices::default();
        for (how, text) in [(How::Signal(11), TWO), (How::Exit(0), "garbage"), (How::Exit(1), "")] {
            assert_eq!(all.take("hip", &ended(how, text)).failed, 1);
        }
        assert_eq!(all.broken, ["hip"; 3]);
        assert!(all.found.is_empty());
    }
}
