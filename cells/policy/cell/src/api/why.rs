//! `GET /apiary/why`: whether a source may reach a destination, and which rule decides.
//!
//! The verdict is computed from the entries of the kernel's policy map, which decide about packets; the engine adds the
//! rules behind these entries. Established connections, services and address translation are not considered.
//!
//! Query: `src`, `dst`: an endpoint's id, `namespace/name` of a pod, an address, or `identity:<id>`; `protocol`: `tcp`
//! (default), `udp`, `sctp`, `icmp`, `icmpv6` or a number; `port`: the destination port, for ICMP the type (default 0).
//! The response is an [`Answer`] in JSON; 400 and 404 have a text.

use std::net::IpAddr;
use std::sync::Arc;

use api::{Query, Response};
use datapath_abi::{PolicyEntry, identity as reserved};
use datapath_api::Datapath;
use identity::Identity;
use ipcache::Entry;
use ipnetwork::IpNetwork;
use policy_engine::{Direction, Reason};
use serde::Serialize;
use statedb::{Snapshot, Table};

use crate::api::rest::protocol_name;
use crate::computation::computed::kernel_row;
use crate::model::endpoint::EndpointPolicy;
use crate::model::rows::{RowKey, Rows, Verdict};
use crate::rounds::metrics::audited;
use crate::rounds::state::{Shared, State};

/// The response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The sender.
    pub source: Party,
    /// The receiver.
    pub destination: Party,
    /// Name of the protocol.
    pub protocol: String,
    /// Destination port, or type of ICMP.
    pub port: u16,
    /// Whether packets get from one to the other: both decisions allow.
    pub allowed: bool,
    /// The verdict of the sender's policy; `None` if it is not an endpoint of this node.
    pub egress: Option<Decision>,
    /// The verdict of the receiver's policy; `None` if it is not an endpoint of this node.
    pub ingress: Option<Decision>,
}

/// The sender or the receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Party {
    /// Its name in the query.
    pub name: String,
    /// Namespace and name of the pod, as far as known.
    pub pod: Option<String>,
    /// Its endpoint, if it is on this node.
    pub endpoint: Option<u16>,
    /// Its addresses, as far as known.
    pub addresses: Vec<String>,
    /// Its identity.
    pub identity: u32,
    /// The labels of its identity.
    pub labels: Vec<String>,
}

/// The verdict of an endpoint's policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The endpoint that has the policy.
    pub endpoint: u16,
    /// Whether the packet passes.
    pub allowed: bool,
    /// Whether it passes only because the endpoint is in audit mode (`PolicyAuditMode`): its policy denies it.
    pub audited: bool,
    /// The drop reason as monitors print it, with its code; `None` if it passes.
    pub drop: Option<Drop>,
    /// The reason, in one sentence.
    pub reason: String,
    /// Whether policy is enforced in this direction.
    pub enforced: bool,
    /// The rules behind the row, each with the selector by which it applies to the peer.
    pub rules: Vec<RuleMatch>,
    /// The entry of the policy map that decides; `None` if no entry matches.
    pub entry: Option<MapEntry>,
    /// The revision of the policies in the kernel.
    pub revision: u64,
    /// The desired revision: if it is larger than `revision`, a write is pending.
    pub wanted_revision: u64,
    /// Whether the kernel's entry differs from the computed one: another process has written it, or an update is in
    /// progress.
    pub differs: bool,
}

/// A drop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drop {
    /// Its code.
    pub code: u8,
    /// Its text.
    pub text: String,
}

/// A rule that matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleMatch {
    /// The object: `cnp/shop/web`.
    pub object: String,
    /// Files and documents that contain it.
    pub origins: Vec<String>,
    /// The place in the object: `spec.ingress[0]`.
    pub path: String,
    /// `allow` or `deny`.
    pub action: &'static str,
    /// The selector that selects the peer.
    pub selector: String,
    /// Labels of the rule.
    pub labels: Vec<String>,
    /// The user's text for the log of verdicts; empty if none is given.
    pub log: String,
}

