//! The truth table of NetworkPolicies: three namespaces of three pods each and hosts outside, two ports, all protocols,
//! both directions, both families. The engine has the verdict of a naive reading of the manifests in every cell, packets
//! have it in more than a thousand.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use labels::{Label, LabelArray};
use policy_engine::{Decision, Direction, Engine, Kind, NamedPorts, Settings, parse};
use serde_json::{Value, json};
use test_kit::require_root;

use super::generate::{Random, twins};
use super::model::{Flow, L4, Party, PodLabels, Prefix, World};
use super::{OUTSIDE, Setup};

/// Minimum number of tested verdicts by packets.
const VERDICTS: usize = 1_000;
/// Pairs of a denied flow and an allowed one, for each set of policies.
const PAIRS: usize = 60;
const SEED: u64 = 26;
const PORTS: [u16; 2] = [80, 81];
/// TCP, UDP, SCTP.
const PROTOCOLS: [(&str, u8); 3] = [("TCP", 6), ("UDP", 17), ("SCTP", 132)];
const FIRST_POD: u32 = 1_000;
const FIRST_PREFIX: u32 = 1 << 24;
const WORLD_IDENTITIES: [u32; 2] = [9, 10];

/// A cell of the table.
#[derive(Clone, Copy, Debug)]
struct Cell {
    from: Party,
    to: Party,
    ipv6: bool,
    protocol: &'static str,
    port: u16,
}

impl Cell {
    fn of(flow: Flow) -> Cell {
        let (protocol, port) = match flow.l4 {
            L4::Tcp(port) => ("TCP", port),
            L4::Udp(port) => ("UDP", port),
            L4::Ping => panic!("{flow:?} has no port"),
        };
        Cell { from: flow.from, to: flow.to, ipv6: flow.ipv6, protocol, port }
    }

    /// Returns the flow of packets; `None` for SCTP, which not every kernel has sockets for.
    fn flow(self) -> Option<Flow> {
        let l4 = match self.protocol {
            "TCP" => L4::Tcp(self.port),
            "UDP" => L4::Udp(self.port),
            _ => return None,
        };
        Some(Flow { from: self.from, to: self.to, ipv6: self.ipv6, l4 })
    }
}

fn world() -> World {
    let pod = |namespace, name, labels, ports| PodLabels { namespace, name, labels, ports };
    let a: &[_] = &[("pod", "a"), ("tier", "front")];
    let b: &[_] = &[("pod", "b"), ("tier", "back")];
    let c: &[_] = &[("pod", "c"), ("tier", "back")];
    World {
        namespaces: &[("x", "red"), ("y", "blue"), ("z", "blue")],
        pods: vec![
            pod("x", "x-a", a, &[("web", "TCP", 80)]),
            pod("x", "x-b", b, &[("web", "TCP", 81)]),
            pod("x", "x-c", c, &[("web", "UDP", 80)]),
            pod("y", "y-a", a, &[("web", "TCP", 81)]),
            pod("y", "y-b", b, &[]),
            pod("y", "y-c", c, &[("web", "UDP", 81)]),
            pod("z", "z-a", a, &[("web", "SCTP", 80)]),
            pod("z", "z-b", b, &[("web", "TCP", 80)]),
            pod("z", "z-c", c, &[]),
        ],
        outside: OUTSIDE.map(|addresses| addresses.map(|text| text.parse().unwrap())).to_vec(),
    }
}

fn cells(world: &World) -> Vec<Cell> {
    let pods = (0..world.pods.len()).map(Party::Pod);
    let parties: Vec<Party> = pods.chain((0..world.outside.len()).map(Party::Outside)).collect();
    let is_pod = |party: &Party| matches!(party, Party::Pod(_));
    let pairs = parties.iter().flat_map(|from| parties.iter().map(move |to| (*from, *to)));
    let pairs = pairs.filter(|(from, to)| from != to && (is_pod(from) || is_pod(to)));
    let both = pairs.flat_map(|pair| [false, true].map(|ipv6| (pair, ipv6)));
    both.flat_map(|((from, to), ipv6)| {
        PROTOCOLS
            .into_iter()
            .flat_map(move |(protocol, _)| PORTS.map(|port| Cell { from, to, ipv6, protocol, port }))
    })
    .collect()
}

/// Returns a policy of a namespace.
fn policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
}

