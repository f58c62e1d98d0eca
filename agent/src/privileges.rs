//! Privileges of the process: user, capabilities, limit of file descriptors.
//!
//! Capabilities belong to a thread and are inherited by threads that it starts. They are therefore dropped while the
//! process has a single thread.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use cilium_health::{CiliumHealthConfig, EndpointNamespace, EndpointNamespaceSlot};
use hive::prelude::*;
use hive::{ConfigError, Hive};
use iptables::IptablesConfig;
use loadbalancer::ServicesConfig;
use loadbalancer_sockets::{SocketConfig, SocketMode};
use logging::LogLevel;
use maps::MapsConfig;
use proxy_ports::ProxyConfig;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};
use socket_lb::SocketLbConfig;

/// Capabilities of the agent once it runs.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Files")]
pub(crate) struct PrivilegeConfig {
    /// Keep CAP_SYS_ADMIN after the start, to mount the BPF file system again should it be unmounted
    #[flag(default = false)]
    bpf_root_remount: bool,
}

/// Declares the options, and provides what is made with capabilities that are dropped afterwards.
pub(crate) fn cell(health_endpoint: Arc<EndpointNamespaceSlot>) -> Cell {
    let cells = [config::<PrivilegeConfig>(), supply(health_endpoint)];
    module("privileges", "Privileges of the process", cells)
}

/// A required capability: name, bit, purpose.
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

/// Capabilities that `CAP_SYS_ADMIN` includes (they were split from it in Linux 5.8).
const OF_SYS_ADMIN: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);

/// Optional capabilities, kept if held: for the socket's group, files of other users, ports below 1024.
const USED: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::NET_BIND_SERVICE);

/// Whether the process lacks root or a required capability; logs each one that is missing.
pub(crate) fn are_missing() -> bool {
    if let Some(user) = other_than_root() {
        tracing::error!(target: crate::FATAL_TARGET, user, "The agent needs root, for eBPF programs, links and routes: start it as root");
        return true;
    }
    // If capabilities cannot be read, continue: the kernel rejects each operation that is not permitted.
    let lacking = capabilities(None).map_or(Vec::new(), |held| lacking(held.effective));
    for (capability, _, purpose) in &lacking {
        tracing::error!(
            target: crate::FATAL_TARGET,
            capability,
            "The agent needs {capability}, for {purpose}: add it to the container's securityContext or the unit's CapabilityBoundingSet"
        );
    }
    !lacking.is_empty()
}

/// Returns the effective user id, unless it is root.
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

/// Mounts the bpf file system, and the cgroup of socket load balancing, if they are missing, and makes the namespace of
/// the health endpoint, which need `CAP_SYS_ADMIN`; then drops all capabilities that the agent does not use, and starts
/// the thread of the log with what is left. Returns false, after logging the error, if there is no bpf file system. Call
/// it before any cell is built: a cell may start threads, which would keep the capabilities of this one.
pub(crate) fn drop_capabilities(
    hive: &Hive,
    log: &LogLevel,
    health_endpoint: &EndpointNamespaceSlot,
) -> Result<bool, ConfigError> {
    let remount = hive.config::<PrivilegeConfig>()?.bpf_root_remount;
    let replaces_kube_proxy = hive.config::<ServicesConfig>()?.kube_proxy_replacement;
    let sockets = hive.config::<SocketConfig>()?;
    let enters_pods = sockets.enters_pods(replaces_kube_proxy);
    // Pings of nodes; the older backend of iptables; answers of the DNS proxy, which works without iptables, too.
    let health = hive.config::<CiliumHealthConfig>()?;
    let raw = health.enable_health_checking
        || hive.config::<IptablesConfig>()?.install_iptables_rules
        || hive.config::<ProxyConfig>()?.is_assigned_by_programs();
    if let Err(error) = maps::mount(&hive.config::<MapsConfig>()?.bpf_root) {
        tracing::error!(target: crate::FATAL_TARGET, %error, "The agent has no bpf file system");
        return Ok(false);
    }
    if sockets.mode(replaces_kube_proxy) != SocketMode::Off {
        // The cell reports a missing cgroup with the remedy.
        if let Err(error) = socket_lb::mount(&hive.config::<SocketLbConfig>()?.root()) {
            tracing::debug!(%error, "The cgroup of socket load balancing was not mounted");
        }
    }
    if health.has_endpoint() {
        health_endpoint.fill(EndpointNamespace::create(health.cluster_health_port));
    }
    let dropped = drop_all_but(|held| kept(held, remount || enters_pods, raw));
    log.start_writer();
    match dropped {
        Ok(kept) => tracing::info!(capabilities = names(kept), "All other capabilities are dropped"),
        Err(error) => tracing::warn!(%error, "Capabilities that are not needed could not be dropped"),
    }
    Ok(true)
}

