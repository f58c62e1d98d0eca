//! `POST /apiary/policy-preview`: the flows that policies would cut, before they are applied.
//!
//! The body is a [`Request`] in JSON: manifests of policies of any kind, and flows, of which at least one end is an
//! endpoint of this node. Each manifest replaces the policy of its kind and name, or is new. The verdict on each flow is
//! computed by the rules in force and by those beside them; nothing is applied or stored. The response is an [`Answer`]
//! in JSON. An invalid manifest is refused (400) with the path of each error, then nothing is computed.
//!
//! Rules of proxies on requests are not considered: a flow that a proxy gets counts as allowed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use api::Response;
use datapath_abi::identity as reserved;
use identity::Prefixes;
use ipcache::Entry;
use ipnetwork::IpNetwork;
use k8s_tables::{PolicyKind, PolicyObject};
use policy_engine::{
    Decision, Direction, Engine, NamedPorts, Policy, Reason, ResolveError, Resolved, ResourceId, World, parse,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use statedb::{Snapshot, Table};

use crate::api::rest::protocol_name;
use crate::computation::repository::id;
use crate::model::endpoint::EndpointPolicy;
use crate::rounds::state::Shared;

/// The first id of identities that prefixes of the previewed policies would get; the allocator counts from the lower end
/// of the range.
const FIRST_NEW: u32 = (1 << 24) + (1 << 23);

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Policies, as manifests with `apiVersion` and `kind`.
    pub manifests: Vec<Value>,
    /// Flows.
    pub flows: Vec<Flow>,
}

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Flow {
    /// The sender.
    pub source: IpAddr,
    /// The receiver; behind a service, the backend.
    pub destination: IpAddr,
    /// The number of the protocol.
    pub protocol: u8,
    /// The destination port; of ICMP the type.
    pub port: u16,
}

/// The response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The revision of the rules in force.
    pub revision: u64,
    /// The policies of the request.
    pub policies: Vec<Previewed>,
    /// The number of flows with an end on this node, which the policies of this node decide about.
    pub decided: usize,
    /// The number of those that the rules in force deny.
    pub denied: usize,
    /// The flows that are allowed now and would not be.
    pub cut: Vec<Cut>,
}

/// A policy of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Previewed {
    /// Its name, as `cnp/shop/web`.
    pub policy: String,
    /// Whether there is none of this name in force.
    pub is_new: bool,
    /// Fields whose effect differs from what they suggest.
    pub warnings: Vec<String>,
}

/// A flow that would be cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// The index of the flow in the request.
    pub index: usize,
    /// The flow.
    #[serde(flatten)]
    pub flow: Flow,
    /// Name of the protocol.
    pub protocol_name: String,
    /// The pod that sends, as far as known.
    pub source_pod: Option<String>,
    /// Its identity.
    pub source_identity: u32,
    /// The pod that receives, as far as known.
    pub destination_pod: Option<String>,
    /// Its identity.
    pub destination_identity: u32,
    /// The endpoint whose policy would drop the flow.
    pub endpoint: u16,
    /// `ingress` or `egress`, of that endpoint.
    pub direction: &'static str,
    /// The reason, in one sentence.
    pub reason: String,
}

/// Tables and state that answers come from.
#[derive(Clone)]
pub(crate) struct Preview {
    pub(crate) shared: Shared,
    pub(crate) endpoints: Table<EndpointPolicy>,
    pub(crate) ipcache: Arc<Table<Entry>>,
    pub(crate) prefixes: Arc<Prefixes>,
}

/// An end of flows.
#[derive(Debug, Clone)]
struct Party {
    identity: u32,
    /// The identity that it would have: of a prefix that a previewed policy names.
    new_identity: u32,
    endpoint: Option<u16>,
    pod: Option<String>,
}

/// The verdicts of an endpoint by the rules in force, and by those of the preview.
type BothRules = [Result<Resolved, ResolveError>; 2];

impl Preview {
    /// Handles a request. Blocks while a round of the policy job holds the state.
    pub(crate) fn answer(&self, body: &[u8]) -> Response {
        let request: Request = match serde_json::from_slice(body) {
            Ok(request) => request,
            Err(error) => return Response::error(400, format!("the request cannot be decoded: {error}")),
        };
        match self.preview(&request) {
            Ok(answer) => Response::json(200, &answer),
            Err(refused) => Response::error(400, refused),
        }
    }

