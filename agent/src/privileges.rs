//! What the process may do: its user, its capabilities, its descriptors.
//!
//! Capabilities are a thread's own and go on to the threads that it starts, so all of this happens while there is one
//! thread.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use hive::prelude::*;
use hive::{ConfigError, Hive};
use loadbalancer_sockets::SocketConfig;
use maps::MapsConfig;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use crate::logging;

/// Capabilities of the agent once it runs.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Files")]
pub(crate) struct PrivilegeConfig {
    /// Keep CAP_SYS_ADMIN after the start, to mount the BPF file system again should it be unmounted
    #[flag(default = false)]
    bpf_root_remount: bool,
}

/// Declares the options.
pub(crate) fn cell() -> Cell {
    module("privileges", "What the process may do", [config::<PrivilegeConfig>()])
}

/// A capability that the agent cannot do without: name, bit, what for.
type Needed = (&'static str, CapabilitySet, &'static str);

const NEEDED: [Needed; 3] = [
    (
        "CAP_NET_ADMIN",
        CapabilitySet::NET_ADMIN,
        "links, routes, programs on interfaces and the network's kernel settings",
    ),
    ("CAP_BPF", CapabilitySet::BPF, "eBPF programs and maps"),
    ("CAP_PERFMON", CapabilitySet::PERFMON, "eBPF programs that look into packets"),
];

/// Capabilities that `CAP_SYS_ADMIN` includes.
const OF_SYS_ADMIN: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);

/// What is used where it is held: the socket's group, files of other users, ports below 1024.
const USED: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::NET_BIND_SERVICE);

/// Says so if the process may not do what the agent does.
pub(crate) fn are_missing() -> bool {
    if let Some(user) = other_than_root() {
        tracing::error!(target: logging::FATAL, user, "The agent needs root, for eBPF programs, links and routes: start it as root");
        return true;
    }
    // Without an answer the kernel itself will say what it refuses.
    let lacking = capabilities(None).map_or(Vec::new(), |held| lacking(held.effective));
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

/// Returns the required capabilities that are not among those held.
fn lacking(mut held: CapabilitySet) -> Vec<Needed> {
    if held.contains(CapabilitySet::SYS_ADMIN) {
        held |= OF_SYS_ADMIN;
    }
    NEEDED.into_iter().filter(|(_, capability, _)| !held.contains(*capability)).collect()
}

/// Does what needs more than the agent keeps - mounts the bpf file system where it is missing - and drops all
/// capabilities but those that the agent uses. False if it cannot work then, which is said. Its options are read before any
/// cell is built: a cell may start threads, which would keep what they had.
pub(crate) fn settle(hive: &Hive) -> Result<bool, ConfigError> {
    let remount = hive.config::<PrivilegeConfig>()?.bpf_root_remount;
    let enters_pods = hive.config::<SocketConfig>()?.enters_pods();
    if let Err(error) = maps::mount(&hive.config::<MapsConfig>()?.bpf_root) {
        tracing::error!(target: logging::FATAL, %error, "The agent has no bpf file system");
        return Ok(false);
    }
    let dropped = drop_all_but(|held| kept(held, remount || enters_pods));
    match dropped {
        Ok(kept) => tracing::info!(capabilities = names(kept), "All other capabilities are dropped"),
        Err(error) => tracing::warn!(%error, "Capabilities that are not needed could not be dropped"),
    }
    Ok(true)
}

/// What stays of these; `administer`: `CAP_SYS_ADMIN`, too.
fn kept(held: CapabilitySet, administer: bool) -> CapabilitySet {
    let mut kept = NEEDED.into_iter().fold(USED, |kept, (_, capability, _)| kept | capability);
    if !held.contains(CapabilitySet::DAC_OVERRIDE) {
        kept |= CapabilitySet::DAC_READ_SEARCH;
    }
    if administer || !held.contains(OF_SYS_ADMIN) {
        kept |= CapabilitySet::SYS_ADMIN;
    }
    held & kept
}

/// Drops all capabilities of this thread and of what it may ever execute, but those that are chosen of the permitted.
fn drop_all_but(choose: impl Fn(CapabilitySet) -> CapabilitySet) -> rustix::io::Result<CapabilitySet> {
    let held = capabilities(None)?;
    let kept = choose(held.permitted);
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        // Fails without CAP_SETPCAP, when the agent's starter sees to it, and behind the last capability there is.
        if !kept.contains(capability) && remove_capability_from_bounding_set(capability).is_err() {
            break;
        }
    }
    clear_ambient_capability_set()?;
    let effective = held.effective & kept;
    set_capabilities(
        None,
        CapabilitySets { effective, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    Ok(kept)
}

/// `CAP_BPF,CAP_NET_ADMIN`.
fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    names.join(",")
}

/// Fewer descriptors are worth a word: an agent without endpoints has 140, each endpoint one more, and so has each
/// connection.
const FEW_DESCRIPTORS: u64 = 640;

/// Lets the process have as many descriptors as it may.
pub(crate) fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Some(limit) = maximum.filter(|limit| *limit < FEW_DESCRIPTORS) {
        tracing::warn!(
            limit,
            "The limit of open files leaves room for few endpoints, each of which takes one: raise LimitNOFILE of the unit, \
             or the container's limit, to {FEW_DESCRIPTORS} or more"
        );
    }
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
        let names = |held| lacking(held).iter().map(|(name, ..)| *name).collect::<Vec<_>>();
        let enough = CapabilitySet::NET_ADMIN | CapabilitySet::BPF | CapabilitySet::PERFMON;
        assert_eq!(names(CapabilitySet::all()), [] as [&str; 0]);
        assert_eq!(names(enough), [] as [&str; 0]);
        assert_eq!(names(enough - CapabilitySet::BPF), ["CAP_BPF"]);
        assert_eq!(names(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN), [] as [&str; 0]);
        assert_eq!(names(CapabilitySet::SYS_ADMIN), ["CAP_NET_ADMIN"]);
        assert_eq!(names(CapabilitySet::empty()), ["CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"]);
    }

    #[test]
    fn what_is_kept_is_what_is_used() {
        let all = CapabilitySet::all();
        let names = |held, administer| names(kept(held, administer));
        assert_eq!(
            names(all, false),
            "CAP_CHOWN,CAP_DAC_OVERRIDE,CAP_NET_BIND_SERVICE,CAP_NET_ADMIN,CAP_PERFMON,CAP_BPF"
        );
        assert!(names(all, true).contains("CAP_SYS_ADMIN"));
        // To an older runtime, which knows no CAP_BPF, it is all there is.
        let old = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
        assert_eq!(names(old, false), "CAP_NET_ADMIN,CAP_SYS_ADMIN");
        assert_eq!(names(all - CapabilitySet::DAC_OVERRIDE, false).matches("DAC").count(), 1);
    }
}