/// Returns the subset of `held` to keep; with `administer` it includes `CAP_SYS_ADMIN`, with `raw` `CAP_NET_RAW`.
fn kept(held: CapabilitySet, administer: bool, raw: bool) -> CapabilitySet {
    let mut kept = NEEDED.into_iter().fold(USED, |kept, (_, capability, _)| kept | capability);
    // DAC_OVERRIDE includes reading, so DAC_READ_SEARCH is needed only without it.
    if !held.contains(CapabilitySet::DAC_OVERRIDE) {
        kept |= CapabilitySet::DAC_READ_SEARCH;
    }
    // A container runtime that predates CAP_BPF and CAP_PERFMON can grant SYS_ADMIN only.
    if administer || !held.contains(OF_SYS_ADMIN) {
        kept |= CapabilitySet::SYS_ADMIN;
    }
    kept.set(CapabilitySet::NET_RAW, raw);
    held & kept
}

/// Drops all capabilities of this thread, and of programs that it executes, except those that `choose` returns of the
/// permitted set. Returns the remaining ones.
fn drop_all_but(choose: impl Fn(CapabilitySet) -> CapabilitySet) -> rustix::io::Result<CapabilitySet> {
    let held = capabilities(None)?;
    let kept = choose(held.permitted);
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        // Fails without CAP_SETPCAP, in which case the container runtime limits the bounding set, and beyond the last
        // capability that the kernel knows.
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

/// Formats a set as in `CAP_BPF,CAP_NET_ADMIN`.
fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    names.join(",")
}

/// Limit of file descriptors below which a warning is logged: an agent without endpoints has 140 open, and each
/// endpoint and each connection adds one.
const MIN_DESCRIPTORS: u64 = 640;

/// Raises the soft limit of file descriptors to the hard limit; warns if that is low.
pub(crate) fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Some(limit) = maximum.filter(|limit| *limit < MIN_DESCRIPTORS) {
        tracing::warn!(
            limit,
            "The limit of open files leaves room for few endpoints, each of which takes one: raise LimitNOFILE of the unit, \
             or the container's limit, to {MIN_DESCRIPTORS} or more"
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
    fn missing_capabilities_are_named() {
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
    fn only_used_capabilities_are_kept() {
        let all = CapabilitySet::all();
        let names = |held, administer| names(kept(held, administer, false));
        assert_eq!(
            names(all, false),
            "CAP_CHOWN,CAP_DAC_OVERRIDE,CAP_NET_BIND_SERVICE,CAP_NET_ADMIN,CAP_PERFMON,CAP_BPF"
        );
        assert!(names(all, true).contains("CAP_SYS_ADMIN"));
        assert!(kept(all, false, true).contains(CapabilitySet::NET_RAW));
        assert!(!kept(all - CapabilitySet::NET_RAW, false, true).contains(CapabilitySet::NET_RAW));
        // An older runtime, which does not know CAP_BPF, grants SYS_ADMIN instead.
        let old = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
        assert_eq!(names(old, false), "CAP_NET_ADMIN,CAP_SYS_ADMIN");
        assert_eq!(names(all - CapabilitySet::DAC_OVERRIDE, false).matches("DAC").count(), 1);
    }
}
