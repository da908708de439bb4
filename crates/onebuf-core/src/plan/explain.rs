//! Descriptions of a plan: as text for people, and as JSON for programs.

use super::{Hop, Plan, Rejected, Request};
use crate::topology::{DeviceIx, Route, Topology};
use onebuf_hal::{MemoryKind, RouteKind};
use serde_json::{Value, json};

impl Plan {
    /// The plan as a few lines of text.
    pub fn explain(&self, topology: &Topology) -> String {
        let id = |device: DeviceIx| &topology.node(device).id;
        let mut text = format!("allocated on {} as {}\n", id(self.allocate_on), self.memory_kind);
        for hop in &self.routes {
            let Hop { to, kind, sync, why, .. } = hop;
            let copies = copies(hop, self.memory_kind);
            text += &format!("  {}: {kind}, {copies}, joined by {sync} ({why})\n", id(*to));
        }
        for Rejected { to, from, kind, why } in &self.rejected {
            text += &format!("  not taken, {} -> {}: {kind}, {why}\n", id(*from), id(*to));
        }
        text
    }

    /// The plan as the JSON that the CLI prints.
    pub fn to_json(&self, topology: &Topology) -> Value {
        let id = |device: DeviceIx| &topology.node(device).id;
        let hop = |hop: &Hop| {
            let Hop { to, kind, sync, zero_copy, why } = hop;
            json!({"to": id(*to), "kind": kind, "sync": sync, "zero_copy": zero_copy, "why": why})
        };
        let rejected = |rejected: &Rejected| {
            let Rejected { to, from, kind, why } = rejected;
            json!({"to": id(*to), "from": id(*from), "kind": kind, "why": why})
        };
        json!({
            "schema": 2,
            "allocate_on": id(self.allocate_on),
            "memory_kind": self.memory_kind,
            "routes": self.routes.iter().map(hop).collect::<Vec<_>>(),
            "rejected": self.rejected.iter().map(rejected).collect::<Vec<_>>(),
        })
    }
}

fn copies(hop: &Hop, memory_kind: MemoryKind) -> &'static str {
    let moves = memory_kind == MemoryKind::Managed && hop.kind == RouteKind::SvmPointer;
    match hop.zero_copy {
        Some(true) => "no copies",
        Some(false) if moves => "copies (pages move)",
        Some(false) => "copies",
        None => "may copy",
    }
}

/// Why a route cannot be used, the most helpful reason first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bar {
    Unproven,
    UnprovenSize,
    Copies,
    NotAskedFor,
    Refuted,
    WrongMemoryKind,
    OtherKind,
}

impl Bar {
    pub(super) fn why(self, topology: &Topology, route: &Route, request: &Request) -> String {
        let verdict = &route.verdict;
        let doctor = || {
            let id = |device| &topology.node(device).id;
            format!("run `onebuf doctor --devices {},{}`", id(route.from), id(route.to))
        };
        match self {
            Bar::Unproven => format!("unproven: {}", doctor()),
            Bar::UnprovenSize => unproven_size(route, request.bytes),
            Bar::Copies if route.memory_kind == Some(MemoryKind::Managed) => {
                "it copies (pages move at every hand-over)".into()
            }
            Bar::Copies if verdict.zero_copy == Some(false) => {
                format!("it copies ({})", verdict.why)
            }
            Bar::Copies => format!("not known to be free of copies: {}", doctor()),
            Bar::NotAskedFor => "opt-in: ask for `raw_addresses`".into(),
            Bar::Refuted => format!("refuted: {}", verdict.why),
            Bar::WrongMemoryKind => wrong_memory_kind(route),
            Bar::OtherKind => "a different kind of route was requested".into(),
        }
    }
}

fn unproven_size(route: &Route, bytes: u64) -> String {
    let tried = route.verdict.envelope.clone().unwrap_or_default();
    let (min, max) = (tried.min_bytes, tried.max_bytes);
    format!(
        "unproven at this size: {bytes} bytes, where {min} to {max} were tried: run `onebuf doctor --reach {}`",
        bytes.max(max)
    )
}

fn wrong_memory_kind(route: &Route) -> String {
    let memory_kind = route
        .memory_kind
        .map_or("device or exportable".into(), |memory_kind| memory_kind.to_string());
    format!("works only with {memory_kind} memory")
}
