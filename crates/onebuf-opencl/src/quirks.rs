//! Driver bugs that would cause undefined behaviour or a wrong refusal.

/// The known bugs of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quirks {
    /// A user event must not end with an error. PoCL 3.1 aborts the process (until 7.0 `pocl_update_event_failed` locks a
    /// command's event after its last release), and even 7.0 does not call back for commands that wait for it. Clover
    /// neither calls back nor runs the rest of the queue. So a failed host signal lets its work run there, and the events
    /// after it report the failure ([`onebuf_hal::host_signals::Behind`]).
    pub cannot_fail_host_signals: bool,
    /// Clover: `clReleaseMemObject` frees at once, even while queued commands use the object (observed: a crash of a write
    /// that waited for a user event). So onebuf waits for the queues before it releases.
    pub releases_early: bool,
    /// Oclgrind: `clFlush` runs the whole queue on the calling thread. If the queue waits for a user event that this thread
    /// should complete, `clFlush` never returns. A callback registered afterwards is not called. So host signals and
    /// callbacks are not used.
    pub runs_in_flush: bool,
    /// Clover: a map runs when it is enqueued, even if it should wait; after a host signal it returns the old bytes. So
    /// host signals are not used.
    pub maps_at_once: bool,
    /// Clover: a launch that waits reads its arguments when it runs, not when it is enqueued (observed after a user event:
    /// two launches of one `cl_kernel` both added the second's value). So onebuf waits for a launch before it reuses the
    /// `cl_kernel`.
    pub reads_arguments_late: bool,
    /// Rusticl 22.3 reports a maximum of 32 work-items per group for every kernel, but runs groups of 256; it also reports
    /// twice a kernel's local memory. So both values are ignored.
    pub misjudges_kernels: bool,
    /// PoCL 4.0 and later: if a program's binary is queried before its first launch, its variables in global memory are never
    /// initialised (`pocl_driver_build_gvar_init_kernel` allocates their memory, and is skipped once that exists). So the
    /// binary of such a program is not queried.
    pub forgets_variables: bool,
    /// PoCL's device `basic` (`cpu-minimal` since 4.0): a command runs inside the call that enqueues it. A command that must wait
    /// runs later, on the thread that ends its wait: a worker of another device, or the caller of `clSetUserEventStatus`. Before
    /// 4.0 that thread already holds the lock of the command's event and takes it again (`pocl_broadcast`,
    /// `pocl_update_event_running`), so it hangs, and `clGetEventInfo` hangs too; no timeout ends that. So commands there never
    /// wait: the calling thread waits before it enqueues, and host signals are not used.
    pub waits_hang: bool,
    /// Rusticl: a `cl_kernel` keeps its last buffer arguments alive. So they are cleared when the memory is dropped.
    pub keeps_arguments: bool,
}

impl Quirks {
    /// The quirks of a platform, by its name and version.
    pub fn of(platform: &str, version: &str) -> Quirks {
        let (is_pocl, is_clover) = (version.contains("PoCL"), platform == "Clover");
        Quirks {
            cannot_fail_host_signals: is_pocl || is_clover,
            releases_early: is_clover,
            runs_in_flush: platform == "Oclgrind",
            maps_at_once: is_clover,
            reads_arguments_late: is_clover,
            misjudges_kernels: platform == "rusticl",
            forgets_variables: is_pocl,
            waits_hang: false,
            keeps_arguments: platform == "rusticl",
        }
    }

    /// Adds the quirks of one device of the platform, by its name and version.
    pub fn of_device(self, name: &str, version: &str) -> Quirks {
        let is_basic = ["basic", "cpu-minimal"].iter().any(|prefix| name.starts_with(prefix));
        Quirks { waits_hang: is_basic && version.contains("PoCL"), ..self }
    }
}

/// Whether the driver crashes, hangs or computes wrong results when two threads call it at once, by the platform's name and
/// the driver's version: clover always (22.3: two threads on one queue crashed or computed wrong results in 2 of 10 runs of
/// a raw C program, in none when a lock serialised the calls), rusticl in Mesa 22 (22.3: 8 of 10).
pub(super) fn wants_one_thread(platform: &str, driver: &str) -> bool {
    platform == "Clover" || (platform == "rusticl" && driver.starts_with("22."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_known_by_name() {
        let of = |platform, version| {
            let quirks = Quirks::of(platform, version);
            [quirks.cannot_fail_host_signals, quirks.releases_early, quirks.runs_in_flush]
        };
        let pocl = "Portable Computing Language";
        assert_eq!(of(pocl, "OpenCL 3.0 PoCL 3.1+debian  Linux, None"), [true, false, false]);
        assert_eq!(of("Clover", "OpenCL 1.1 Mesa 22.3.6"), [true, true, false]);
        assert_eq!(of("NVIDIA CUDA", "OpenCL 3.0 CUDA 13.0.97"), [false; 3]);
        assert!(Quirks::of("rusticl", "OpenCL 3.0 ").misjudges_kernels);
        // Platform and device have different version strings.
        assert!(Quirks::of(pocl, "OpenCL 3.0 PoCL 6.0  Linux, Release").forgets_variables);
        assert!(
            Quirks::of(pocl, "OpenCL 3.0 PoCL HSTR: cpu-x86_64-pc-linux-gnu").forgets_variables
        );
        assert!(!Quirks::of("Intel(R) OpenCL", "OpenCL 3.1 LINUX").forgets_variables);
        assert_eq!(of("Oclgrind", "OpenCL 1.2 (Oclgrind 21.10)"), [false, false, true]);
        let kept = |platform| Quirks::of(platform, "OpenCL 3.0 ").keeps_arguments;
        assert!(kept("rusticl") && !kept(pocl) && !kept("Clover"));
        let one = [("Clover", "22.3.6"), ("Clover", "24.0"), ("rusticl", "22.3.6")];
        assert_eq!(one.map(|(platform, driver)| wants_one_thread(platform, driver)), [true; 3]);
        let many = [("rusticl", "25.2.1"), (pocl, "3.1+debian"), ("NVIDIA CUDA", "580.159")];
        assert_eq!(many.map(|(platform, driver)| wants_one_thread(platform, driver)), [false; 3]);
    }

    #[test]
    fn one_device_of_pocl_is_known_by_its_own_name() {
        let hangs = |name, version| Quirks::default().of_device(name, version).waits_hang;
        let pocl = "OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-skylake-avx512";
        assert!(hangs("basic-skylake-avx512-AMD EPYC", pocl));
        assert!(hangs("cpu-minimal-haswell-AMD EPYC", pocl));
        assert!(!hangs("pthread-skylake-avx512-AMD EPYC", pocl));
        assert!(!hangs("cpu-haswell-AMD EPYC", pocl));
        assert!(!hangs("basic", "OpenCL 3.0 CUDA"), "of another platform");
    }
}
