//! The object: what the doctor found, the machine, and the date.

use crate::{Machine, Private, date};
use onebuf::{
    RouteKind, SyncMethod, printable,
    topology::{Envelope, VerdictState},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, fmt::Write};

/// The version of the JSON objects.
const SCHEMA: u32 = 2;
/// The APIs, as in device ids.
const APIS: [&str; 6] = ["host", "opencl", "cuda", "hip", "gl", "vulkan"];
/// The types of a device.
const KINDS: [&str; 4] = ["cpu", "gpu", "accelerator", "other"];
/// Fields of the doctor's object that tell nothing about drivers.
const LEFT_OUT: [&str; 1] = ["saved"];

/// What `onebuf doctor` found on one machine.
///
/// The fields are those of `onebuf doctor --json`, with the program's version, the date and the machine before them. `physical` of each
/// device is there, and empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// The version of the format.
    pub schema: u32,
    /// The version of onebuf.
    pub onebuf: String,
    /// The day of the run, in UTC.
    pub date: String,
    /// The machine.
    pub machine: Machine,
    /// Its devices.
    pub devices: Vec<Device>,
    /// The APIs without a device.
    pub unavailable: Vec<Missing>,
    /// The routes between devices, and their verdicts.
    pub routes: Vec<Route>,
    /// Whether kernels of OpenCL run on another API's device of the same chip.
    pub grafts: Vec<Graft>,
    /// Results of large buffers.
    pub large: Vec<Large>,
    /// How many experiments the run made; the other verdicts were known before.
    pub experiments: usize,
    /// How long it took.
    pub seconds: Option<f64>,
}

/// A device, as `onebuf devices --json` lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are those of the documented JSON")]
pub struct Device {
    pub id: String,
    pub api: String,
    pub name: String,
    pub platform: String,
    pub version: String,
    pub driver: String,
    pub kind: String,
    pub physical: Physical,
    pub memory_bytes: Option<u64>,
    pub max_loop_iterations: Option<u64>,
    pub features: Vec<String>,
}

/// The place of a chip's identifiers, which are left out: both fields are always null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are those of the documented JSON")]
pub struct Physical {
    pub uuid: (),
    pub pci: (),
}

/// An API without a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are those of the documented JSON")]
pub struct Missing {
    pub api: String,
    pub tried: Vec<String>,
    pub loaded: bool,
    pub code: Option<i32>,
    pub reason: String,
    pub hint: Option<String>,
}

/// The verdict on one route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are those of the documented JSON")]
pub struct Route {
    pub from: String,
    pub to: String,
    pub kind: RouteKind,
    pub state: VerdictState,
    pub zero_copy: Option<bool>,
    pub why: String,
    pub sync: Option<SyncMethod>,
    pub handoff_us: Option<f64>,
    pub gb_per_s: Option<f64>,
    pub envelope: Option<Envelope>,
}

/// The verdict on one graft.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are those of the documented JSON")]
pub struct Graft {
    pub from: String,
    pub to: String,
    pub state: VerdictState,
    pub why: String,
}

/// The result of one large buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are those of the documented JSON")]
pub struct Large {
    pub device: String,
    pub bytes: u64,
    pub state: VerdictState,
    pub why: String,
}

/// A device as `onebuf devices --json` lists it.
pub fn device_json(device: &onebuf::Device) -> Value {
    let info = device.info();
    let derived = info.caps.words().into_iter().map(str::to_owned);
    let features: Vec<String> = derived.chain(info.extensions.iter().cloned()).collect();
    json!({
        "id": device.id(),
        "api": info.api,
        "name": info.name,
        "platform": info.platform,
        "version": info.version,
        "driver": info.driver,
        "kind": info.kind,
        "physical": {
            "uuid": info.physical.uuid_text(),
            "pci": info.physical.pci.map(|address| address.to_string()),
        },
        "memory_bytes": Some(info.memory_bytes).filter(|&bytes| bytes > 0),
        "max_loop_iterations": info.caps.max_loop_iterations,
        "features": features,
    })
}

