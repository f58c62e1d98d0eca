//! The semantics of policies as a naive model: plain loops over the rules, no identities, no maps, no precedence.
//! It shares no code with the agent, so that it finds the agent's errors.

use std::net::IpAddr;

use serde_json::{Value, json};

/// A sender or receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Party {
    /// A pod, by its place in [`World::pods`].
    Pod(usize),
    /// A host outside of the node, by its place in [`World::outside`].
    Outside(usize),
    /// The node itself.
    Host,
}

/// A pod as rules see it.
#[derive(Clone, Debug)]
pub(crate) struct PodLabels {
    pub(crate) namespace: &'static str,
    pub(crate) name: &'static str,
    pub(crate) labels: &'static [(&'static str, &'static str)],
    /// Ports with a name: name, protocol, number.
    pub(crate) ports: &'static [(&'static str, &'static str, u16)],
}

/// All parties.
#[derive(Clone, Debug)]
pub(crate) struct World {
    /// Namespaces with their label `team`.
    pub(crate) namespaces: &'static [(&'static str, &'static str)],
    pub(crate) pods: Vec<PodLabels>,
    /// Addresses of the hosts outside, IPv4 and IPv6.
    pub(crate) outside: Vec<[IpAddr; 2]>,
}

/// Protocol and port of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum L4 {
    Udp(u16),
    Tcp(u16),
    /// An echo request of the flow's family.
    Ping,
}

/// One flow that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) from: Party,
    pub(crate) to: Party,
    pub(crate) ipv6: bool,
    pub(crate) l4: L4,
}

