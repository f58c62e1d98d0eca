//! The interface of the datapath for other cells: a trait, which tests replace by a fake.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use datapath_abi::{
    EndpointConfig, EndpointInfo, EndpointKey, PolicyEntry, PolicyKey, ep_flag, ipv4_from_word, ipv4_word,
    ipv6_from_words, ipv6_words, mac_from_word, mac_word,
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
        }
    }
}

impl EndpointDatapath {
    /// Returns the settings entry, for a policy map in that slot.
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
            rt_info: 0,
            reserved: 0,
        }
    }

    /// Returns the endpoint of a settings entry, which does not have the interface's name.
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
        }
    }

    /// Returns its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }

    /// Returns its entries of `cilium_lxc`, one an address.
    pub fn lxc_rows(&self) -> Vec<(EndpointKey, EndpointInfo)> {
        let info = EndpointInfo {
            ifindex: self.ifindex,
            lxc_id: self.id,
            mac: mac_word(self.mac),
            node_mac: mac_word(self.node_mac),
            sec_id: self.identity,
            ..EndpointInfo::default()
        };
        self.addresses().map(|ip| (EndpointKey::from(ip), info)).collect()
    }
}

/// The outcome of a prune.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Endpoints that the datapath had and that are unknown.
    pub endpoints: Vec<u16>,
    /// Pins and map entries that no known endpoint owns.
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
/// Calls block for microseconds ([`Datapath::attach`] 0.1 to 0.5 ms) and may be made from async code; none waits for a
/// grace period unless more endpoints are created at once than spare policy maps are ready (256). All are idempotent:
/// after an error or a crash make the call again. Calls may overlap; those about one endpoint wait for each other.
pub trait Datapath: Send + Sync + 'static {
    /// Resolves when programs are loaded and endpoints of the previous run are restored. Await it before the first call of
    /// another method, which fails with [`DatapathError::NotReady`] before.
    fn ready(&self) -> BoxFuture<'static, ()>;

    /// Makes an endpoint known to the datapath and attaches the program to its interface, in the order in which the
    /// first packet already meets policy: policy map and pin, settings, interface, program, addresses. The interface
    /// stays down or up as it is. The policy map of a new endpoint is empty, which denies everything; that of a known
    /// one stays as it is. Called again with other values it changes the endpoint in place.
    fn attach(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError>;

    /// Switches the host-side interface on, which lets the pod send: the last step of creation.
    fn up(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError>;

    /// Deletes an endpoint: packets from it are dropped from the first step on, packets to it from the second; then map
    /// entries and pins are removed. The interface keeps the program, which drops its packets. True if the endpoint was
    /// known.
    fn detach(&self, id: u16) -> Result<bool, DatapathError>;

    /// Announces the id that the host endpoint will have. The first load of programs waits for it, as events of the host's
    /// programs carry it: announced as soon as it is known, programs are loaded once.
    fn expect_host(&self, id: u16);

    /// Creates the policy map and pin of the host endpoint, with entries that allow everything. Events of the host's
    /// programs carry the id from then on.
    fn attach_host(&self, id: u16) -> Result<(), DatapathError>;

    /// Returns the entries of an endpoint's policy map in the kernel, in no order.
    fn policy_rows(&self, id: u16) -> Result<Vec<(PolicyKey, PolicyEntry)>, DatapathError>;

    /// Changes an endpoint's policy map in place, strictly in this order: packets meanwhile see some first part of the
    /// writes done. Neighbouring writes of a kind are one system call. After an error some first part is done.
    fn write_policy(&self, id: u16, writes: &[PolicyWrite]) -> Result<(), DatapathError>;

    /// Replaces an endpoint's policy map by one with these entries: packets see the old entries or the new ones, never
    /// a mix. After an error the old entries are in force.
    fn swap_policy(&self, id: u16, rows: &[(PolicyKey, PolicyEntry)]) -> Result<(), DatapathError>;

    /// Returns the capacity of a policy map in entries (`bpf-policy-map-max`).
    fn policy_capacity(&self) -> usize;

    /// Whether the programs judge ICMP messages by their type (`enable-icmp-rules`).
    fn icmp_rules(&self) -> bool;

    /// Returns the endpoints in the kernel, by id, without the host endpoint and without names of interfaces.
    fn restored(&self) -> Result<Vec<EndpointDatapath>, DatapathError>;

    /// Removes pins and map entries that belong to none of these endpoints (the host endpoint's id among them). Call it
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