impl Findings {
    /// Makes the object of the doctor's JSON, on this machine and today.
    ///
    /// # Errors
    /// If the object is not the doctor's, or has fields that are not known here.
    pub fn here(version: &str, doctor: &Value, private: &Private) -> Result<Self, String> {
        Self::new(version, doctor, &date::today(), &Machine::here(), private)
    }

    /// Makes the object of the doctor's JSON.
    ///
    /// # Errors
    /// If the object is not the doctor's, or has fields that are not known here.
    pub fn new(
        version: &str,
        doctor: &Value,
        date: &str,
        machine: &Machine,
        private: &Private,
    ) -> Result<Self, String> {
        let mut object: Map<String, Value> =
            doctor.as_object().cloned().ok_or("the doctor's report is no JSON object")?;
        LEFT_OUT.iter().for_each(|name| drop(object.remove(*name)));
        let machine = serde_json::to_value(machine).map_err(|error| error.to_string())?;
        object.insert("schema".into(), json!(SCHEMA));
        object.insert("onebuf".into(), json!(version));
        object.insert("date".into(), json!(date));
        object.insert("machine".into(), machine);
        for device in object.get_mut("devices").and_then(Value::as_array_mut).into_iter().flatten()
        {
            device["physical"] = json!(Physical::default());
        }
        let mut findings: Self = serde_json::from_value(Value::Object(object))
            .map_err(|error| format!("the doctor's report: {error}"))?;
        findings.texts_mut(&mut |text| *text = printable(&private.scrub(text)));
        findings.checked()
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// If the text is not such an object, contradicts itself, or contains what would have been left out.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("this is not JSON: {error}"))?;
        if !value["devices"].is_array() || !value["routes"].is_array() {
            return Err("this is not an object of `onebuf doctor --submit`".into());
        }
        let schema = &value["schema"];
        if *schema != SCHEMA {
            return Err(format!("`schema` is {schema}, and {SCHEMA} is known"));
        }
        let is_named = |device: &&Value| {
            let physical = device["physical"].as_object();
            physical.is_some_and(|fields| fields.values().any(|value| !value.is_null()))
        };
        if let Some(device) = value["devices"].as_array().into_iter().flatten().find(is_named) {
            return Err(format!("`physical` of {} identifies the hardware", device["id"]));
        }
        serde_json::from_value::<Self>(value).map_err(|error| error.to_string())?.checked()
    }

    /// The object as a text with one line for each device and route.
    pub fn text(&self) -> String {
        let fields = match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            // Its keys are texts and its numbers finite.
            _ => Map::new(),
        };
        let mut text = String::from("{");
        for (at, (name, value)) in fields.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(text, "{comma}\n\"{name}\": {}", lines(value));
        }
        text + "\n}\n"
    }

    /// A device of a route.
    pub fn device(&self, id: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.id == id)
    }

    fn checked(mut self) -> Result<Self, String> {
        if !date::is_date(&self.date) {
            return Err(format!("`{}` is no date", self.date));
        }
        self.check_devices()?;
        self.check_routes()?;
        let mut unclean = None;
        let nobody = Private::default();
        self.texts_mut(&mut |text| {
            if *text != printable(&nobody.scrub(text)) {
                unclean.get_or_insert_with(|| text.clone());
            }
        });
        match unclean {
            Some(text) => {
                Err(format!("a path, an identifier or a control character is in {text:?}"))
            }
            None => Ok(self),
        }
    }

    fn check_devices(&self) -> Result<(), String> {
        let mut ids = BTreeSet::new();
        for Device { id, api, kind, .. } in &self.devices {
            let (head, number) = id.split_once(':').unwrap_or((id, "0"));
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            if head != api || !is_number || !APIS.contains(&head) {
                return Err(format!("`{id}` is no device of `{api}`"));
            }
            if !KINDS.contains(&kind.as_str()) {
                return Err(format!("`{kind}` is no kind of device"));
            }
            if !ids.insert(id) {
                return Err(format!("there are two devices `{id}`"));
            }
        }
        if let Some(api) = self.unavailable.iter().find(|one| !APIS.contains(&one.api.as_str())) {
            return Err(format!("`{}` is no API", api.api));
        }
        let grafts = self.grafts.iter().flat_map(|graft| [&graft.from, &graft.to]);
        let routes = self.routes.iter().flat_map(|route| [&route.from, &route.to]);
        let mut named = grafts.chain(routes).chain(self.large.iter().map(|one| &one.device));
        match named.find(|id| !ids.contains(id)) {
            Some(id) => Err(format!("there is no device `{id}`")),
            None => Ok(()),
        }
    }

    fn check_routes(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for route in &self.routes {
            let Route { from, to, kind, state, zero_copy, handoff_us, gb_per_s, .. } = route;
            let name = format!("{from} -> {to} {kind}");
            // Times are differences, which may be negative; a rate is not.
            let is_known = [handoff_us, gb_per_s].into_iter().flatten().all(|n| n.is_finite())
                && gb_per_s.is_none_or(|rate| rate >= 0.0);
            if !is_known {
                return Err(format!("{name}: a number is impossible"));
            }
            if *state == VerdictState::Refuted && *zero_copy == Some(true) {
                return Err(format!("{name} is refuted, and copies nothing"));
            }
            if !seen.insert((from, to, *kind)) {
                return Err(format!("{name} is there twice"));
            }
        }
        Ok(())
    }

    /// Every text that a driver, the system or an error wrote.
    fn texts_mut(&mut self, each: &mut dyn FnMut(&mut String)) {
        each(&mut self.onebuf);
        self.machine.texts_mut().for_each(&mut *each);
        for Device { name, platform, version, driver, features, .. } in &mut self.devices {
            [name, platform, version, driver].into_iter().chain(features).for_each(&mut *each);
        }
        for Missing { tried, reason, hint, .. } in &mut self.unavailable {
            tried.iter_mut().chain([reason]).chain(hint).for_each(&mut *each);
        }
        let whys = self.routes.iter_mut().map(|route| &mut route.why);
        let whys = whys.chain(self.grafts.iter_mut().map(|graft| &mut graft.why));
        whys.chain(self.large.iter_mut().map(|one| &mut one.why)).for_each(each);
    }
}

