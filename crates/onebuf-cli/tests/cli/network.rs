//! `onebuf network` over folders that stand for `/proc` and `/sys`.

use crate::support::{Cli, Ran};
use serde_json::Value;
use std::{fs, path::Path};
use tempfile::TempDir;

/// A machine of files.
struct Machine(TempDir);

impl Machine {
    /// A machine of two nodes with one card, on which everything is right.
    fn good() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for (path, text) in [
            ("proc/sys/net/core/rmem_max", "33554432"),
            ("proc/sys/net/core/wmem_max", "8388608"),
            ("proc/sys/net/core/netdev_max_backlog", "10000"),
            ("proc/sys/net/core/netdev_budget", "600"),
            ("proc/sys/net/ipv4/udp_mem", "100000\t200000\t300000"),
            ("proc/1/comm", "init"),
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t8-11\n"),
            ("proc/irq/40/smp_affinity_list", "8"),
            ("proc/irq/41/smp_affinity_list", "9"),
            ("sys/devices/system/cpu/online", "0-15"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance"),
            ("sys/devices/system/node/node0/cpulist", "0-7"),
            ("sys/devices/system/node/node1/cpulist", "8-15"),
            ("sys/class/net/fast0/mtu", "9000"),
            ("sys/class/net/fast0/speed", "100000"),
            ("sys/class/net/fast0/operstate", "up"),
            ("sys/class/net/fast0/device/numa_node", "1"),
            ("sys/class/net/fast0/device/msi_irqs/40", "msix"),
            ("sys/class/net/fast0/device/msi_irqs/41", "msix"),
            ("sys/class/net/lo/mtu", "65536"),
            ("sys/class/net/lo/operstate", "unknown"),
            ("sys/class/net/off0/mtu", "1500"),
            ("sys/class/net/off0/operstate", "down"),
            ("sys/class/net/off0/device/numa_node", "-1"),
        ] {
            machine.set(path, text);
        }
        for queue in ["rx-0", "rx-1", "rx-2", "rx-3", "tx-0"] {
            machine.set(&format!("sys/class/net/fast0/queues/{queue}/x"), "");
        }
        machine
    }

    fn set(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, args: &str) -> Ran {
        Cli::new().run(&format!("network --root {} {args}", self.path().display()))
    }

    /// The JSON, whatever the exit status.
    fn json(&self, args: &str) -> (Option<i32>, Value) {
        let ran = self.run(&format!("--json {args}"));
        (ran.code, serde_json::from_str(&ran.stdout).unwrap())
    }
}

fn of<'j>(json: &'j Value, name: &str) -> &'j Value {
    let settings = json["settings"].as_array().unwrap();
    settings.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}: {json:#}"))
}

#[test]
fn a_machine_that_is_right_is_told_so() {
    let machine = Machine::good();
    let (code, json) = machine.json("");
    assert_eq!(code, Some(0), "{json:#}");
    assert_eq!(json["interfaces"].as_array().unwrap().len(), 1, "those that are up: {json:#}");
    let card = &json["interfaces"][0];
    assert_eq!((&card["name"], &card["speed_mbit_s"]), (&"fast0".into(), &100_000.into()));
    for setting in json["settings"].as_array().unwrap() {
        let is_ring = setting["name"] == "receive ring";
        assert_eq!(setting["state"], if is_ring { "unknown" } else { "ok" }, "{setting:#}");
        assert!(!setting["command"].as_str().unwrap().is_empty(), "{setting:#}");
        assert!(!setting["why"].as_str().unwrap().is_empty(), "{setting:#}");
    }
    machine.run("").ok();
}