    fn preview(&self, request: &Request) -> Result<Answer, String> {
        let (policies, named) = self.read(&request.manifests)?;
        let snapshot = self.endpoints.snapshot();
        let parties = Parties::new(self, &snapshot, &named);
        let parties: HashMap<IpAddr, Party> = request
            .flows
            .iter()
            .flat_map(|flow| [flow.source, flow.destination])
            .map(|address| (address, parties.party(address)))
            .collect();

        let local = parties.values().filter_map(|party| party.endpoint);
        let subjects: BTreeMap<u16, (u32, NamedPorts)> = local
            .filter_map(|id| self.endpoints.get(&snapshot, EndpointPolicy::by_endpoint(id)))
            .map(|row| (row.subject.endpoint, (row.subject.identity, row.subject.named_ports.clone())))
            .collect();
        let identities = subjects.values().map(|(identity, _)| *identity).collect();
        let peers = parties.values().map(|party| party.identity).collect();
        let (before, revision, are_new) = {
            let state = self.shared.lock();
            let engine = state.core.engine();
            let is_new = |policy: &Policy| engine.policy(&policy.resource).is_none();
            let are_new: Vec<bool> = policies.iter().map(is_new).collect();
            (engine.excerpt(&identities, &peers), engine.revision(), are_new)
        };
        let mut after = before.excerpt(&identities, &peers);
        for (id, prefix) in (FIRST_NEW..).zip(&named) {
            after.add_identity(id, self.prefixes.labels(*prefix), NamedPorts::default());
        }
        for policy in &policies {
            after.set(policy.clone());
        }
        let resolved: BTreeMap<u16, BothRules> = subjects
            .iter()
            .map(|(endpoint, (identity, ports))| {
                let resolve = |engine: &Engine| engine.resolve(*identity, ports, usize::MAX);
                (*endpoint, [resolve(&before), resolve(&after)])
            })
            .collect();

        let mut answer = Answer {
            revision,
            policies: policies
                .iter()
                .zip(are_new)
                .map(|(policy, is_new)| Previewed::new(policy, is_new))
                .collect(),
            decided: 0,
            denied: 0,
            cut: Vec::new(),
        };
        for (index, flow) in request.flows.iter().enumerate() {
            let [source, destination] = [&parties[&flow.source], &parties[&flow.destination]];
            let sides = [(source, destination, Direction::Egress), (destination, source, Direction::Ingress)];
            let sides: Vec<_> = sides
                .into_iter()
                .filter_map(|(own, peer, direction)| {
                    Some((resolved.get(&own.endpoint?)?, own, peer, direction))
                })
                .collect();
            if sides.is_empty() {
                continue;
            }
            answer.decided += 1;
            let denies = |both: &BothRules, at: usize, peer, direction| match &both[at] {
                Ok(resolved) => {
                    resolved.lookup(direction, peer, flow.protocol, flow.port).decision != Decision::Allow
                }
                // Contradicting rules leave the policy as it is, others deny everything.
                Err(error) => !matches!(error, ResolveError::Conflict(_)),
            };
            if sides.iter().any(|(both, _, peer, direction)| denies(both, 0, peer.identity, *direction)) {
                answer.denied += 1;
                continue;
            }
            let first = sides
                .iter()
                .find(|(both, _, peer, direction)| denies(both, 1, peer.new_identity, *direction));
            let Some((both, own, peer, direction)) = first else { continue };
            answer.cut.push(Cut {
                index,
                flow: flow.clone(),
                protocol_name: protocol_name(flow.protocol),
                source_pod: source.pod.clone(),
                source_identity: source.identity,
                destination_pod: destination.pod.clone(),
                destination_identity: destination.identity,
                endpoint: own.endpoint.unwrap_or_default(),
                direction: if *direction == Direction::Egress { "egress" } else { "ingress" },
                reason: match &both[1] {
                    Ok(resolved) => {
                        let explained =
                            resolved.explain(*direction, peer.new_identity, flow.protocol, flow.port);
                        reason(&explained)
                    }
                    Err(error) => error.to_string(),
                },
            });
        }
        Ok(answer)
    }

    /// Returns the policies of the manifests, and the prefixes that need identities for them. The error lists all faults
    /// by document and path.
    fn read(&self, manifests: &[Value]) -> Result<(Vec<Policy>, BTreeSet<IpNetwork>), String> {
        let mut faults = Vec::new();
        let mut policies: BTreeMap<ResourceId, Policy> = BTreeMap::new();
        let settings = self.shared.lock().core.engine().settings().clone();
        for (number, manifest) in (1..).zip(manifests) {
            let (api_version, name) = (manifest["apiVersion"].as_str(), manifest["kind"].as_str());
            let Some(kind) = KINDS.into_iter().find(|kind| Some(kind.name()) == name) else {
                let kinds = KINDS.map(PolicyKind::name).join(", ");
                faults.push(format!("document {number}: kind: {}: is none of {kinds}", manifest["kind"]));
                continue;
            };
            let expected = kind.kind().api_version();
            if api_version != Some(expected) {
                let found = &manifest["apiVersion"];
                faults
                    .push(format!("document {number}: apiVersion: {found}: {} has {expected}", kind.name()));
                continue;
            }
            let decoded = PolicyObject::decode(kind, manifest).map_err(|refusal| refusal.to_string());
            let parsed = decoded.and_then(|object| {
                let policy = parse(id(&object).kind, &object.body.value(), &settings);
                policy.map_err(|refusal| refusal.to_string())
            });
            match parsed {
                Ok(policy) => {
                    let policy = self.shared.lock().repository.translated(policy);
                    if policies.contains_key(&policy.resource) {
                        faults.push(format!(
                            "document {number}: metadata.name: {} is there twice",
                            policy.resource
                        ));
                    }
                    policies.insert(policy.resource.clone(), policy);
                }
                Err(error) => faults.push(format!("document {number}: {error}")),
            }
        }
        if !faults.is_empty() {
            return Err(faults.join("\n"));
        }
        let policies: Vec<Policy> = policies.into_values().collect();
        let state = self.shared.lock();
        let named = policies.iter().flat_map(|policy| state.repository.prefixes_of(policy)).collect();
        Ok((policies, named))
    }
}

