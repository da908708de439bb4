//! The list of benchmarks, selection by name, and running them.

use crate::{Bench, Case, Row, Stop, Workload, workload};
use serde::Serialize;

/// All benchmarks, in the order in which they run: one file in `workload/` and one line here.
pub const WORKLOADS: &[Workload] = &[
    workload::route_lookup::WORKLOAD,
    workload::view_idle::WORKLOAD,
    workload::pool_get_put::WORKLOAD,
    workload::launch::WITH_HELD,
    workload::launch::WITH_TAKEN,
    workload::wrap::WORKLOAD,
    workload::wrap::WITHOUT_USE,
    workload::wrap_pointer::WORKLOAD,
    workload::wrap_pointer::WITHOUT_USE,
    workload::handoff::WORKLOAD,
    workload::host_time::WORKLOAD,
    workload::sync_method::WORKLOAD,
    workload::graft::HANDOFF,
    workload::graft::PIPELINE,
    workload::graft::FRAMES,
    workload::imported::WORKLOAD,
    workload::imported::BETWEEN,
    workload::pipeline::WORKLOAD,
    workload::growth::SIZE,
    workload::growth::SIZE_LIMIT,
    workload::growth::RING,
    workload::growth::RING_LIMIT,
    workload::fft::CLFFT,
    workload::fft::CUFFT,
    workload::staged::WORKLOAD,
    workload::bus::STAGED,
    workload::bus::UPLOAD,
    workload::bus::DOWNLOAD,
    workload::bus::UPLOAD_ORDINARY,
    workload::bus::DOWNLOAD_ORDINARY,
    workload::bus::UPLOAD_PINNED,
    workload::bus::DOWNLOAD_PINNED,
    workload::bus::UPLOAD_ASYNC,
    workload::bus::DOWNLOAD_ASYNC,
    workload::stream::MEMORY,
    workload::bridge::ALIASED,
    workload::bridge::STAGED,
    workload::udp::INGEST,
    workload::udp::IN_FRAMES,
    workload::udp_loopback::SEND,
    workload::udp_loopback::LOOPBACK,
    workload::stream_udp::UDP,
    workload::mpi::STREAM_1MIB,
    workload::mpi::STREAM_8MIB,
    workload::mpi::TURN,
    workload::mpi::TURN_SHORT,
    workload::program::BUILD,
    workload::program::FIRST_LAUNCH,
];

/// Whether any machine could have a benchmark of this name.
pub fn known(name: &str) -> bool {
    WORKLOADS.iter().any(|workload| workload.could_have(name))
}

/// The cases that the names select, all of them without names; absent ones for names that match nothing here.
pub fn cases(bench: &Bench, names: &[String]) -> Vec<Case> {
    let mut chosen: Vec<Case> = WORKLOADS.iter().flat_map(|w| of(w, bench, names)).collect();
    for name in names {
        let meant = |workload: &Workload| workload.is_meant(name);
        if !WORKLOADS.iter().any(meant) && !chosen.iter().any(|case| case.name == *name) {
            chosen.push(Case::absent(name, "no such devices here: `onebuf devices` lists them"));
        }
    }
    chosen
}

fn of(workload: &Workload, bench: &Bench, names: &[String]) -> Vec<Case> {
    let all = names.is_empty() || names.iter().any(|name| workload.is_meant(name));
    if !all && !names.iter().any(|name| workload.could_have(name)) {
        return Vec::new();
    }
    let mut cases = (workload.cases)(bench);
    cases.retain(|case| all || names.contains(&case.name));
    cases
}

/// A benchmark without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The benchmark's name.
    pub name: String,
    /// The reason.
    pub why: String,
    /// Whether it failed; otherwise a requirement is missing on this machine.
    #[serde(skip)]
    pub failed: bool,
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Results, in the order in which they ran.
    pub results: Vec<Row>,
    /// Benchmarks without a result.
    pub skipped: Vec<Skipped>,
}

