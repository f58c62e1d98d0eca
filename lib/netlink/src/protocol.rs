//! Protocols of netlink.

use netlink_sys::protocols;

/// A protocol of netlink (`NETLINK_*` of `linux/netlink.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, neighbours, traffic control.
    Route,
    /// Sockets of the network stack.
    SockDiag,
    /// nfnetlink: nf_tables and other subsystems of netfilter.
    Netfilter,
}

impl Protocol {
    pub(crate) fn number(self) -> isize {
        match self {
            Protocol::Route => protocols::NETLINK_ROUTE,
            Protocol::SockDiag => protocols::NETLINK_SOCK_DIAG,
            Protocol::Netfilter => protocols::NETLINK_NETFILTER,
        }
    }
}
