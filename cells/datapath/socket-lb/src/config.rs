//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::path::PathBuf;

/// The folder of Cilium for its own mount.
const DEFAULT_ROOT: &str = "/run/cilium/cgroupv2";

/// The options of the programs of socket load balancing. Those that enable it are in
/// [`SocketConfig`](loadbalancer_sockets::SocketConfig).
#[derive(hive::Config, Clone, Debug, PartialEq, Eq)]
#[config(group = "Services")]
pub struct SocketLbConfig {
    /// Folder of the cgroup (v2) whose sockets have services translated, mounted there when absent; empty for
    /// /run/cilium/cgroupv2
    #[flag(default = "")]
    pub cgroup_root: String,
    /// Translate external IPs for sockets even if they are not addresses of this node
    #[flag(default = false)]
    pub disable_external_ip_mitigation: bool,
    /// Refuse that processes of the host bind ports of services, with kube-proxy-replacement
    #[flag(default = true)]
    pub node_port_bind_protection: bool,
    /// Emit events of translations at sockets to monitors
    #[flag(default = true)]
    pub trace_sock: bool,
}

impl SocketLbConfig {
    /// Returns the folder of the cgroup.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        if self.cgroup_root.is_empty() { DEFAULT_ROOT.into() } else { PathBuf::from(&self.cgroup_root) }
    }
}