/// The sets of policies, one after the other; those of one name are updated in place.
fn sets() -> Vec<Vec<Value>> {
    let (a, back) = (json!({"matchLabels": {"pod": "a"}}), json!({"matchLabels": {"tier": "back"}}));
    let blue = json!({"matchLabels": {"team": "blue"}});
    let all = json!({});
    let both = json!(["Ingress", "Egress"]);
    // Policies of all pods of namespace x, all with the same name.
    let of_x = |mut spec: Value| {
        spec["podSelector"] = json!({});
        policy("x", "table", spec)
    };
    let from = |peers: Value| json!({"ingress": [{"from": peers}]});
    let blocks = json!([
        {"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.128/25"]}},
        {"ipBlock": {"cidr": "2001:db8:51::/48", "except": ["2001:db8:51:8000::/49"]}},
    ]);
    vec![
        vec![of_x(json!({}))],
        vec![of_x(json!({"policyTypes": both}))],
        vec![of_x(json!({"policyTypes": ["Egress"]}))],
        vec![of_x(json!({"policyTypes": both, "ingress": [{}]}))],
        vec![of_x(from(json!([{"podSelector": a}])))],
        vec![of_x(from(json!([{"namespaceSelector": blue}])))],
        // Both selectors of a peer hold; of two peers one is enough.
        vec![of_x(from(json!([{"namespaceSelector": blue, "podSelector": a}])))],
        vec![of_x(from(json!([{"namespaceSelector": blue}, {"podSelector": a}])))],
        vec![of_x(json!({"policyTypes": both, "ingress": [{"from": blocks}], "egress": [{"to": blocks}]}))],
        vec![of_x(
            json!({"ingress": [{"ports": [{"port": "web"}]}, {"ports": [{"port": "web", "protocol": "SCTP"}]}]}),
        )],
        vec![of_x(json!({"ingress": [{"ports": [
            {"port": 81, "endPort": 90, "protocol": "UDP"}, {"port": 70, "endPort": 80}, {"port": 81, "protocol": "SCTP"},
        ]}]}))],
        vec![of_x(json!({"policyTypes": ["Egress"], "egress": [
            {"to": [{"podSelector": back}], "ports": [{"port": "web"}, {"port": 81, "protocol": "UDP"}]},
            {"to": [{"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]}}],
             "ports": [{"protocol": "SCTP"}]},
        ]}))],
        // Several policies: their rules add up, in each direction and at both ends.
        vec![
            of_x(from(json!([{"podSelector": back}]))),
            policy(
                "x",
                "other",
                json!({"podSelector": a, "policyTypes": both, "ingress": [{"ports": [{"port": 80}]}],
                "egress": [{"to": [{"namespaceSelector": all}], "ports": [{"port": 81, "protocol": "UDP"}]}]}),
            ),
            policy(
                "y",
                "table",
                json!({"podSelector": back, "ingress": [{"from": [{"namespaceSelector": {}}]}]}),
            ),
            policy(
                "z",
                "table",
                json!({"podSelector": all, "policyTypes": ["Egress"], "egress": [{"to": blocks}]}),
            ),
        ],
        vec![
            of_x(json!({"policyTypes": both, "ingress": [{}], "egress": [{}]})),
            policy("y", "table", json!({"podSelector": a, "policyTypes": both})),
        ],
    ]
}

/// The verdict of policies by plain loops over their manifests.
struct Naive<'a> {
    world: &'a World,
    policies: &'a [Value],
}

