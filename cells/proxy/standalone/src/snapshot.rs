//! The agent's side of a snapshot: tables to messages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use endpoints::Endpoint;
use fqdn::Rules;
use fqdn_names::{dns_rules, selects_every_server};
use ipcache::Entry;
use ipnetwork::IpNetwork;
use policy::PeerSelector;
use policy_engine::{Direction, Parser};
use proxy_ports::EndpointRedirect;
use statedb::{Snapshot, Table, Watch};

use crate::proto::{
    DnsPolicy, DnsServer, EndpointInfo, IdentityToEndpointMapping, IdentityToPrefixMapping, PolicyState,
};
use crate::view::EVERY_SERVER;

/// Identities that stand for all servers in the snapshot, for Cilium's proxy. Its messages are limited to 4 MiB.
const MAX_LISTED_SERVERS: usize = 1000;

/// The tables that decide on queries.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) redirects: Table<EndpointRedirect>,
    pub(crate) selectors: Arc<Table<PeerSelector>>,
    pub(crate) ipcache: Arc<Table<Entry>>,
}

/// The watches of a snapshot's tables.
pub(crate) struct Watches([Watch; 4]);

impl Watches {
    /// Waits for a change of any table.
    pub(crate) async fn changed(&self) {
        let [a, b, c, d] = &self.0;
        tokio::select! {
            () = a.changed() => {}
            () = b.changed() => {}
            () = c.changed() => {}
            () = d.changed() => {}
        }
    }
}

impl Tables {
    /// Returns the snapshot without an id, in a stable order, and watches on its tables. Linear in their rows.
    pub(crate) fn state(&self) -> (PolicyState, Watches) {
        let snapshot = self.redirects.snapshot();
        let watches = Watches([
            self.endpoints.all_watch(&snapshot).1,
            self.redirects.all_watch(&snapshot).1,
            self.selectors.all_watch(&snapshot).1,
            self.ipcache.all_watch(&snapshot).1,
        ]);
        let prefixes = self.prefixes(&snapshot);
        let known: Vec<u32> = prefixes.keys().copied().collect();
        let rows = self.redirects.all(&snapshot).filter(|row| is_dns(row));
        let state = PolicyState {
            egress_l7_dns_policy: rows.flat_map(|row| self.policies(&snapshot, row, &known)).collect(),
            request_id: String::new(),
            identity_to_endpoint_mapping: self.endpoints_by_identity(&snapshot),
            identity_to_prefix_mapping: prefixes
                .into_iter()
                .map(|(identity, prefixes)| {
                    let prefix = prefixes.into_iter().map(|prefix| prefix_bytes(&prefix)).collect();
                    IdentityToPrefixMapping { identity, prefix }
                })
                .collect(),
        };
        (state, watches)
    }

    /// Whether rules allow an endpoint to ask any server for a canonical name.
    pub(crate) fn allow_name(&self, endpoint: u16, name: &str) -> bool {
        let snapshot = self.redirects.snapshot();
        let mut rows = self
            .redirects
            .prefix(&snapshot, EndpointRedirect::of_endpoint(endpoint))
            .filter(|row| is_dns(row));
        rows.any(|row| row.rules.iter().any(|rule| dns_rules(&rule.rules).allow(name)))
    }

    fn prefixes(&self, snapshot: &Snapshot) -> BTreeMap<u32, BTreeSet<IpNetwork>> {
        let mut prefixes: BTreeMap<u32, BTreeSet<IpNetwork>> = BTreeMap::new();
        for entry in self.ipcache.all(snapshot) {
            prefixes.entry(entry.identity()).or_default().insert(entry.prefix);
        }
        prefixes
    }

    fn endpoints_by_identity(&self, snapshot: &Snapshot) -> Vec<IdentityToEndpointMapping> {
        let mut by_identity: BTreeMap<u32, Vec<EndpointInfo>> = BTreeMap::new();
        for endpoint in self.endpoints.all(snapshot) {
            let record = &endpoint.record;
            let identity = match endpoint.applied_identity {
                0 => record.identity(),
                identity => identity,
            };
            let ip = record.addresses().map(address_bytes).collect();
            by_identity.entry(identity).or_default().push(EndpointInfo { id: record.id.into(), ip });
        }
        let mapping = |(identity, endpoint_info)| IdentityToEndpointMapping { identity, endpoint_info };
        by_identity.into_iter().map(mapping).collect()
    }

    /// Returns the policies of a redirect. A rule that allows no name has none, as one without a pattern allows all.
    fn policies(&self, snapshot: &Snapshot, row: &EndpointRedirect, known: &[u32]) -> Vec<DnsPolicy> {
        let server = |identity: u32| DnsServer {
            dns_server_identity: identity,
            dns_server_port: row.redirect.port.into(),
            dns_server_proto: row.redirect.protocol.into(),
        };
        let policy = |rule: &proxy_ports::PeerRules| {
            let dns_pattern = match dns_rules(&rule.rules) {
                Rules::Every => Vec::new(),
                Rules::Names(patterns) if patterns.is_empty() => return None,
                Rules::Names(patterns) => patterns.iter().map(|pattern| pattern.text().to_owned()).collect(),
            };
            let dns_servers: Vec<DnsServer> = match selects_every_server(&rule.selector) {
                true => {
                    let listed = known.iter().copied().take(MAX_LISTED_SERVERS);
                    [EVERY_SERVER].into_iter().chain(listed).map(server).collect()
                }
                false => {
                    let text = (&*rule.selector).into();
                    let selector = self.selectors.get(snapshot, PeerSelector::by_text(&text))?;
                    selector.0.identities.iter().copied().map(server).collect()
                }
            };
            Some(DnsPolicy { source_endpoint_id: row.endpoint.into(), dns_pattern, dns_servers })
        };
        row.rules.iter().filter_map(policy).collect()
    }
}

fn is_dns(row: &EndpointRedirect) -> bool {
    row.redirect.parser == Parser::Dns && row.redirect.direction == Direction::Egress
}

pub(crate) fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

pub(crate) fn prefix_bytes(prefix: &IpNetwork) -> Vec<u8> {
    let mut bytes = address_bytes(prefix.ip());
    bytes.push(prefix.prefix());
    bytes
}
