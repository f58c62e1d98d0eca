//! What the process may do: its user, its capabilities, its descriptors.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::logging;

/// A capability that the agent cannot do without: name, number of `linux/capability.h`, what for.
type Needed = (&'static str, u32, &'static str);

/// `CAP_BPF` and `CAP_PERFMON` are part of `CAP_SYS_ADMIN` to the kernel; they alone do not open maps by their numbers.
const NEEDED: [Needed; 2] = [
    ("CAP_NET_ADMIN", 12, "links, routes, programs on interfaces and the network's kernel settings"),
    ("CAP_SYS_ADMIN", 21, "eBPF programs, policy maps opened by their numbers, mounting the bpf file system"),
];

/// Says so if the process may not do what the agent does.
pub(crate) fn are_missing() -> bool {
    if let Some(user) = other_than_root() {
        tracing::error!(target: logging::FATAL, user, "The agent needs root, for eBPF programs, links and routes: start it as root");
        return true;
    }
    let lacking = lacking(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    for (capability, _, purpose) in &lacking {
        tracing::error!(
            target: logging::FATAL,
            capability,
            "The agent needs {capability}, for {purpose}: add it to the container's securityContext or the unit's CapabilityBoundingSet"
        );
    }
    !lacking.is_empty()
}

/// The effective user, unless that is root.
fn other_than_root() -> Option<u32> {
    let process = fs::metadata("/proc/self").ok()?;
    Some(process.uid()).filter(|uid| *uid != 0)
}

/// What of the needed a process lacks, of which this is `/proc/PID/status`.
fn lacking(status: &str) -> Vec<Needed> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    // Without the line the kernel itself will say what it refuses.
    let effective = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(u64::MAX);
    NEEDED.into_iter().filter(|(_, number, _)| effective & (1 << number) == 0).collect()
}

/// Lets the process have as many descriptors as it may.
pub(crate) fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, ?current, "The limit of descriptors stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named() {
        let names = |status: &str| lacking(status).iter().map(|(name, ..)| *name).collect::<Vec<_>>();
        assert_eq!(names("Name:\tagent\nCapEff:\t000001ffffffffff\n"), [] as [&str; 0]);
        assert_eq!(names("CapEff:\t0000000000201000\n"), [] as [&str; 0]);
        assert_eq!(names("CapEff:\t0000000000001000\n"), ["CAP_SYS_ADMIN"]);
        assert_eq!(names("CapEff:\t0000000000200000\n"), ["CAP_NET_ADMIN"]);
        assert_eq!(names(""), [] as [&str; 0]);
    }
}