impl Naive<'_> {
    fn allows(&self, cell: Cell) -> bool {
        self.passes(cell, false) && self.passes(cell, true)
    }

    /// Whether the policies of the receiver (`ingress`) or of the sender allow a packet.
    fn passes(&self, cell: Cell, ingress: bool) -> bool {
        let (own, peer) = if ingress { (cell.to, cell.from) } else { (cell.from, cell.to) };
        let Party::Pod(pod) = own else { return true };
        let pod = &self.world.pods[pod];
        let (direction, rules, peers) =
            if ingress { ("Ingress", "ingress", "from") } else { ("Egress", "egress", "to") };
        let applies = |policy: &&Value| {
            let spec = &policy["spec"];
            let types = match spec["policyTypes"].as_array() {
                Some(types) => types.contains(&direction.into()),
                None => ingress || !spec["egress"].is_null(),
            };
            policy["metadata"]["namespace"] == pod.namespace
                && types
                && selects(&spec["podSelector"], pod.labels)
        };
        let mut policies = self.policies.iter().filter(applies).peekable();
        policies.peek().is_none()
            || policies.any(|policy| {
                items(&policy["spec"][rules]).iter().any(|rule| {
                    let (peers, ports) = (items(&rule[peers]), items(&rule["ports"]));
                    let namespace = policy["metadata"]["namespace"].as_str().unwrap();
                    (peers.is_empty() || peers.iter().any(|to| self.is_peer(to, peer, namespace, cell.ipv6)))
                        && (ports.is_empty() || ports.iter().any(|port| self.is_port(port, cell)))
                })
            })
    }

    fn is_peer(&self, rule: &Value, peer: Party, namespace: &str, ipv6: bool) -> bool {
        let block = &rule["ipBlock"];
        let pod = match peer {
            Party::Pod(pod) => &self.world.pods[pod],
            Party::Outside(_) if block.is_null() => return false,
            Party::Outside(host) => {
                let address = self.world.outside[host][usize::from(ipv6)];
                let inside = |prefix: &Value| {
                    let prefix: &'static str = prefix.as_str().unwrap().to_owned().leak();
                    Prefix(prefix).contains(address)
                };
                return inside(&block["cidr"]) && !items(&block["except"]).iter().any(inside);
            }
            Party::Host => panic!("the node is in no cell"),
        };
        let team = self.world.namespaces.iter().find(|(name, _)| *name == pod.namespace).unwrap().1;
        let in_namespace = match &rule["namespaceSelector"] {
            Value::Null => pod.namespace == namespace,
            selector => selects(selector, &[("team", team)]),
        };
        block.is_null() && in_namespace && selects(&rule["podSelector"], pod.labels)
    }

    fn is_port(&self, port: &Value, cell: Cell) -> bool {
        let of_protocol = port["protocol"].as_str().unwrap_or("TCP") == cell.protocol;
        let of_port = match &port["port"] {
            Value::Null => true,
            Value::String(name) => {
                // A named port is one of the receiver; only pods have named ports.
                let Party::Pod(receiver) = cell.to else { return false };
                let is = |(own, protocol, number): &(&str, &str, u16)| {
                    own == name && *protocol == cell.protocol && *number == cell.port
                };
                self.world.pods[receiver].ports.iter().any(is)
            }
            number => {
                let first = number.as_u64().unwrap();
                (first..=port["endPort"].as_u64().unwrap_or(first)).contains(&cell.port.into())
            }
        };
        of_protocol && of_port
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn selects(selector: &Value, labels: &[(&str, &str)]) -> bool {
    let value = |key: &str| labels.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    let mut equal = selector["matchLabels"].as_object().into_iter().flatten();
    let expressions = items(&selector["matchExpressions"]);
    equal.all(|(key, wanted)| value(key) == wanted.as_str())
        && expressions.iter().all(|expression| {
            assert_eq!(expression["operator"], "NotIn", "the table has no other operator");
            let found = value(expression["key"].as_str().unwrap());
            found.is_none_or(|found| !items(&expression["values"]).contains(&found.into()))
        })
}

/// An engine with the identities of the world.
struct Table {
    engine: Engine,
    ports: Vec<NamedPorts>,
    prefixes: Vec<IpNetwork>,
}

impl Table {
    fn new(world: &World, policies: &[Value]) -> Table {
        let settings = Settings::default();
        let mut engine = Engine::new(settings.clone());
        let ports_of = |pod: &PodLabels| {
            let number = |name: &str| PROTOCOLS.iter().find(|(known, _)| *known == name).unwrap().1;
            pod.ports.iter().map(|(name, protocol, port)| (*name, number(protocol), *port)).collect()
        };
        let ports: Vec<NamedPorts> = world.pods.iter().map(ports_of).collect();
        for ((id, pod), ports) in (FIRST_POD..).zip(&world.pods).zip(&ports) {
            let team = world.namespaces.iter().find(|(name, _)| *name == pod.namespace).unwrap().1;
            let own = pod.labels.iter().map(|(key, value)| format!("k8s:{key}={value}"));
            let texts = own.chain([
                format!("k8s:io.kubernetes.pod.namespace={}", pod.namespace),
                format!("k8s:io.cilium.k8s.namespace.labels.team={team}"),
                "k8s:io.cilium.k8s.policy.cluster=default".to_owned(),
            ]);
            engine.add_identity(id, labels(texts), ports.clone());
        }
        for (id, address) in WORLD_IDENTITIES.into_iter().zip(world.outside[0]) {
            engine.add_identity(id, labels([world_of(address)]), NamedPorts::default());
        }
        for policy in policies {
            engine.set(parse(Kind::NetworkPolicy, policy, &settings).unwrap());
        }
        let prefixes: Vec<IpNetwork> = engine.prefixes().into_iter().collect();
        for (id, prefix) in (FIRST_PREFIX..).zip(&prefixes) {
            let key = prefix.to_string().replace(':', "-");
            let texts = [format!("cidr:{key}"), world_of(prefix.ip())];
            engine.add_identity(id, labels(texts), NamedPorts::default());
        }
        Table { engine, ports, prefixes }
    }

    fn identity(&self, world: &World, party: Party, ipv6: bool) -> u32 {
        match party {
            Party::Pod(pod) => FIRST_POD + pod as u32,
            Party::Outside(host) => {
                let address = world.outside[host][usize::from(ipv6)];
                let covering =
                    (FIRST_PREFIX..).zip(&self.prefixes).filter(|(_, known)| known.contains(address));
                let longest = covering.max_by_key(|(_, known)| known.prefix());
                longest.map_or(WORLD_IDENTITIES[usize::from(ipv6)], |(id, _)| id)
            }
            Party::Host => panic!("the node is in no cell"),
        }
    }

    fn allows(&self, world: &World, cell: Cell) -> bool {
        let protocol = PROTOCOLS.iter().find(|(name, _)| *name == cell.protocol).unwrap().1;
        let side = |own: Party, direction: Direction, peer: Party| {
            let Party::Pod(pod) = own else { return true };
            let identity = self.identity(world, own, cell.ipv6);
            let rows = self.engine.resolve(identity, &self.ports[pod], usize::MAX).unwrap();
            let peer = self.identity(world, peer, cell.ipv6);
            rows.lookup(direction, peer, protocol, cell.port).decision == Decision::Allow
        };
        side(cell.from, Direction::Egress, cell.to) && side(cell.to, Direction::Ingress, cell.from)
    }
}

fn labels(texts: impl IntoIterator<Item = String>) -> LabelArray {
    texts.into_iter().map(|text| Label::parse(&text)).collect()
}

fn world_of(address: IpAddr) -> String {
    format!("reserved:{}", policy_engine::World::of(address, true, true).label())
}

#[test]
fn the_engine_has_the_verdict_of_every_cell() {
    let world = world();
    let all = cells(&world);
    assert_eq!(all.len(), (9 * 8 + 9 * 3 * 2) * 2 * 6);
    for policies in sets() {
        let (naive, table) = (Naive { world: &world, policies: &policies }, Table::new(&world, &policies));
        let mut allowed = 0;
        for cell in &all {
            let expected = naive.allows(*cell);
            allowed += usize::from(expected);
            assert_eq!(table.allows(&world, *cell), expected, "{cell:?}\n{policies:#?}");
        }
        assert!((1..all.len()).contains(&allowed), "{allowed} of {} cells\n{policies:#?}", all.len());
    }
}

#[test]
fn packets_have_the_verdicts_of_a_thousand_cells() {
    require_root!();
    let setup = Setup::new(world());
    let mut random = Random::new(SEED);
    let mut tried = 0;
    let mut wrong = Vec::new();
    for (number, mut policies) in sets().into_iter().enumerate() {
        let naive = Naive { world: &setup.world, policies: &policies };
        let flows = cells(&setup.world).into_iter().filter_map(Cell::flow).collect();
        let pairs = twins(&mut random, flows, |flow| naive.allows(Cell::of(*flow)), PAIRS);
        assert_eq!(pairs.len(), PAIRS, "set {number}");
        let expected = [false, true];
        let flows: Vec<(Flow, bool)> =
            pairs.into_iter().flat_map(|pair| pair.into_iter().zip(expected)).collect();

        // The policies keep their names, and are updated in place; the uid shows which version is in force.
        let uid = |index: usize| format!("{number}-{index}");
        for (index, policy) in policies.iter_mut().enumerate() {
            policy["metadata"]["uid"] = uid(index).into();
        }
        let manifests: Vec<String> = policies.iter().map(Value::to_string).collect();
        setup.node.apply("policies.yaml", &manifests.join("\n---\n"));
        let uids: Vec<String> = (0..policies.len()).map(uid).collect();
        setup.node.wait_rules("io.cilium.k8s.policy.uid", &uids);
        tried += flows.len();
        let disagreements = setup.differences(&flows);
        if !disagreements.is_empty() {
            wrong.push(format!("set {number}:\n{}\n{}", disagreements.join("\n"), manifests.join("\n")));
        }
    }
    assert!(tried >= VERDICTS, "{tried} verdicts");
    assert!(wrong.is_empty(), "of {tried} flows wrong:\n{}\n{}", wrong.join("\n"), setup.node.log());
}