/// One requirement on a label.
#[derive(Clone, Debug)]
pub(crate) enum Requirement {
    Is(&'static str, &'static str),
    In(&'static str, Vec<&'static str>),
    NotIn(&'static str, Vec<&'static str>),
    Exists(&'static str),
    DoesNotExist(&'static str),
}

/// The namespaces of a peer.
#[derive(Clone, Debug)]
pub(crate) enum Where {
    /// Not specified: the policy's own, or any for a policy of the cluster.
    Unsaid,
    Namespace(&'static str),
    Team(&'static str),
}

/// Peers of an entry: one kind, several of it.
#[derive(Clone, Debug)]
pub(crate) enum Peers {
    /// The field is absent.
    Absent,
    /// An empty list.
    Nobody,
    Endpoints(Vec<(Vec<Requirement>, Where)>),
    Cidrs(Vec<(Prefix, Vec<Prefix>)>),
    Entities(Vec<&'static str>),
}

/// A prefix as text and as numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix(pub(crate) &'static str);

/// The protocols of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Ports {
    Absent,
    /// Protocol (`ANY` too), first port (0 for all), last port.
    Numbers(Vec<(&'static str, u16, Option<u16>)>),
    /// Protocol (`ANY` too) and name.
    Named(Vec<(&'static str, &'static str)>),
    /// Family and type.
    Icmp(Vec<(bool, u8)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) ingress: bool,
    pub(crate) deny: bool,
    pub(crate) peers: Peers,
    pub(crate) ports: Ports,
}

#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) name: String,
    /// None for one of the whole cluster.
    pub(crate) namespace: Option<&'static str>,
    pub(crate) subject: Vec<Requirement>,
    pub(crate) entries: Vec<Entry>,
    /// `enableDefaultDeny`, for ingress and for egress.
    pub(crate) default_deny: [Option<bool>; 2],
}

impl Prefix {
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        let (net, length) = self.0.split_once('/').unwrap();
        let length: u32 = length.parse().unwrap();
        match (net.parse().unwrap(), address) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                length == 0 || (u32::from(net) ^ u32::from(address)) >> (32 - length) == 0
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                length == 0 || (u128::from(net) ^ u128::from(address)) >> (128 - length) == 0
            }
            _ => false,
        }
    }
}

fn holds(requirement: &Requirement, labels: &[(&str, &str)]) -> bool {
    let value = |key: &str| labels.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
    match requirement {
        Requirement::Is(key, wanted) => value(key) == Some(wanted),
        Requirement::In(key, wanted) => value(key).is_some_and(|value| wanted.contains(&value)),
        Requirement::NotIn(key, unwanted) => value(key).is_none_or(|value| !unwanted.contains(&value)),
        Requirement::Exists(key) => value(key).is_some(),
        Requirement::DoesNotExist(key) => value(key).is_none(),
    }
}

impl World {
    fn team(&self, namespace: &str) -> &str {
        self.namespaces.iter().find(|(name, _)| *name == namespace).unwrap().1
    }

    fn selects(&self, policy: &Policy, pod: usize) -> bool {
        let pod = &self.pods[pod];
        policy.namespace.is_none_or(|namespace| namespace == pod.namespace)
            && policy.subject.iter().all(|requirement| holds(requirement, pod.labels))
    }

    fn is_peer(&self, policy: &Policy, peers: &Peers, peer: Party, ipv6: bool) -> bool {
        match peers {
            Peers::Absent => true,
            Peers::Nobody => false,
            Peers::Endpoints(selectors) => {
                let Party::Pod(pod) = peer else { return false };
                let pod = &self.pods[pod];
                selectors.iter().any(|(requirements, place)| {
                    let here = match place {
                        Where::Unsaid => policy.namespace.is_none_or(|namespace| namespace == pod.namespace),
                        Where::Namespace(namespace) => *namespace == pod.namespace,
                        Where::Team(team) => *team == self.team(pod.namespace),
                    };
                    here && requirements.iter().all(|requirement| holds(requirement, pod.labels))
                })
            }
            Peers::Cidrs(prefixes) => {
                let Party::Outside(host) = peer else { return false };
                let address = self.outside[host][usize::from(ipv6)];
                prefixes.iter().any(|(prefix, except)| {
                    prefix.contains(address) && !except.iter().any(|except| except.contains(address))
                })
            }
            Peers::Entities(names) => names.iter().any(|name| match (*name, peer) {
                ("all", _) | ("world", Party::Outside(_)) | ("host", Party::Host) => true,
                ("world-ipv4", Party::Outside(_)) => !ipv6,
                ("world-ipv6", Party::Outside(_)) => ipv6,
                ("cluster", Party::Pod(_) | Party::Host) => true,
                _ => false,
            }),
        }
    }

    /// Whether policy allows a pod to receive a packet from, or send it to, the peer.
    fn passes(&self, policies: &[Policy], pod: usize, ingress: bool, peer: Party, flow: Flow) -> bool {
        let mut default_deny = false;
        let (mut allowed, mut denied) = (false, false);
        for policy in policies.iter().filter(|policy| self.selects(policy, pod)) {
            for entry in policy.entries.iter().filter(|entry| entry.ingress == ingress) {
                default_deny |= policy.default_deny[usize::from(!ingress)].unwrap_or(true);
                let nothing = matches!((&entry.peers, &entry.ports), (Peers::Absent, Ports::Absent));
                if !nothing
                    && self.is_peer(policy, &entry.peers, peer, flow.ipv6)
                    && self.is_port(&entry.ports, flow)
                {
                    if entry.deny {
                        denied = true;
                    } else {
                        allowed = true;
                    }
                }
            }
        }
        // The node reaches its own pods, unless a rule denies it.
        let own_node = ingress && peer == Party::Host;
        !denied && (allowed || own_node || !default_deny)
    }

    fn is_port(&self, ports: &Ports, flow: Flow) -> bool {
        // Protocol and port of the flow, if it has a port and a rule names its protocol.
        let port_of = |protocol: &str| match (flow.l4, protocol) {
            (L4::Udp(port), "UDP" | "ANY") | (L4::Tcp(port), "TCP" | "ANY") => Some(port),
            _ => None,
        };
        match ports {
            Ports::Absent => true,
            Ports::Numbers(ports) => ports.iter().any(|(protocol, first, last)| {
                let last = last.unwrap_or(if *first == 0 { u16::MAX } else { *first });
                port_of(protocol).is_some_and(|port| (*first..=last).contains(&port))
            }),
            // A named port is one of the receiver; only pods have named ports.
            Ports::Named(names) => names.iter().any(|(protocol, wanted)| {
                let Party::Pod(receiver) = flow.to else { return false };
                self.pods[receiver].ports.iter().any(|(name, own_protocol, number)| {
                    name == wanted && port_of(protocol) == Some(*number) && port_of(own_protocol).is_some()
                })
            }),
            Ports::Icmp(types) => {
                let request = if flow.ipv6 { 128 } else { 8 };
                flow.l4 == L4::Ping && types.contains(&(flow.ipv6, request))
            }
        }
    }

    /// Whether a flow is allowed at both ends.
    pub(crate) fn allows(&self, policies: &[Policy], flow: Flow) -> bool {
        let out = match flow.from {
            Party::Pod(pod) => self.passes(policies, pod, false, flow.to, flow),
            _ => true,
        };
        let into = match flow.to {
            Party::Pod(pod) => self.passes(policies, pod, true, flow.from, flow),
            _ => true,
        };
        out && into
    }
}

impl Policy {
    /// Returns the manifest for the agent.
    pub(crate) fn manifest(&self) -> Value {
        let mut spec = json!({"endpointSelector": selector(&self.subject, &Where::Unsaid)});
        for entry in &self.entries {
            let (direction, peer) = if entry.ingress { ("ingress", "from") } else { ("egress", "to") };
            let section = if entry.deny { format!("{direction}Deny") } else { direction.to_owned() };
            if spec[&section].is_null() {
                spec[&section] = json!([]);
            }
            spec[&section].as_array_mut().unwrap().push(entry_manifest(entry, peer));
        }
        let default_deny = [("ingress", 0), ("egress", 1)];
        for (name, value) in default_deny.map(|(name, index)| (name, self.default_deny[index])) {
            if let Some(value) = value {
                spec["enableDefaultDeny"][name] = json!(value);
            }
        }
        let mut metadata = json!({"name": self.name});
        if let Some(namespace) = self.namespace {
            metadata["namespace"] = json!(namespace);
        }
        let kind = match self.namespace {
            Some(_) => "CiliumNetworkPolicy",
            None => "CiliumClusterwideNetworkPolicy",
        };
        json!({"apiVersion": "cilium.io/v2", "kind": kind, "metadata": metadata, "spec": spec})
    }
}

fn entry_manifest(entry: &Entry, peer: &str) -> Value {
    let mut out = json!({});
    match &entry.peers {
        Peers::Absent => {}
        Peers::Nobody => out[format!("{peer}Endpoints")] = json!([]),
        Peers::Endpoints(selectors) => {
            let list: Vec<Value> = selectors.iter().map(|(r, place)| selector(r, place)).collect();
            out[format!("{peer}Endpoints")] = json!(list);
        }
        Peers::Cidrs(prefixes) if prefixes.iter().all(|(_, except)| except.is_empty()) => {
            let list: Vec<&str> = prefixes.iter().map(|(prefix, _)| prefix.0).collect();
            out[format!("{peer}CIDR")] = json!(list);
        }
        Peers::Cidrs(prefixes) => {
            let rule = |(prefix, except): &(Prefix, Vec<Prefix>)| {
                let except: Vec<&str> = except.iter().map(|prefix| prefix.0).collect();
                json!({"cidr": prefix.0, "except": except})
            };
            out[format!("{peer}CIDRSet")] = prefixes.iter().map(rule).collect();
        }
        Peers::Entities(names) => out[format!("{peer}Entities")] = json!(names),
    }
    match &entry.ports {
        Ports::Absent => {}
        Ports::Numbers(ports) => {
            let port = |(protocol, first, last): &(&str, u16, Option<u16>)| {
                let mut port = json!({"port": first.to_string(), "protocol": protocol});
                if let Some(last) = last {
                    port["endPort"] = json!(last);
                }
                port
            };
            out["toPorts"] = json!([{"ports": ports.iter().map(port).collect::<Vec<_>>()}]);
        }
        Ports::Named(names) => {
            let port = |(protocol, name): &(&str, &str)| json!({"port": name, "protocol": protocol});
            out["toPorts"] = json!([{"ports": names.iter().map(port).collect::<Vec<_>>()}]);
        }
        Ports::Icmp(types) => {
            let field = |(ipv6, number): &(bool, u8)| json!({"family": if *ipv6 { "IPv6" } else { "IPv4" }, "type": number});
            out["icmps"] = json!([{"fields": types.iter().map(field).collect::<Vec<_>>()}]);
        }
    }
    out
}

fn selector(requirements: &[Requirement], place: &Where) -> Value {
    let mut labels = json!({});
    let mut expressions = Vec::new();
    for requirement in requirements {
        match requirement {
            Requirement::Is(key, value) if labels[*key].is_null() => labels[*key] = json!(value),
            // A map has a key only once; with two requirements on a key, both apply.
            Requirement::Is(key, value) => {
                expressions.push(json!({"key": key, "operator": "In", "values": [value]}));
            }
            Requirement::In(key, values) => {
                expressions.push(json!({"key": key, "operator": "In", "values": values}));
            }
            Requirement::NotIn(key, values) => {
                expressions.push(json!({"key": key, "operator": "NotIn", "values": values}));
            }
            Requirement::Exists(key) => expressions.push(json!({"key": key, "operator": "Exists"})),
            Requirement::DoesNotExist(key) => {
                expressions.push(json!({"key": key, "operator": "DoesNotExist"}));
            }
        }
    }
    match place {
        Where::Unsaid => {}
        Where::Namespace(name) => labels["k8s:io.kubernetes.pod.namespace"] = json!(name),
        Where::Team(team) => labels["k8s:io.cilium.k8s.namespace.labels.team"] = json!(team),
    }
    json!({"matchLabels": labels, "matchExpressions": expressions})
}
