//! The memory that this process can still get: what the kernel has left, and what its control groups (a container, a batch job) allow.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Control groups of version 2, and the controller of memory of version 1.
const UNIFIED: &str = "/sys/fs/cgroup";
const MEMORY: &str = "/sys/fs/cgroup/memory";

/// The bytes that this process can still allocate. `None` if the system does not tell.
pub fn available_bytes() -> Option<u64> {
    available_by(|path| fs::read_to_string(path).ok())
}

fn available_by(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let kernel = field(&read(Path::new("/proc/meminfo"))?, "MemAvailable:")?.saturating_mul(1024);
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(folder).flat_map(|(root, folder)| {
        // A group is limited by all groups around it. Inside of a container its path may be unknown, and only the root is there.
        let inside = folder.ancestors().take_while(|above| above.starts_with(root));
        inside.filter_map(|group| left_in(group, &read)).collect::<Vec<_>>()
    });
    Some(limits.fold(kernel, u64::min))
}

/// The folder of a line of `/proc/self/cgroup`, below its root, if that group limits memory.
fn folder(line: &str) -> Option<(&'static str, PathBuf)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
    let root = match controllers {
        "" => UNIFIED,
        _ if controllers.split(',').any(|one| one == "memory") => MEMORY,
        _ => return None,
    };
    Some((root, Path::new(root).join(path)))
}

/// What a group's limit leaves. Cached files can be dropped, and do not count.
fn left_in(group: &Path, read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let names = [
        ("memory.max", "memory.current", "inactive_file "),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    ];
    names.into_iter().find_map(|(limit, used, cached)| {
        let number = |name: &str| read(&group.join(name))?.trim().parse::<u64>().ok();
        let (limit, used) = (number(limit)?, number(used)?);
        let stat = read(&group.join("memory.stat")).unwrap_or_default();
        let cached = field(&stat, cached).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    })
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const GIB: u64 = 1 << 30;
    const FREE: (&str, &str) = ("/proc/meminfo", "MemTotal: 1 kB\nMemAvailable:  8388608 kB\n");

    fn available(files: &[(&str, &str)]) -> Option<u64> {
        let files: HashMap<_, _> = files.iter().map(|(at, text)| (Path::new(at), *text)).collect();
        available_by(|path| files.get(path).map(|text| (*text).to_owned()))
    }

    #[test]
    fn without_groups_the_kernel_tells() {
        assert_eq!(available(&[FREE]), Some(8 * GIB));
        assert_eq!(available(&[]), None);
        assert!(available_bytes().is_some_and(|bytes| bytes > 0), "this machine");
    }

    #[test]
    fn the_tightest_group_counts() {
        let group = ("/proc/self/cgroup", "0::/job/step\n");
        let step = [
            ("/sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("/sys/fs/cgroup/job/step/memory.current", "1073741824\n"),
        ];
        let job = [
            ("/sys/fs/cgroup/job/memory.max", "4294967296\n"),
            ("/sys/fs/cgroup/job/memory.current", "3221225472\n"),
            ("/sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 1073741824\n"),
        ];
        let files: Vec<_> = [FREE, group].into_iter().chain(step).chain(job).collect();
        assert_eq!(available(&files), Some(2 * GIB), "4 allowed, 3 used, of which 1 is a cache");
        assert_eq!(available(&files[..4]), Some(8 * GIB), "a group without a limit");
    }

    #[test]
    fn in_a_container_the_root_is_the_group() {
        let files = [
            FREE,
            ("/proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n"),
        ];
        assert_eq!(available(&files), Some(GIB));
        let over = files.map(|(at, text)| match at.ends_with("usage_in_bytes") {
            true => (at, "3221225472\n"),
            false => (at, text),
        });
        assert_eq!(available(&over), Some(0), "more than allowed");
    }
}