#[test]
fn every_setting_that_is_wrong_is_found() {
    for (path, text, name, value, command) in [
        (
            "proc/sys/net/core/rmem_max",
            "212992",
            "net.core.rmem_max",
            "212992",
            "rmem_max=33554432",
        ),
        ("proc/sys/net/core/wmem_max", "1", "net.core.wmem_max", "1", "wmem_max=4194304"),
        (
            "proc/sys/net/core/netdev_max_backlog",
            "1000",
            "net.core.netdev_max_backlog",
            "1000",
            "=10000",
        ),
        ("proc/sys/net/core/netdev_budget", "300", "net.core.netdev_budget", "300", "=600"),
        (
            "proc/sys/net/ipv4/udp_mem",
            "1 2 3",
            "net.ipv4.udp_mem",
            "3",
            "udp_mem='65536 131072 262144'",
        ),
        (
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
            "powersave",
            "CPU governor",
            "performance, powersave",
            "cpupower",
        ),
        ("proc/77/comm", "irqbalance", "irqbalance", "running", "systemctl stop irqbalance"),
        ("sys/class/net/fast0/mtu", "1500", "MTU", "1500", "ip link set dev fast0 mtu 9000"),
        (
            "proc/irq/41/smp_affinity_list",
            "0-15",
            "interrupts",
            "1 of 2 on several processors",
            "/proc/irq/41/",
        ),
        (
            "proc/self/status",
            "Cpus_allowed_list:\t0-15",
            "NUMA node",
            "processors 0-15",
            "numactl --cpunodebind=1 --membind=1",
        ),
    ] {
        let machine = Machine::good();
        machine.set(path, text);
        let (code, json) = machine.json("");
        let setting = of(&json, name);
        assert_eq!((code, &setting["state"]), (Some(1), &"wrong".into()), "{setting:#}");
        assert_eq!(setting["value"], value, "{setting:#}");
        assert!(setting["command"].as_str().unwrap().contains(command), "{setting:#}");
        let ran = machine.run("");
        assert!(
            ran.code == Some(1) && ran.stderr.contains("one setting is wrong"),
            "{}",
            ran.stderr
        );
        assert!(ran.stdout.contains("wrong") && ran.stdout.contains(command), "{}", ran.stdout);
    }
    let machine = Machine::good();
    fs::remove_dir_all(machine.path().join("sys/class/net/fast0/queues/rx-3")).unwrap();
    let queues = machine.json("").1;
    assert_eq!(of(&queues, "receive queues")["value"], "3");
    assert!(of(&queues, "receive queues")["command"].as_str().unwrap().contains("combined 4"));
}

/// A file that is missing or has no number in it leaves its setting unknown. That is no failure.
#[test]
fn what_cannot_be_read_is_unknown() {
    let machine = Machine::good();
    fs::remove_dir_all(machine.path().join("sys/devices/system/cpu/cpu0")).unwrap();
    fs::remove_dir_all(machine.path().join("sys/devices/system/cpu/cpu1")).unwrap();
    machine.set("proc/sys/net/core/rmem_max", "much");
    fs::remove_dir_all(machine.path().join("proc/irq")).unwrap();
    let (code, json) = machine.json("");
    assert_eq!(code, Some(0), "{json:#}");
    for name in ["CPU governor", "net.core.rmem_max", "interrupts"] {
        assert_eq!(
            (&of(&json, name)["state"], &of(&json, name)["value"]),
            (&"unknown".into(), &Value::Null)
        );
    }
    let nothing = Machine(tempfile::tempdir().unwrap());
    let (code, json) = nothing.json("");
    assert_eq!((code, json["interfaces"].as_array().unwrap().len()), (Some(0), 0));
    assert!(nothing.run("").ok().stdout.contains("No network card is up"));
}

#[test]
fn an_interface_is_chosen_by_name() {
    let machine = Machine::good();
    let (code, json) = machine.json("--interface lo");
    assert_eq!(code, Some(0));
    assert_eq!(
        (&of(&json, "MTU")["value"], &of(&json, "MTU")["interface"]),
        (&"65536".into(), &"lo".into())
    );
    let (code, json) = machine.json("--interface off0");
    assert_eq!((code, &of(&json, "MTU")["state"]), (Some(1), &"wrong".into()));
    machine
        .run("--interface ../lo")
        .failed(1, "there is no interface ../lo; there are fast0, lo, off0");
}

/// The machine that the test runs on: whatever its settings are, each is reported.
#[test]
fn this_machine_is_reported() {
    let ran = Cli::new().run("network --json");
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let wrong = |one: &&Value| one["state"] == "wrong";
    let wrong = json["settings"].as_array().unwrap().iter().filter(wrong).count();
    assert_eq!(ran.code, Some(i32::from(wrong > 0)), "{json:#} {}", ran.stderr);
}
