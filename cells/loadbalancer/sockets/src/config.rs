//! The options, in Cilium's spelling. Changes take effect at the next start.

/// The options of load balancing at sockets, and of the termination of sockets whose backend is removed.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Services")]
pub struct SocketConfig {
    /// Translate services when sockets connect or send, not each packet; kube-proxy-replacement enables it, too
    #[flag(default = false)]
    pub bpf_lb_sock: bool,
    /// Translate services for sockets of the host alone, and each packet of pods
    #[flag(default = false)]
    pub bpf_lb_sock_hostns_only: bool,
    /// End sockets of pods, too, when their backend goes
    #[flag(default = true, hidden)]
    pub bpf_lb_sock_terminate_pod_connections: bool,
    /// End TCP sockets, too
    #[flag(default = false, hidden)]
    pub lb_sock_terminate_all_protos: bool,
}

/// The sockets that have services translated by the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    /// None.
    Off,
    /// Those of the host.
    Host,
    /// Those of the host and of pods.
    All,
}

impl SocketConfig {
    /// Returns which sockets have services translated; `replaces_kube_proxy` is the option `kube-proxy-replacement`.
    pub fn mode(&self, replaces_kube_proxy: bool) -> SocketMode {
        match (self.bpf_lb_sock || replaces_kube_proxy, self.bpf_lb_sock_hostns_only) {
            (false, _) => SocketMode::Off,
            (true, true) => SocketMode::Host,
            (true, false) => SocketMode::All,
        }
    }

    /// Whether sockets of pods are terminated, which requires `CAP_SYS_ADMIN`.
    pub fn enters_pods(&self, replaces_kube_proxy: bool) -> bool {
        self.mode(replaces_kube_proxy) == SocketMode::All && self.bpf_lb_sock_terminate_pod_connections
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replacement_of_kube_proxy_enables_it_and_hostns_only_alone_does_not() {
        let config = |bpf_lb_sock, bpf_lb_sock_hostns_only| SocketConfig {
            bpf_lb_sock,
            bpf_lb_sock_hostns_only,
            bpf_lb_sock_terminate_pod_connections: true,
            lb_sock_terminate_all_protos: false,
        };
        assert_eq!(config(false, false).mode(false), SocketMode::Off);
        assert_eq!(config(false, true).mode(false), SocketMode::Off);
        for (sock, replaces) in [(true, false), (false, true), (true, true)] {
            assert_eq!(config(sock, false).mode(replaces), SocketMode::All);
            assert_eq!(config(sock, true).mode(replaces), SocketMode::Host);
            assert!(config(sock, false).enters_pods(replaces) && !config(sock, true).enters_pods(replaces));
        }
    }
}
