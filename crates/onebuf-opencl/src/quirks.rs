//! Driver bugs that would cause undefined behaviour or a wrong refusal.

/// What a driver is known to do wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quirks {
    /// A user event must not end with an error. PoCL 3.1 aborts the process (until 7.0
    /// `pocl_update_event_failed` locks a command's event after its last release), and also 7.0 does not
    /// call back for the commands behind it. Clover neither calls back nor runs the queue any further.
    /// So a host signal that fails lets its work run there, and the events behind it report the failure ([`onebuf_hal::host_signals::Behind`]).
    pub cannot_fail_host_signals: bool,
    /// Clover: `clReleaseMemObject` frees at once, under commands that are queued (seen as a crash of
    /// a write behind a user event). So the release itself waits for the queues.
    pub releases_early: bool,
    /// Oclgrind: `clFlush` runs the whole queue on the calling thread, and so never returns from behind
    /// a user event that this thread was to complete; a callback that is registered afterwards is not
    /// called. So it has neither host signals nor callbacks.
    pub runs_in_flush: bool,
    /// Clover: a map is carried out when it is enqueued, whatever it should wait for; behind a host signal it
    /// gives the bytes of before. So it has no host signals.
    pub maps_at_once: bool,
    /// Clover: a launch that has to wait reads its arguments when it runs, not when it was enqueued (seen
    /// behind a user event: two launches of one `cl_kernel` both added what the second was given). So a
    /// launch is waited for before its `cl_kernel` is given to the next.
    pub reads_arguments_late: bool,
    /// Rusticl 22.3: says of every kernel that a group may have 32 work-items, and runs groups of 256;
    /// says twice the local memory that a kernel has for itself. So neither is believed.
    pub misjudges_kernels: bool,
    /// PoCL, from 4.0 on: a program that is asked for its binary before its first launch never sets its variables in
    /// global memory, and they hold whatever was there (`pocl_driver_build_gvar_init_kernel` makes their memory, and is
    /// passed by once it is there). So such a program is not asked.
    pub forgets_variables: bool,
    /// PoCL's device `basic` (from 4.0 on `cpu-minimal`): a command runs inside the call that enqueues it. One that has to wait is
    /// run later, by the thread that ends its wait: a worker of another device, or the caller of `clSetUserEventStatus`. Until
    /// 4.0 that thread holds the lock of the command's event and takes it again (`pocl_broadcast`, `pocl_update_event_running`),
    /// so it hangs, and so does `clGetEventInfo`: no timeout ends that. So no command there is given anything to wait
    /// for: the calling thread waits before it enqueues, and there are no host signals.
    pub waits_hang: bool,
    /// Rusticl: a `cl_kernel` keeps the buffers that it was given last. So they are taken back when the memory is dropped.
    pub keeps_arguments: bool,
}

impl Quirks {
    /// By the platform's name and version.
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

    /// With what one device of the platform does by itself, by its name and version.
    pub fn of_device(self, name: &str, version: &str) -> Quirks {
        let is_basic = ["basic", "cpu-minimal"].iter().any(|prefix| name.starts_with(prefix));
        Quirks { waits_hang: is_basic && version.contains("PoCL"), ..self }
    }
}

/// Whether the driver crashes, hangs or computes wrongly when two threads call it at once, by the platform's name and the
/// driver's version: clover always (22.3: two threads on one queue crashed or computed wrongly in 2 of 10 runs of a raw C
/// program, and in none where a lock kept one out while the other was in a call), rusticl in Mesa 22 (22.3: 8 of 10).
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
        // A platform says it, and a device says it otherwise.
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