/// Runs the cases, and reports each before it starts.
pub fn run(bench: &Bench, cases: &[Case], mut before: impl FnMut(usize, &Case)) -> Outcome {
    let mut outcome = Outcome::default();
    for (number, case) in cases.iter().enumerate() {
        before(number, case);
        let name = case.name.clone();
        match (case.run)(bench) {
            Ok(row) => outcome.results.push(row),
            Err(Stop::Absent(why)) => {
                outcome.skipped.push(Skipped { name, why, failed: false });
            }
            Err(Stop::Failed(error)) => {
                let why = error.to_string();
                outcome.skipped.push(Skipped { name, why, failed: true });
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::{Bench, Case, Stop, WORKLOADS, cases, known, run};
    use crate::Effort;
    use onebuf::doctor::Verdicts;

    /// A machine without OpenCL.
    fn bare() -> Bench {
        let hub = onebuf::builder()
            .without(["opencl", "vulkan", "gl"])
            .verdicts(Verdicts::default())
            .build()
            .unwrap();
        Bench { hub, effort: Effort::QUICK, bytes: 1 << 16, ranks: None }
    }

    fn chosen(names: &[&str]) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        cases(&bare(), &names).into_iter().map(|case| case.name).collect()
    }

    #[test]
    fn names_are_those_of_workloads_or_of_rows() {
        for name in [
            "route_lookup_ns",
            "handoff",
            "handoff_<a>_<b>_ratio",
            "handoff_opencl:0_opencl:1_ratio",
            "launch_enqueue_ratio_opencl:1",
            "pipeline_opencl:0_cuda:0_us",
            "pipeline_opencl:0_cuda:0_batch8_us",
            "udp_loopback",
            "udp_loopback_4sockets",
            "stream_udp_cuda:0_2sockets",
            "mpi_stream_1MiB",
            "mpi_corner_turn_2ranks",
            "mpi_corner_turn_short_4ranks",
        ] {
            assert!(known(name), "{name}");
        }
        for name in [
            "",
            "route",
            "handoffs",
            "handoff_",
            "launch_enqueue",
            "view_idle_ns_",
            "udp_loopback_4",
        ] {
            assert!(!known(name), "{name}");
        }
    }

    #[test]
    fn names_choose() {
        assert!(chosen(&[]).len() >= WORKLOADS.len());
        assert_eq!(chosen(&["view_idle_ns"]), ["view_idle_ns"]);
        assert_eq!(chosen(&["handoff"]), ["handoff_<a>_<b>_ratio"]);
        let both = ["view_idle_ns", "route_lookup_ns"];
        assert_eq!(chosen(&both), [both[1], both[0]], "in the order of the list");
        let other = "handoff_opencl:8_opencl:9_ratio";
        assert_eq!(chosen(&[other]), [other]);
    }

    #[test]
    fn without_opencl_the_rest_still_runs() {
        let bench = bare();
        let mut told = Vec::new();
        let all = cases(&bench, &[]);
        let outcome = run(&bench, &all, |number, case| told.push((number, case.name.clone())));
        let mut ran: Vec<&str> = outcome.results.iter().map(|row| &*row.name).collect();
        let several = ran.extract_if(.., |name| name.starts_with("udp_loopback_")).count();
        assert!(several >= 2, "{outcome:?}");
        assert_eq!(
            ran,
            [
                "route_lookup_ns",
                "view_idle_ns",
                "pool_get_put_ns",
                "udp_ingest_ratio",
                "udp_frames_ratio",
                "udp_send"
            ]
        );
        assert_eq!(outcome.results.len() + outcome.skipped.len(), told.len());
        for skipped in &outcome.skipped {
            let reason = if skipped.name.starts_with("mpi_") { "ranks of MPI" } else { "found 0" };
            assert!(!skipped.failed && skipped.why.contains(reason), "{skipped:?}");
        }
        let json = serde_json::to_value(&outcome).unwrap();
        assert_eq!(json["skipped"][0]["name"], "launch_enqueue_ratio");
        assert!(json["skipped"][0].get("failed").is_none());
    }

    #[test]
    fn what_goes_wrong_is_told_apart_from_what_is_absent() {
        let wrong = Case::new("x", |_| Err(Stop::Failed(onebuf::Error::invalid("no"))));
        let outcome = run(&bare(), &[wrong], |_, _| ());
        assert!(outcome.skipped[0].failed && outcome.skipped[0].why.contains("no"));
    }
}
