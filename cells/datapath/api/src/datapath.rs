//! The interface of the datapath for other cells: a trait, for which tests use a fake.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use datapath_abi::{
    EndpointConfig, EndpointInfo, EndpointKey, PolicyEntry, PolicyKey, PolicyStatsKey, PolicyStatsValue,
    ep_flag, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words, mac_from_word, mac_word,
};
use futures::future::BoxFuture;

use crate::error::DatapathError;

/// An endpoint as the datapath needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointDatapath {
    /// Endpoint id, not 0.
    pub id: u16,
    /// Security identity.
    pub identity: u32,
    /// Index of the host-side interface.
    pub ifindex: u32,
    /// Name of the host-side interface.
    pub ifname: String,
    /// MAC address inside the pod.
    pub mac: [u8; 6],
    /// MAC address of the host-side interface.
    pub node_mac: [u8; 6],
    /// IPv4 address of the pod.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address of the pod.
    pub ipv6: Option<Ipv6Addr>,
    /// Bits of [`datapath_abi::ep_flag`]; `LIVE` is added by `attach`.
    pub flags: u32,
    /// Cookie of the pod's network namespace, or zero.
    pub netns_cookie: u32,
    /// Device by which the pod's peers reach it: a secondary interface of a cloud; zero for the host's routes.
    pub parent_ifindex: u32,
}

impl Default for EndpointDatapath {
    fn default() -> EndpointDatapath {
        EndpointDatapath {
            id: 0,
            identity: 0,
            ifindex: 0,
            ifname: String::new(),
            mac: [0; 6],
            node_mac: [0; 6],
            ipv4: None,
            ipv6: None,
            flags: ep_flag::SOURCE_CHECK,
            netns_cookie: 0,
            parent_ifindex: 0,
        }
    }
}

impl EndpointDatapath {
    /// Returns the settings entry, for the policy map in `policy_slot`.
    pub fn config(&self, policy_slot: u32) -> EndpointConfig {
        EndpointConfig {
            id: self.id.into(),
            identity: self.identity,
            ifindex: self.ifindex,
            flags: self.flags | ep_flag::LIVE,
            ipv4: self.ipv4.map_or(0, ipv4_word),
            policy_slot,
            ipv6: self.ipv6.map_or([0; 4], ipv6_words),
            mac: mac_word(self.mac),
            node_mac: mac_word(self.node_mac),
            netns_cookie: self.netns_cookie,
            parent_ifindex: self.parent_ifindex,
        }
    }

    /// Returns the endpoint of a settings entry; `ifname` is empty, as the entry does not have it.
    pub fn from_config(row: &EndpointConfig) -> EndpointDatapath {
        EndpointDatapath {
            id: row.id as u16,
            identity: row.identity,
            ifindex: row.ifindex,
            ifname: String::new(),
            mac: mac_from_word(row.mac),
            node_mac: mac_from_word(row.node_mac),
            ipv4: (row.ipv4 != 0).then(|| ipv4_from_word(row.ipv4)),
            ipv6: (row.ipv6 != [0; 4]).then(|| ipv6_from_words(row.ipv6)),
            flags: row.flags & !ep_flag::LIVE,
            netns_cookie: row.netns_cookie,
            parent_ifindex: row.parent_ifindex,
        }
    }

    /// Returns its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }

    /// Returns the endpoint's entries of `cilium_lxc`, one per address.
    pub fn lxc_rows(&self) -> Vec<(EndpointKey, EndpointInfo)> {
        let info = EndpointInfo {
            ifindex: self.ifindex,
            lxc_id: self.id,
            mac: mac_word(self.mac),
            node_mac: mac_word(self.node_mac),
            sec_id: self.identity,
            parent_ifindex: self.parent_ifindex,
            ..EndpointInfo::default()
        };
        self.addresses().map(|ip| (EndpointKey::from(ip), info)).collect()
    }
}

/// The outcome of a prune.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The removed endpoints, which were not in the caller's set.
    pub endpoints: Vec<u16>,
    /// The number of removed pins and map entries that belonged to no known endpoint.
    pub leftovers: usize,
}

/// A change of one entry of a policy map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyWrite {
    /// The entry is created or replaced.
    Set(PolicyKey, PolicyEntry),
    /// The entry is deleted; a missing one is no error.
    Delete(PolicyKey),
}

