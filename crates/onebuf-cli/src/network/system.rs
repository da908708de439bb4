//! Settings of the whole machine.

use super::{Files, Setting};

/// What a UDP source requests for each socket.
const RECEIVE: u64 = 32 << 20;

/// Pages of all UDP sockets together: 1 GiB.
const UDP_PAGES: u64 = (1 << 30) / 4096;

pub fn settings(files: &Files<'_>) -> Vec<Setting> {
    let mut all: Vec<Setting> = SYSCTLS.iter().map(|sysctl| sysctl.check(files)).collect();
    all.push(udp_memory(files));
    all.push(governor(files));
    all.push(irqbalance(files));
    all
}

/// A number below `/proc/sys`.
struct Sysctl {
    name: &'static str,
    least: u64,
    why: &'static str,
}

const SYSCTLS: &[Sysctl] = &[
    Sysctl {
        name: "net.core.rmem_max",
        least: RECEIVE,
        why: "the limit of a socket's receive buffer: 32 MiB hold 10 ms of a quarter of 100 Gb/s",
    },
    Sysctl {
        name: "net.core.wmem_max",
        least: 4 << 20,
        why: "the limit of a socket's send buffer",
    },
    Sysctl {
        name: "net.core.netdev_max_backlog",
        least: 10_000,
        why: "packets that wait for a processor, on the loopback interface and with RPS",
    },
    Sysctl {
        name: "net.core.netdev_budget",
        least: 600,
        why: "packets that one round of the network's soft interrupt may take",
    },
];

impl Sysctl {
    fn check(&self, files: &Files<'_>) -> Setting {
        let path = format!("proc/sys/{}", self.name.replace('.', "/"));
        let command = format!("sudo sysctl -w {}={}", self.name, self.least);
        Setting::at_least(self.name, files.number(&path), self.least).command(command).why(self.why)
    }
}

/// `net.ipv4.udp_mem`: three numbers of pages; the last is the limit. It holds for IPv6, too.
fn udp_memory(files: &Files<'_>) -> Setting {
    let name = "net.ipv4.udp_mem";
    let pages = files.text("proc/sys/net/ipv4/udp_mem");
    let limit = pages.as_deref().and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
    let [low, pressure] = [UDP_PAGES / 4, UDP_PAGES / 2];
    Setting::at_least(name, limit, UDP_PAGES)
        .command(format!("sudo sysctl -w {name}='{low} {pressure} {UDP_PAGES}'"))
        .why("the limit, in pages, of what waits in all UDP sockets together")
}

fn governor(files: &Files<'_>) -> Setting {
    let folder = "sys/devices/system/cpu";
    let policy = |name: String| files.text(&format!("{folder}/{name}/cpufreq/scaling_governor"));
    let mut found: Vec<String> = files.names(folder).into_iter().filter_map(policy).collect();
    found.sort();
    found.dedup();
    let is_right = found == ["performance"];
    let value = (!found.is_empty()).then(|| found.join(", "));
    Setting::new("CPU governor", value, is_right, "performance")
        .command("sudo cpupower frequency-set -g performance")
        .why("a processor that must speed up first loses the packets of that time")
}

fn irqbalance(files: &Files<'_>) -> Setting {
    let is_it = |name: &String| {
        let is_process = name.bytes().all(|byte| byte.is_ascii_digit());
        is_process && files.text(&format!("proc/{name}/comm")).as_deref() == Some("irqbalance")
    };
    let processes = files.names("proc");
    let runs = processes.iter().any(is_it);
    let value =
        (!processes.is_empty()).then(|| (if runs { "running" } else { "not running" }).to_owned());
    Setting::new("irqbalance", value, !runs, "not running")
        .command("sudo systemctl stop irqbalance")
        .why("it moves interrupts away from the processors that they are pinned to")
}