/// A row of the policy map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MapEntry {
    /// Identity of the peer, 0 for all peers.
    pub identity: u32,
    /// `TCP`, or `ANY`.
    pub protocol: String,
    /// First port.
    pub first_port: u16,
    /// Last port.
    pub last_port: u16,
    /// Whether it denies.
    pub deny: bool,
    /// Its precedence.
    pub precedence: u32,
    /// The port of the proxy that the packet passes through, 0 for none.
    pub proxy_port: u16,
    /// The authentication that the packet needs, as in the map.
    pub auth_type: u8,
    /// The number that verdict events have of it; 0 if its rules have no text for the log of verdicts.
    pub cookie: u32,
    /// The texts that the number stands for.
    pub log: Vec<Arc<str>>,
}

/// The error of a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("parameter {name} is missing: give {expected}")]
    Missing { name: &'static str, expected: &'static str },
    #[error("parameter {name}: '{value}' is wrong: give {expected}")]
    Wrong { name: &'static str, value: String, expected: &'static str },
    #[error("nothing is known of '{0}': no endpoint of this node and no entry of the ipcache")]
    Unknown(String),
    #[error("unable to read the policy map of endpoint {endpoint}: {error}")]
    Kernel { endpoint: u16, error: String },
}

/// The inputs of a response.
#[derive(Clone)]
pub(crate) struct Why {
    pub(crate) shared: Shared,
    pub(crate) endpoints: Table<EndpointPolicy>,
    pub(crate) identities: Arc<Table<Identity>>,
    pub(crate) ipcache: Arc<Table<Entry>>,
    pub(crate) datapath: Arc<dyn Datapath>,
}

const PARTY: &str = "an endpoint's id, namespace/name of a pod, an address, or identity:<number>";

impl Why {
    /// Handles a request. Blocks while it reads two policy maps.
    pub(crate) fn answer(&self, query: &Query) -> Response {
        match self.ask(query) {
            Ok(answer) => Response::json(200, &answer),
            Err(error @ Unanswered::Unknown(_)) => Response::error(404, error.to_string()),
            Err(error @ Unanswered::Kernel { .. }) => Response::error(500, error.to_string()),
            Err(error) => Response::error(400, error.to_string()),
        }
    }

