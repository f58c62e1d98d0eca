//! The proxy's side of a snapshot: messages to decisions on queries.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use datapath_abi::identity::{HOST, WORLD, WORLD_IPV4, WORLD_IPV6};
use dns_proxy::{Client, Question};
use fqdn::Rules;
use identity::Range;
use ipnetwork::IpNetwork;

use crate::proto::{DnsPolicy, PolicyState};

/// The identity in a snapshot that stands for all servers.
pub(crate) const EVERY_SERVER: u32 = 0;

/// A snapshot that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadState {
    #[error("{0:02x?} is no address")]
    Address(Vec<u8>),
    #[error("{0:02x?} is no prefix")]
    Prefix(Vec<u8>),
    #[error("{what} {value} is out of range")]
    Range { what: &'static str, value: u64 },
}

/// The port of a server, as rules have it: endpoint, protocol, port, which is 0 for all.
type Port = (u16, u8, u16);

/// Endpoints, their rules, and identities of prefixes: the node as of one snapshot.
#[derive(Debug, Default)]
pub(crate) struct View {
    clients: HashMap<IpAddr, Client>,
    rules: HashMap<Port, Vec<PortRule>>,
    prefixes: HashMap<IpNetwork, u32>,
    /// The lengths of prefixes, longest first.
    lengths: [Vec<u8>; 2],
    /// Whether IPv4 and IPv6 are enabled.
    families: [bool; 2],
}

/// Names that may be asked for at servers with one of the identities.
#[derive(Debug)]
struct PortRule {
    servers: BTreeSet<u32>,
    names: Rules,
}

impl View {
    /// Returns the view of a snapshot.
    pub(crate) fn new(state: &PolicyState, families: [bool; 2]) -> Result<View, BadState> {
        let mut view = View { families, ..View::default() };
        for mapping in &state.identity_to_endpoint_mapping {
            for endpoint in &mapping.endpoint_info {
                let id = id("endpoint", endpoint.id)?;
                let client =
                    Client { endpoint: id, identity: mapping.identity, is_host: mapping.identity == HOST };
                for bytes in &endpoint.ip {
                    view.clients.insert(address(bytes)?, client);
                }
            }
        }
        let mut lengths = [BTreeSet::new(), BTreeSet::new()];
        for mapping in &state.identity_to_prefix_mapping {
            for bytes in &mapping.prefix {
                let prefix = prefix(bytes)?;
                lengths[usize::from(prefix.is_ipv6())].insert(prefix.prefix());
                view.prefixes.insert(prefix, mapping.identity);
            }
        }
        view.lengths = lengths.map(|lengths| lengths.into_iter().rev().collect());
        for policy in &state.egress_l7_dns_policy {
            view.add(policy)?;
        }
        Ok(view)
    }

    fn add(&mut self, policy: &DnsPolicy) -> Result<(), BadState> {
        let endpoint = id("endpoint", policy.source_endpoint_id.into())?;
        let mut ports: HashMap<Port, BTreeSet<u32>> = HashMap::new();
        for server in &policy.dns_servers {
            let port = id("port", server.dns_server_port.into())?;
            let value = server.dns_server_proto;
            let out_of_range = |_| BadState::Range { what: "protocol", value: value.into() };
            let protocol = u8::try_from(value).map_err(out_of_range)?;
            ports.entry((endpoint, protocol, port)).or_default().insert(server.dns_server_identity);
        }
        let names = match policy.dns_pattern.is_empty() {
            true => Rules::Every,
            false => Rules::new(policy.dns_pattern.iter().map(|pattern| ("", pattern.as_str()))),
        };
        for (port, servers) in ports {
            self.rules.entry(port).or_default().push(PortRule { servers, names: names.clone() });
        }
        Ok(())
    }

    pub(crate) fn client(&self, source: IpAddr) -> Option<Client> {
        self.clients.get(&source).copied()
    }

    /// Whether there are rules of a client for a server's port.
    pub(crate) fn has_rules(&self, source: IpAddr, protocol: u8, port: u16) -> bool {
        let rules = |client: Client| {
            [port, 0].iter().any(|port| self.rules.contains_key(&(client.endpoint, protocol, *port)))
        };
        self.client(source).is_some_and(rules)
    }

    pub(crate) fn allows(&self, question: Question<'_>) -> bool {
        let (protocol, server) = (question.transport.number(), question.server);
        let of_port = |port: u16| self.rules.get(&(question.endpoint, protocol, port));
        let identity = self.identity(server.ip());
        let allows = |rule: &PortRule| {
            let is_server = rule.servers.contains(&identity) || rule.servers.contains(&EVERY_SERVER);
            is_server && rule.names.allow(question.name)
        };
        [of_port(server.port()), of_port(0)].into_iter().flatten().flatten().any(allows)
    }

    pub(crate) fn may_see_client(&self, server: IpAddr) -> bool {
        let identity = self.identity(server);
        ![HOST, WORLD, WORLD_IPV4, WORLD_IPV6].contains(&identity) && !Range::PREFIXES.contains(identity)
    }

    /// Returns the endpoints.
    pub(crate) fn endpoints(&self) -> BTreeSet<u16> {
        self.clients.values().map(|client| client.endpoint).collect()
    }

    /// Returns an address of an endpoint, with its identity.
    pub(crate) fn source_of(&self, endpoint: u16) -> Option<(IpAddr, u32)> {
        let mut clients = self.clients.iter();
        clients.find(|(_, client)| client.endpoint == endpoint).map(|(ip, client)| (*ip, client.identity))
    }

