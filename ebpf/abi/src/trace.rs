//! Trace points, reasons and aggregation (constants: trace_point, trace_reason, aggregation).

/// To an endpoint.
pub const TO_LXC: u8 = 0;
/// To the proxy.
pub const TO_PROXY: u8 = 1;
/// To the host.
pub const TO_HOST: u8 = 2;
/// To the host's stack.
pub const TO_STACK: u8 = 3;
/// To the tunnel.
pub const TO_OVERLAY: u8 = 4;
/// From an endpoint.
pub const FROM_LXC: u8 = 5;
/// From the proxy.
pub const FROM_PROXY: u8 = 6;
/// From the host.
pub const FROM_HOST: u8 = 7;
/// From the host's stack.
pub const FROM_STACK: u8 = 8;
/// From the tunnel.
pub const FROM_OVERLAY: u8 = 9;
/// From a device of the node.
pub const FROM_NETWORK: u8 = 10;
/// To a device of the node.
pub const TO_NETWORK: u8 = 11;
/// From decryption.
pub const FROM_CRYPTO: u8 = 12;
/// To encryption.
pub const TO_CRYPTO: u8 = 13;

/// Reasons of a trace event; [`reason::ENCRYPTED`] is or-ed to the others.
pub mod reason {
    /// Policy decided, a new connection.
    pub const POLICY: u8 = 0;
    /// An established connection.
    pub const CT_ESTABLISHED: u8 = 1;
    /// A reply.
    pub const CT_REPLY: u8 = 2;
    /// An ICMP error of a connection.
    pub const CT_RELATED: u8 = 3;
    /// Connection tracking was not consulted.
    pub const UNKNOWN: u8 = 5;
    /// Encrypted.
    pub const ENCRYPTED: u8 = 0x80;
}

/// Levels of `monitor-aggregation`.
pub mod aggregation {
    /// Everything is reported.
    pub const NONE: u32 = 0;
    /// Points at which packets enter are not reported.
    pub const LOWEST: u32 = 1;
    /// As [`LOWEST`].
    pub const LOW: u32 = 2;
    /// Events of established connections are aggregated by interval and TCP flags.
    pub const MEDIUM: u32 = 3;
    /// As [`MEDIUM`].
    pub const MAXIMUM: u32 = 4;
}

const LABELS: [&str; 14] = [
    "to-endpoint",
    "to-proxy",
    "to-host",
    "to-stack",
    "to-overlay",
    "from-endpoint",
    "from-proxy",
    "from-host",
    "from-stack",
    "from-overlay",
    "from-network",
    "to-network",
    "from-crypto",
    "to-crypto",
];

/// The words Cilium prints for a trace point.
pub fn label(point: u8) -> Option<&'static str> {
    LABELS.get(usize::from(point)).copied()
}