    fn ask(&self, query: &Query) -> Result<Answer, Unanswered> {
        let snapshot = self.endpoints.snapshot();
        let party = |name: &'static str| {
            let value = query.get(name).filter(|value| !value.is_empty());
            self.party(&snapshot, name, value.ok_or(Unanswered::Missing { name, expected: PARTY })?)
        };
        let (source, destination) = (party("src")?, party("dst")?);
        let protocol = protocol(query.get("protocol").unwrap_or("tcp"))?;
        let port = query.get("port").unwrap_or("0");
        let port = port.parse().map_err(|_| Unanswered::Wrong {
            name: "port",
            value: port.to_owned(),
            expected: "a number from 0 to 65535",
        })?;
        let decide = |of: &Party, peer: &Party, direction| {
            let endpoint = of.endpoint.filter(|_| of.identity != reserved::HOST);
            endpoint
                .map(|id| self.decide(&snapshot, id, peer.identity, direction, protocol, port))
                .transpose()
        };
        let egress = decide(&source, &destination, Direction::Egress)?;
        let ingress = decide(&destination, &source, Direction::Ingress)?;
        let allowed = [&egress, &ingress].into_iter().flatten().all(|decision| decision.allowed);
        Ok(Answer { source, destination, protocol: protocol_name(protocol), port, allowed, egress, ingress })
    }

    /// Resolves a party of the query.
    fn party(&self, snapshot: &Snapshot, parameter: &'static str, name: &str) -> Result<Party, Unanswered> {
        let wrong = || Unanswered::Wrong { name: parameter, value: name.to_owned(), expected: PARTY };
        let unknown = || Unanswered::Unknown(name.to_owned());
        let entries = || self.ipcache.all(snapshot).map(|entry| &**entry);
        let mut party = Party { name: name.to_owned(), ..Party::default() };
        if let Some(number) = name.strip_prefix("identity:") {
            party.identity = number.parse().map_err(|_| wrong())?;
        } else if let Ok(endpoint) = name.parse::<u16>() {
            let row = self.endpoints.get(snapshot, EndpointPolicy::by_endpoint(endpoint));
            party.identity = row.ok_or_else(unknown)?.subject.identity;
            party.take(entries().filter(|entry| endpoint_of(entry) == Some(endpoint)));
            party.endpoint = Some(endpoint);
        } else if let Ok(address) = name.parse::<IpAddr>() {
            let covers = |entry: &&Entry| entry.prefix.contains(address);
            let longest = entries().filter(covers).max_by_key(|entry| entry.prefix.prefix());
            let longest = longest.ok_or_else(unknown)?;
            party.identity = longest.identity();
            party.take(std::iter::once(longest));
            party.addresses = vec![address.to_string()];
        } else if let Some((namespace, pod)) = name.split_once('/') {
            let is = |entry: &&Entry| {
                let of = entry.winner().mapping.pod();
                of.is_some_and(|of| &*of.namespace == namespace && &*of.name == pod)
            };
            let first = entries().find(is).ok_or_else(unknown)?;
            party.identity = first.identity();
            party.take(entries().filter(is));
        } else {
            return Err(wrong());
        }
        let known = self.identities.get(snapshot, Identity::by_id(party.identity));
        party.labels = known.map_or_else(Vec::new, |row| row.labels.texts());
        Ok(party)
    }

    fn decide(
        &self,
        snapshot: &Snapshot,
        endpoint: u16,
        peer: u32,
        direction: Direction,
        protocol: u8,
        port: u16,
    ) -> Result<Decision, Unanswered> {
        let rows = self.datapath.policy_rows(endpoint);
        let rows = rows.map_err(|error| Unanswered::Kernel { endpoint, error: error.to_string() })?;
        let rows: Rows = rows.into_iter().collect();
        let (egress, l4) = (direction == Direction::Egress, u32::from(protocol) << 16 | u32::from(port));
        let found = rows.deciding(egress, peer, l4);
        let verdict = rows.verdict(egress, peer, l4);
        let row = self.endpoints.get(snapshot, EndpointPolicy::by_endpoint(endpoint));
        // No pair of identities is authenticated: there is no handshake yet.
        let needs_auth = matches!(verdict, Verdict::Allow { auth_type, .. } if auth_type != 0);
        let passes = verdict.passes() && !needs_auth;
        let audited = !passes && audited(&*self.datapath).contains(&endpoint);
        let drop = match found {
            _ if passes || audited => None,
            Some(_) if needs_auth => Some(datapath_abi::drop::AUTH_REQUIRED),
            Some(_) => Some(datapath_abi::drop::POLICY_DENY),
            None => Some(datapath_abi::drop::POLICY_DENIED),
        };
        let mut decision = Decision {
            endpoint,
            allowed: passes || audited,
            audited,
            drop: drop.map(|code| Drop {
                code,
                text: datapath_abi::drop::label(code).unwrap_or_default().to_owned(),
            }),
            reason: String::new(),
            enforced: row.is_none_or(|row| if egress { row.egress_enforced } else { row.ingress_enforced }),
            rules: Vec::new(),
            entry: found.map(|(key, entry)| MapEntry::new(key, entry)),
            revision: row.map_or(0, |row| row.realized),
            wanted_revision: row.map_or(0, |row| row.revision),
            differs: false,
        };
        let state = self.shared.lock();
        decision.explain(&state, row.map(|row| &**row), direction, peer, protocol, port, found);
        Ok(decision)
    }
}

impl Party {
    /// Resolves an address by the ipcache.
    fn take<'a>(&mut self, entries: impl Iterator<Item = &'a Entry>) {
        for entry in entries {
            self.endpoint = self.endpoint.or(endpoint_of(entry));
            let pod = entry.winner().mapping.pod();
            self.pod = self.pod.take().or(pod.map(|pod| format!("{}/{}", pod.namespace, pod.name)));
            self.addresses.push(text(entry.prefix));
        }
    }
}