    /// Returns the identity of an address: that of the longest prefix, or the world's.
    fn identity(&self, address: IpAddr) -> u32 {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        let found = lengths.iter().find_map(|bits| {
            let network = IpNetwork::new(address, *bits).ok()?;
            let prefix = IpNetwork::new(network.network(), *bits).ok()?;
            self.prefixes.get(&prefix)
        });
        found.copied().unwrap_or(match (address, self.families) {
            (IpAddr::V4(_), [_, true]) => WORLD_IPV4,
            (IpAddr::V6(_), [true, _]) => WORLD_IPV6,
            _ => WORLD,
        })
    }
}

fn id(what: &'static str, value: u64) -> Result<u16, BadState> {
    u16::try_from(value).map_err(|_| BadState::Range { what, value })
}

fn address(bytes: &[u8]) -> Result<IpAddr, BadState> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .map_err(|_| BadState::Address(bytes.to_vec()))
}

fn prefix(bytes: &[u8]) -> Result<IpNetwork, BadState> {
    let invalid = || BadState::Prefix(bytes.to_vec());
    let (bits, ip) = bytes.split_last().ok_or_else(invalid)?;
    let network = IpNetwork::new(address(ip).map_err(|_| invalid())?, *bits).map_err(|_| invalid())?;
    IpNetwork::new(network.network(), *bits).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use dns_proxy::Transport;

    use super::*;
    use crate::proto::{DnsServer, EndpointInfo, IdentityToEndpointMapping, IdentityToPrefixMapping};
    use crate::snapshot::{address_bytes, prefix_bytes};

    fn server(identity: u32, port: u32, proto: u32) -> DnsServer {
        DnsServer { dns_server_identity: identity, dns_server_port: port, dns_server_proto: proto }
    }

    fn policy(patterns: &[&str], servers: Vec<DnsServer>) -> DnsPolicy {
        let dns_pattern = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        DnsPolicy { source_endpoint_id: 7, dns_pattern, dns_servers: servers }
    }

    fn state() -> PolicyState {
        let info = EndpointInfo { id: 7, ip: vec![address_bytes([10, 0, 0, 7].into())] };
        let prefixes = |identity, texts: &[&str]| {
            let prefix = texts.iter().map(|text| prefix_bytes(&text.parse().unwrap())).collect();
            IdentityToPrefixMapping { identity, prefix }
        };
        PolicyState {
            egress_l7_dns_policy: vec![
                policy(&["*.a.io", "b.io."], vec![server(500, 53, 17), server(500, 5353, 6)]),
                policy(&[], vec![server(WORLD_IPV4, 53, 17)]),
                policy(&["c.io"], vec![server(EVERY_SERVER, 53, 17)]),
            ],
            identity_to_endpoint_mapping: vec![IdentityToEndpointMapping {
                identity: 1000,
                endpoint_info: vec![info],
            }],
            identity_to_prefix_mapping: vec![
                prefixes(500, &["10.0.0.0/8", "fd00::53/128"]),
                prefixes(501, &["10.1.0.53/32"]),
            ],
            ..PolicyState::default()
        }
    }

    #[test]
    fn a_snapshot_decides_as_the_agent_does() {
        let view = View::new(&state(), [true, true]).unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let client = Client { endpoint: 7, identity: 1000, is_host: false };
        assert_eq!(view.client(ip("10.0.0.7")), Some(client));
        assert_eq!(view.client(ip("10.0.0.8")), None);
        assert_eq!(view.source_of(7), Some((ip("10.0.0.7"), 1000)));
        assert_eq!((view.source_of(8), view.endpoints()), (None, BTreeSet::from([7])));
        assert!(view.has_rules(ip("10.0.0.7"), 6, 5353) && !view.has_rules(ip("10.0.0.7"), 6, 53));
        assert!(!view.has_rules(ip("10.0.0.8"), 17, 53));
        let allows = |endpoint, transport, server: &str, name| {
            view.allows(Question { endpoint, transport, server: server.parse().unwrap(), name })
        };
        let (udp, tcp) = (Transport::Udp, Transport::Tcp);
        assert!(allows(7, udp, "10.9.9.9:53", "x.a.io.") && allows(7, udp, "[fd00::53]:53", "b.io."));
        assert!(!allows(7, udp, "10.9.9.9:53", "x.b.io.") && !allows(8, udp, "10.9.9.9:53", "b.io."));
        assert!(!allows(7, udp, "10.1.0.53:53", "b.io."), "a longer prefix has another identity");
        assert!(allows(7, tcp, "10.9.9.9:5353", "b.io.") && !allows(7, tcp, "10.9.9.9:53", "b.io."));
        assert!(allows(7, udp, "192.0.2.1:53", "any.name."), "no pattern: all names");
        assert!(!allows(7, udp, "[2001:db8::1]:53", "any.name."), "the world of the other family");
        assert!(allows(7, udp, "[2001:db8::1]:53", "c.io.") && allows(7, udp, "10.1.0.53:53", "c.io."));
        assert!(view.may_see_client(ip("10.9.9.9")) && !view.may_see_client(ip("192.0.2.1")));
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let mut wrong = state();
        wrong.egress_l7_dns_policy[0].dns_servers[0].dns_server_port = 65_589;
        let error = View::new(&wrong, [true, false]).unwrap_err();
        assert_eq!(error, BadState::Range { what: "port", value: 65_589 });
        let mut wrong = state();
        wrong.identity_to_prefix_mapping[0].prefix.push(vec![10, 0, 0, 0, 33]);
        assert!(matches!(View::new(&wrong, [true, false]), Err(BadState::Prefix(_))));
        let mut wrong = state();
        wrong.identity_to_endpoint_mapping[0].endpoint_info[0].ip.push(vec![1; 5]);
        assert!(matches!(View::new(&wrong, [true, false]), Err(BadState::Address(_))));
    }
}
