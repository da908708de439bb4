//! Network cards and their settings.

use super::{Files, Setting, count, processors};
use crate::out::{Failure, Result};
use serde::Serialize;

/// An Ethernet frame that carries 8 KiB of a packet's payload.
const MTU: u64 = 9000;

/// How many sockets 100 Gb/s need, and so how many queues.
const QUEUES: u64 = 4;

/// A card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Card {
    pub name: String,
    /// Megabits per second; `None` if the driver does not say.
    pub speed_mbit_s: Option<u64>,
    pub numa_node: Option<u64>,
}

/// The interface of this name, or every card that is up.
pub fn chosen(files: &Files<'_>, only: Option<&str>) -> Result<Vec<Card>> {
    let names = files.names("sys/class/net");
    if let Some(only) = only {
        // A name is no path.
        let known = names.iter().any(|name| name == only);
        let none = || {
            Failure::new(format!("there is no interface {only}; there are {}", names.join(", ")))
        };
        return if known { Ok(vec![Card::of(files, only)]) } else { Err(none()) };
    }
    let is_up = |name: &String| {
        let is_physical = files.has(&format!("sys/class/net/{name}/device"));
        is_physical
            && files.text(&format!("sys/class/net/{name}/operstate")).as_deref() == Some("up")
    };
    Ok(names.iter().filter(|name| is_up(name)).map(|name| Card::of(files, name)).collect())
}

impl Card {
    fn of(files: &Files<'_>, name: &str) -> Self {
        let number = |file: &str| files.number(&format!("sys/class/net/{name}/{file}"));
        // Both files have -1 for what is not known, which is no number here.
        let (speed_mbit_s, numa_node) = (number("speed"), number("device/numa_node"));
        Self { name: name.to_owned(), speed_mbit_s, numa_node }
    }

    /// All settings of the card. An interface without a device has an MTU alone.
    pub fn settings(&self, files: &Files<'_>) -> Vec<Setting> {
        let mut all = vec![self.mtu(files)];
        if files.has(&self.file("device")) {
            all.extend([self.queues(files), self.interrupts(files), self.ring()]);
            all.extend(self.node(files));
        }
        all.into_iter().map(|setting| setting.of(&self.name)).collect()
    }

    fn file(&self, file: &str) -> String {
        format!("sys/class/net/{}/{file}", self.name)
    }

    fn mtu(&self, files: &Files<'_>) -> Setting {
        Setting::at_least("MTU", files.number(&self.file("mtu")), MTU)
            .command(format!("sudo ip link set dev {} mtu {MTU}", self.name))
            .why("packets of 8 KiB are a sixth as many as those of 1500 bytes")
    }

    fn queues(&self, files: &Files<'_>) -> Setting {
        let names = files.names(&self.file("queues"));
        let many = names.iter().filter(|name| name.starts_with("rx-")).count() as u64;
        let online = files.text("sys/devices/system/cpu/online").map_or(1, |list| count(&list));
        let least = QUEUES.min(online.max(1));
        Setting::at_least("receive queues", Some(many), least)
            .command(format!("sudo ethtool -L {} combined {least}", self.name))
            .why("each queue has an interrupt and a processor: one alone does not receive 100 Gb/s")
    }

    /// Each interrupt of the card on one processor.
    fn interrupts(&self, files: &Files<'_>) -> Setting {
        let lists = files.names(&self.file("device/msi_irqs")).into_iter();
        let list =
            |irq: String| Some((files.text(&format!("proc/irq/{irq}/smp_affinity_list"))?, irq));
        let lists: Vec<(String, String)> = lists.filter_map(list).collect();
        let loose: Vec<&str> = lists
            .iter()
            .filter(|(list, _)| count(list) != 1)
            .map(|(_, irq)| irq.as_str())
            .collect();
        let value = (!lists.is_empty()).then(|| match loose.len() {
            0 => format!("{} on one processor each", lists.len()),
            many => format!("{many} of {} on several processors", lists.len()),
        });
        let irq = loose.first().copied().unwrap_or("IRQ");
        let command = match value {
            Some(_) => format!("echo CPU | sudo tee /proc/irq/{irq}/smp_affinity_list"),
            None => format!("grep {} /proc/interrupts", self.name),
        };
        Setting::new("interrupts", value, loose.is_empty(), "one processor each")
            .command(command)
            .why("an interrupt that moves takes its packets to another processor's cache")
    }

    /// The size of the receive ring is read by an `ioctl` that has no file.
    fn ring(&self) -> Setting {
        Setting::new("receive ring", None, false, "the largest that the card has")
            .command(format!("ethtool -g {0}; sudo ethtool -G {0} rx N", self.name))
            .why("packets that wait in the card while its processor is busy")
    }

    /// Whether this process stays on the card's node, on machines of several nodes.
    fn node(&self, files: &Files<'_>) -> Option<Setting> {
        let node = self.numa_node?;
        let is_node = |name: &&String| {
            name.strip_prefix("node").is_some_and(|rest| rest.parse::<u64>().is_ok())
        };
        let nodes = files.names("sys/devices/system/node");
        if nodes.iter().filter(is_node).count() < 2 {
            return None;
        }
        let near = processors(&files.text(&format!("sys/devices/system/node/node{node}/cpulist"))?);
        let status = files.text("proc/self/status");
        let allowed = status.as_deref().and_then(|status| {
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        });
        let stays =
            allowed.is_some_and(|list| processors(list).iter().all(|one| near.contains(one)));
        let value = allowed.map(|list| format!("processors {}", list.trim()));
        let setting = Setting::new("NUMA node", value, stays, format!("those of node {node}"));
        let command = format!("numactl --cpunodebind={node} --membind={node} PROGRAM");
        Some(
            setting
                .command(command)
                .why("memory of another node is reached over the link between them"),
        )
    }
}