/// Endpoints in the datapath.
///
/// Calls block for microseconds, [`Datapath::attach`] for 0.1 to 0.5 ms, and may be made from async code. They wait for
/// an RCU grace period only if more endpoints are created at once than policy maps are ready in the policy pool (256).
/// All are idempotent: repeat the call after an error or a crash. Calls may be concurrent; those for one endpoint are
/// serialized.
pub trait Datapath: Send + Sync + 'static {
    /// Resolves when programs are loaded and endpoints of the previous run are restored. Until then, other
    /// methods fail with [`DatapathError::NotReady`].
    fn ready(&self) -> BoxFuture<'static, ()>;

    /// Creates an endpoint in the datapath and attaches the program to its interface, in an order that enforces policy
    /// from the first packet: policy map and pin, settings, interface, program, addresses. Does not set the interface
    /// up or down. The policy map of a new endpoint is empty, which denies everything; that of a known one is kept.
    /// A call with other values changes the endpoint in place.
    fn attach(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError>;

    /// Sets the host-side interface up, so that the pod can send: the last step of creation.
    fn up(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError>;

    /// Deletes an endpoint: first its interface's entry, after which packets from it are dropped, then its settings
    /// entry, after which packets to it are dropped, then the other map entries and pins. The program stays attached to
    /// the interface and drops its packets. Returns true if the endpoint was known.
    fn detach(&self, id: u16) -> Result<bool, DatapathError>;

    /// Announces the id that the host endpoint will have. It is a constant of the host's programs, for their events, so
    /// their first load waits for it: call this as soon as the id is known, so that they need not be loaded twice.
    fn expect_host(&self, id: u16);

    /// Creates the policy map and pin of the host endpoint, and its settings entry with these bits of
    /// [`ep_flag`]. An empty map gets entries that allow everything, as has every map without
    /// host policies. Events of the host's programs carry the id from then on.
    fn attach_host(&self, id: u16, flags: u32) -> Result<(), DatapathError>;

    /// Returns the entries of an endpoint's policy map in the kernel, in no order.
    fn policy_rows(&self, id: u16) -> Result<Vec<(PolicyKey, PolicyEntry)>, DatapathError>;

    /// Returns the packets and bytes that entries of policy maps have decided, of all endpoints, in no order. An entry
    /// keeps its counts when its policy changes. Those of entries that decided longest ago may be gone: their map is
    /// bounded.
    fn policy_counts(&self) -> Result<Vec<(PolicyStatsKey, PolicyStatsValue)>, DatapathError>;

    /// Changes an endpoint's policy map in place, strictly in this order: packets meanwhile see the effect of some
    /// prefix of the writes. Consecutive writes of one kind are one system call. After an error, a prefix is done.
    fn write_policy(&self, id: u16, writes: &[PolicyWrite]) -> Result<(), DatapathError>;

    /// Replaces an endpoint's policy map by one with these entries: packets see the old entries or the new ones, never
    /// a mix. After an error the old entries are in force.
    fn swap_policy(&self, id: u16, rows: &[(PolicyKey, PolicyEntry)]) -> Result<(), DatapathError>;

    /// Returns the capacity of a policy map in entries (`bpf-policy-map-max`).
    fn policy_capacity(&self) -> usize;

    /// Whether the programs enforce policy on ICMP messages by their type (`enable-icmp-rules`).
    fn icmp_rules(&self) -> bool;

    /// Whether the programs enforce policy on the host endpoint (`enable-host-firewall`).
    fn host_firewall(&self) -> bool;

    /// Returns the endpoints in the kernel, ordered by id, without the host endpoint; `ifname` is empty.
    fn restored(&self) -> Result<Vec<EndpointDatapath>, DatapathError>;

    /// Removes pins and map entries of endpoints that are not in `known`, which must contain the host endpoint. Call it
    /// once all endpoints of the previous run are known.
    fn prune(&self, known: &BTreeSet<u16>) -> Result<Pruned, DatapathError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settings_entry_holds_the_whole_endpoint() {
        let endpoint = EndpointDatapath {
            id: 135,
            identity: 5,
            ifindex: 70_000,
            mac: [0xde, 0x21, 0xc3, 0x3d, 0xb9, 0x58],
            node_mac: [0xb2, 0x35, 0x5b, 0xba, 0xaa, 0xaf],
            ipv4: Some(Ipv4Addr::new(10, 244, 57, 201)),
            ipv6: Some("fd00::7".parse().unwrap()),
            netns_cookie: 4325,
            parent_ifindex: 3,
            ..EndpointDatapath::default()
        };
        let row = endpoint.config(17);
        assert_eq!((row.policy_slot, row.flags), (17, ep_flag::LIVE | ep_flag::SOURCE_CHECK));
        assert_eq!(EndpointDatapath::from_config(&row), endpoint);
        let rows = endpoint.lxc_rows();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].1.mac, 0x0000_58b9_3dc3_21de);
        assert_eq!(rows[1].0.ip(), endpoint.ipv6.map(IpAddr::V6));
    }
}
