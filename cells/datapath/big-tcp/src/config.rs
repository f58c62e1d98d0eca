//! The options, in Cilium's spelling.

/// Segments of more than 64 KiB. Changes take effect at the next start, and in pods that are made then.
#[derive(Clone, Copy, Debug, hive::Config)]
#[config(group = "Datapath")]
pub struct BigTcpConfig {
    /// Segments of up to 192 KiB for IPv4 (Linux 6.3), with BPF host routing
    #[flag(default = false)]
    pub enable_ipv4_big_tcp: bool,
    /// Segments of up to 192 KiB for IPv6 (Linux 5.19), with BPF host routing
    #[flag(default = false)]
    pub enable_ipv6_big_tcp: bool,
}