const KINDS: [PolicyKind; 4] = [
    PolicyKind::CiliumNetworkPolicy,
    PolicyKind::CiliumClusterwideNetworkPolicy,
    PolicyKind::NetworkPolicy,
    PolicyKind::ClusterNetworkPolicy,
];

/// Returns why a packet is denied: the rule, or that no rule allows it.
fn reason(explained: &policy_engine::Explanation) -> String {
    match &explained.row {
        Some((_, _, Reason::Rules(matches))) => {
            let rules: Vec<String> =
                matches.iter().map(|found| format!("{} {}", found.rule.resource, found.rule.path)).collect();
            format!("denied by {}", rules.join(", "))
        }
        _ => explained.to_string(),
    }
}

impl Previewed {
    fn new(policy: &Policy, is_new: bool) -> Previewed {
        let warnings = policy.warnings.iter().map(ToString::to_string).collect();
        Previewed { policy: policy.resource.to_string(), is_new, warnings }
    }
}

/// The ipcache by prefix, to find the longest one of an address.
struct Parties<'a> {
    entries: HashMap<IpNetwork, &'a Entry>,
    /// The prefixes of the previewed policies, with the identities that they would get.
    new: HashMap<IpNetwork, u32>,
    lengths: BTreeSet<u8>,
    /// The endpoint of the node.
    host: Option<u16>,
    worlds: [u32; 2],
}

impl<'a> Parties<'a> {
    fn new(preview: &'a Preview, snapshot: &'a Snapshot, named: &BTreeSet<IpNetwork>) -> Parties<'a> {
        let entries: HashMap<IpNetwork, &Entry> =
            preview.ipcache.all(snapshot).map(|entry| (entry.prefix, &**entry)).collect();
        let lengths = entries.keys().chain(named).map(IpNetwork::prefix).collect();
        let is_host = |row: &&statedb::Obj<EndpointPolicy>| row.subject.identity == reserved::HOST;
        let host = preview.endpoints.all(snapshot).find(is_host).map(|row| row.subject.endpoint);
        let settings = preview.shared.lock().core.engine().settings().clone();
        let world = |ip: IpAddr| match World::of(ip, settings.ipv4, settings.ipv6) {
            World::Ipv4 => reserved::WORLD_IPV4,
            World::Ipv6 => reserved::WORLD_IPV6,
            World::Any => reserved::WORLD,
        };
        let worlds = [world(IpAddr::from([0; 4])), world(IpAddr::from([0u16; 8]))];
        Parties { entries, new: named.iter().copied().zip(FIRST_NEW..).collect(), lengths, host, worlds }
    }

    fn party(&self, address: IpAddr) -> Party {
        let longest = self.lengths.iter().rev().filter_map(|length| {
            let prefix = IpNetwork::new(address, *length).ok()?;
            IpNetwork::new(prefix.network(), *length).ok()
        });
        let longest: Vec<IpNetwork> = longest.collect();
        let entry = longest.iter().find_map(|prefix| self.entries.get(prefix));
        let identity = entry.map_or(self.worlds[usize::from(address.is_ipv6())], |entry| entry.identity());
        let new = longest.iter().find_map(|prefix| Some((prefix.prefix(), *self.new.get(prefix)?)));
        let known = entry.map(|entry| entry.prefix.prefix());
        let new_identity = match new {
            // The claim of a policy gives way to those of pods and nodes, and to the identity that the prefix has.
            Some((length, new)) if known.is_none_or(|known| known < length) => new,
            _ => identity,
        };
        let endpoint =
            entry.and_then(|entry| entry.winner().resource.strip_prefix("endpoint/")?.parse().ok());
        let endpoint = endpoint.or(self.host.filter(|_| identity == reserved::HOST));
        let pod = entry.and_then(|entry| entry.winner().mapping.pod());
        Party {
            identity,
            new_identity,
            endpoint,
            pod: pod.map(|pod| format!("{}/{}", pod.namespace, pod.name)),
        }
    }
}