/// A value of the object; a list has a line for each element.
fn lines(value: &Value) -> String {
    match value {
        Value::Array(all) if !all.is_empty() => {
            let rows: Vec<String> = all.iter().map(|one| format!("  {one}")).collect();
            format!("[\n{}\n]", rows.join(",\n"))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The doctor's object on a machine whose drivers tell everything about it.
    fn doctor() -> Value {
        let device = |id: &str, api: &str| {
            json!({
                "id": id, "api": api, "name": "Acme of ada", "platform": "Acme", "version": "1",
                "driver": "/home/ada/lib/libacme.so.2", "kind": "gpu", "memory_bytes": 5,
                "max_loop_iterations": null, "features": ["made_on_engine", "engine"],
                "physical": { "uuid": "8f6f1c0e-5a60-4b8a-9b8e-0123456789ab", "pci": "0000:01:00.0" },
            })
        };
        let route = json!({
            "from": "host", "to": "opencl:0", "kind": "host_pointer", "state": "proven",
            "zero_copy": true, "why": "built in /tmp/ada/x.cl:\nfine", "sync": "callback",
            "handoff_us": 2.5, "gb_per_s": 7.0,
            "envelope": { "min_bytes": 1, "max_bytes": 4096, "sizes": [1, 4096] },
        });
        json!({
            "devices": [device("host", "host"), device("opencl:0", "opencl")],
            "unavailable": [{
                "api": "cuda", "tried": ["/home/ada/libcuda.so.1"], "loaded": false, "code": null,
                "reason": "engine.example.org has none", "hint": "see /home/ada/README, ada",
            }],
            "routes": [route],
            "grafts": [{ "from": "opencl:0", "to": "host", "state": "refuted", "why": "ada" }],
            "large": [{ "device": "host", "bytes": 9, "state": "declared", "why": "~/x" }],
            "experiments": 3, "saved": true, "seconds": 1.5,
        })
    }

    fn machine() -> Machine {
        let text = |text: &str| Some(text.to_owned());
        Machine { kernel: text("6.1-ada"), cpu: text("CPU of engine"), ..Machine::default() }
    }

    fn findings() -> Findings {
        let private = Private::new(["ada".into()], ["engine.example.org".into()]);
        Findings::new("0.2.0", &doctor(), "2026-11-18", &machine(), &private).expect("findings")
    }

    #[test]
    fn nothing_private_is_left() {
        let text = findings().text();
        for private in ["ada", "engine.", "/home", "/tmp", "8f6f1c0e", "01:00"] {
            // `made_on_engine` is an extension's name, and no word of its own.
            assert!(!text.contains(private), "{private} in {text}");
        }
        for kept in ["…/libacme.so.2", "…/libcuda.so.1", "made_on_engine", "\"<host>\"", "<user>"]
        {
            assert!(text.contains(kept), "no {kept} in {text}");
        }
        assert_eq!(findings().devices[0].physical, Physical::default());
        assert!(doctor().to_string().contains("8f6f1c0e"), "the control");
    }

    #[test]
    fn a_written_object_is_read_as_it_was() {
        let text = findings().text();
        assert_eq!(Findings::parse(&text).as_ref(), Ok(&findings()));
        assert!(
            text.lines().count() > 20 && text.contains("\n\"date\": \"2026-11-18\",\n"),
            "{text}"
        );
    }

    #[test]
    fn a_field_of_a_later_doctor_is_refused() {
        for place in ["", "/devices/0", "/routes/0", "/unavailable/0"] {
            let mut doctor = doctor();
            doctor.pointer_mut(place).expect("a place")["serial"] = json!("S-1");
            let found = Findings::new("0", &doctor, "2026-11-18", &machine(), &Private::default());
            let why = found.expect_err("an unknown field");
            assert!(why.contains("unknown field `serial`"), "{place}: {why}");
        }
    }

    /// The error of a file with one value changed.
    fn error(place: &str, value: Value) -> String {
        let mut file: Value = serde_json::from_str(&findings().text()).expect("JSON");
        *file.pointer_mut(place).unwrap_or_else(|| panic!("{place}")) = value;
        Findings::parse(&file.to_string()).expect_err(place)
    }

    #[test]
    fn wrong_files_are_refused_with_the_reason() {
        let wrong = [
            ("/schema", json!(1), "`schema` is 1, and 2 is known"),
            ("/date", json!("yesterday"), "`yesterday` is no date"),
            ("/devices", json!({}), "not an object of `onebuf doctor --submit`"),
            ("/devices/1/id", json!("cuda:0"), "`cuda:0` is no device of `opencl`"),
            ("/devices/1/id", json!("opencl:"), "`opencl:` is no device"),
            ("/devices/1/kind", json!("toaster"), "`toaster`"),
            ("/devices/1/physical/uuid", json!("8f"), "identifies the hardware"),
            ("/devices/1/physical", json!({}), "missing field"),
            ("/devices/1/name", json!("at /home/ada"), "a path"),
            ("/devices/1/name", json!("a\u{1b}[2J"), "a control character"),
            ("/devices/1/features/0", json!("0000:01:00.0"), "an identifier"),
            ("/unavailable/0/api", json!("metal"), "`metal` is no API"),
            ("/routes/0/to", json!("opencl:7"), "there is no device `opencl:7`"),
            ("/routes/0/kind", json!("teleport"), "teleport"),
            ("/routes/0/state", json!("perhaps"), "perhaps"),
            ("/routes/0/state", json!("refuted"), "is refuted, and copies nothing"),
            ("/routes/0/gb_per_s", json!(-1.0), "a number is impossible"),
            ("/routes/0/handoff_us", json!("fast"), "fast"),
            ("/grafts/0/from", json!("hip:0"), "there is no device `hip:0`"),
            ("/experiments", json!(-1), "-1"),
        ];
        for (place, value, part) in wrong {
            let why = error(place, value);
            assert!(why.contains(part), "{place}: {why}");
        }
        let mut twice = findings();
        twice.routes.push(twice.routes[0].clone());
        assert!(Findings::parse(&twice.text()).expect_err("twice").contains("is there twice"));
        twice.routes.pop();
        twice.devices.push(twice.devices[0].clone());
        assert!(Findings::parse(&twice.text()).expect_err("twice").contains("two devices `host`"));
        for text in ["", "{", "[]", "{\"schema\":2}", "null"] {
            Findings::parse(text).expect_err(text);
        }
    }
}
