//! The options, in Cilium's spelling. Changes take effect at the next start.

/// The options of load balancing at sockets, and of the termination of sockets whose backend is removed.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Services")]
pub struct SocketConfig {
    /// Translate services when sockets connect; the programs do not do so yet, but sockets of another agent's programs
    /// are ended
    #[flag(default = false)]
    pub bpf_lb_sock: bool,
    /// The same for sockets of the host alone
    #[flag(default = false)]
    pub bpf_lb_sock_hostns_only: bool,
    /// End sockets of pods, too, when their backend goes
    #[flag(default = true, hidden)]
    pub bpf_lb_sock_terminate_pod_connections: bool,
    /// End TCP sockets, too
    #[flag(default = false, hidden)]
    pub lb_sock_terminate_all_protos: bool,
}

impl SocketConfig {
    /// Whether sockets are terminated at all.
    pub fn is_on(&self) -> bool {
        self.bpf_lb_sock || self.bpf_lb_sock_hostns_only
    }

    /// Whether sockets of pods are terminated, which requires `CAP_SYS_ADMIN`.
    pub fn enters_pods(&self) -> bool {
        self.bpf_lb_sock && !self.bpf_lb_sock_hostns_only && self.bpf_lb_sock_terminate_pod_connections
    }
}