/// Returns the prefix as text, a single address without its length.
fn text(prefix: IpNetwork) -> String {
    let whole = if prefix.is_ipv4() { 32 } else { 128 };
    if prefix.prefix() == whole { prefix.ip().to_string() } else { prefix.to_string() }
}

/// Returns the endpoint of this node that has claimed the address.
pub(crate) fn endpoint_of(entry: &Entry) -> Option<u16> {
    entry.winner().resource.strip_prefix("endpoint/")?.parse().ok()
}

impl Decision {
    /// Returns the reason: the rules behind the entry that decides.
    #[expect(clippy::too_many_arguments, reason = "a packet is many things")]
    fn explain(
        &mut self,
        state: &State,
        row: Option<&EndpointPolicy>,
        direction: Direction,
        peer: u32,
        protocol: u8,
        port: u16,
        found: Option<(RowKey, PolicyEntry)>,
    ) {
        if let Some(entry) = &mut self.entry {
            let texts = state.core.log_cookies().texts(entry.cookie);
            entry.log = texts.map_or_else(Vec::new, |texts| texts.to_vec());
        }
        let computed = state.core.computed(self.endpoint).map(|(_, computed)| computed);
        let Some(resolved) = computed.and_then(|computed| computed.resolved.as_ref()) else {
            let is_foreign = |(key, entry): (RowKey, PolicyEntry)| {
                computed.is_none_or(|computed| computed.rows.get(&key) != Some(&entry))
            };
            self.differs = !self.allowed && found.is_some_and(is_foreign);
            let pending = "its policy has not been computed: not all sources have been read";
            let error = row.and_then(|row| row.error.as_deref());
            self.reason = error.unwrap_or(pending).to_owned();
            return;
        };
        let explained = resolved.explain(direction, peer, protocol, port);
        let computed = explained
            .row
            .as_ref()
            .map(|(key, row, _)| kernel_row(key, row, state.core.log_cookies().of_row(resolved, row)));
        let kernel = found;
        self.differs = computed != kernel;
        self.reason = match self.differs {
            true => format!("the kernel's row is not the computed one, which says: {explained}"),
            false => explained.to_string(),
        };
        let Some((_, _, Reason::Rules(matches))) = explained.row else { return };
        for found in matches {
            let rule = &found.rule;
            let origins = state.repository.origins(&rule.resource);
            self.rules.push(RuleMatch {
                object: rule.resource.to_string(),
                origins: origins.iter().map(|origin| origin.to_string()).collect(),
                path: rule.path.to_string(),
                action: match rule.action {
                    policy_engine::Action::Allow => "allow",
                    policy_engine::Action::Deny => "deny",
                    policy_engine::Action::Pass => "pass",
                },
                selector: found.selector.to_string(),
                labels: rule.labels.to_vec(),
                log: rule.log.to_string(),
            });
        }
    }
}

impl MapEntry {
    fn new(key: RowKey, entry: PolicyEntry) -> MapEntry {
        let (first_port, last_port) = key.ports();
        MapEntry {
            identity: key.peer,
            protocol: if key.bits == 0 { "ANY".to_owned() } else { protocol_name(key.protocol()) },
            first_port,
            last_port,
            deny: entry.deny(),
            precedence: entry.precedence,
            proxy_port: u16::from_be(entry.proxy_port),
            auth_type: entry.auth_type,
            cookie: entry.cookie,
            log: Vec::new(),
        }
    }
}

/// Returns the number of a protocol by its name or digits.
pub(crate) fn protocol(text: &str) -> Result<u8, Unanswered> {
    let number = match text.to_ascii_lowercase().as_str() {
        "icmp" | "icmpv4" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmpv6" | "icmp6" => 58,
        "sctp" => 132,
        other => other.parse().map_err(|_| Unanswered::Wrong {
            name: "protocol",
            value: text.to_owned(),
            expected: "tcp, udp, sctp, icmp, icmpv6 or a number",
        })?,
    };
    Ok(number)
}
