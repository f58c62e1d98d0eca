//! Verdicts by real packets, compared with a naive model: namespaces x labels x prefixes x ports x families.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use generate::{Random, flows, pairs, policies};
use integration_tests::{Node, Pod};
use model::{Flow, L4, Party, PodLabels, Policy, World};
use probe::{Place, passes};
use serde_json::json;
use test_kit::{NetNs, require_root, wait_until};

mod generate;
mod model;
mod probe;
mod tiers;
mod truth_table;

/// Minimum number of tested verdicts.
const VERDICTS: usize = 500;
/// Maximum number of verdicts per set of policies.
const A_ROUND: usize = 60;
const SEED: u64 = 4;

const OUTSIDE: [[&str; 2]; 3] = [
    ["198.51.100.10", "2001:db8:51::10"],
    ["198.51.100.200", "2001:db8:51:8000::10"],
    ["203.0.113.5", "2001:db8:cb00::5"],
];

fn world() -> World {
    let pod = |namespace, name, labels, ports| PodLabels { namespace, name, labels, ports };
    World {
        namespaces: &[("shop", "red"), ("bank", "blue")],
        pods: vec![
            pod(
                "shop",
                "shop-web",
                &[("app", "web"), ("tier", "front")],
                &[("http", "TCP", 8080), ("dns", "UDP", 53)],
            ),
            pod("shop", "shop-api", &[("app", "api"), ("tier", "back")], &[("http", "TCP", 80)]),
            pod(
                "shop",
                "shop-db",
                &[("app", "db"), ("tier", "back"), ("secret", "yes")],
                &[("http", "UDP", 8085), ("metrics", "TCP", 443)],
            ),
            pod(
                "bank",
                "bank-web",
                &[("app", "web"), ("tier", "front")],
                &[("http", "TCP", 8080), ("metrics", "UDP", 10_000)],
            ),
            pod("bank", "bank-vault", &[("app", "vault"), ("tier", "back"), ("secret", "yes")], &[]),
        ],
        outside: OUTSIDE.map(|addresses| addresses.map(|text| text.parse().unwrap())).to_vec(),
    }
}

/// Hosts behind the node's neighbour, each in a namespace of its own.
fn hosts_outside(node: &Node) -> Vec<NetNs> {
    let router = node.world();
    router.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    router.set_sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
    let host = |(index, [ipv4, ipv6]): (usize, &[&str; 2])| {
        let ns = node.sandbox().netns(&format!("outside{index}")).unwrap();
        let link = format!("out{index}");
        router.veth(&link, &ns, "eth0").unwrap();
        router
            .ip_batch(&format!(
                "addr add 169.254.1.1/32 dev {link}\naddr add fe80::1/64 dev {link} nodad\n\
                 route add {ipv4}/32 dev {link}\nroute add {ipv6}/128 dev {link}\n"
            ))
            .unwrap();
        ns.ip_batch(&format!(
            "addr add {ipv4}/32 dev eth0\naddr add {ipv6}/128 dev eth0 nodad\nroute add 169.254.1.1/32 dev eth0\n\
             route add default via 169.254.1.1\nroute add default via fe80::1 dev eth0\n"
        ))
        .unwrap();
        ns
    };
    OUTSIDE.iter().enumerate().map(host).collect()
}

fn namespace_manifests(world: &World) -> String {
    let manifests = world.namespaces.iter().map(|(name, team)| {
        let labels = json!({"team": team});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
            .to_string()
    });
    manifests.collect::<Vec<_>>().join("\n---\n")
}

fn pod_manifest(pod: &PodLabels) -> String {
    let labels: BTreeMap<_, _> = pod.labels.iter().copied().collect();
    let port = |(name, protocol, number): &(&str, &str, u16)| json!({"name": name, "protocol": protocol, "containerPort": number});
    let ports: Vec<_> = pod.ports.iter().map(port).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": pod.namespace, "name": pod.name, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "none", "ports": ports}]},
    })
    .to_string()
}

/// A node with all parties.
struct Setup {
    world: World,
    node: Node,
    pods: Vec<Pod>,
    outside: Vec<NetNs>,
}

impl Setup {
    fn new(world: World) -> Setup {
        let mut node = Node::new();
        node.config.insert("allow-localhost".into(), "always".into());
        node.config.insert("enable-k8s-cluster-network-policy".into(), "true".into());
        let outside = hosts_outside(&node);
        node.apply("namespaces.yaml", &namespace_manifests(&world));
        node.start();
        let pods = world.pods.iter().map(|pod| {
            node.apply(&format!("pod-{}.yaml", pod.name), &pod_manifest(pod));
            node.add_unknown_pod(pod.namespace, pod.name)
        });
        let pods = pods.collect();
        let setup = Setup { world, node, pods, outside };
        // Resolve neighbours first, which takes seconds on new links.
        let is_first = |party: &Party| [Party::Pod(0), Party::Host].contains(party);
        let is_ping = |flow: &Flow| flow.l4 == L4::Ping && (is_first(&flow.from) || is_first(&flow.to));
        let pings: Vec<Flow> = flows(&setup.world).into_iter().filter(is_ping).collect();
        wait_until("everybody reaches everybody", Duration::from_secs(20), || {
            passes(&pings, |party| setup.place(party)).into_iter().all(|passed| passed)
        });
        setup
    }

    fn place(&self, party: Party) -> Place {
        match party {
            Party::Pod(pod) => Place { ns: self.pods[pod].ns.clone(), addresses: self.pods[pod].addresses() },
            Party::Outside(host) => {
                Place { ns: self.outside[host].clone(), addresses: self.world.outside[host] }
            }
            Party::Host => {
                let addresses: [IpAddr; 2] = [Node::IPV4, Node::IPV6].map(|text| text.parse().unwrap());
                Place { ns: self.node.host().clone(), addresses }
            }
        }
    }

    /// Tries flows. Returns a description of those with another verdict than in the model.
    fn disagreements(&self, policies: &[Policy], flows: &[Flow]) -> Vec<String> {
        let expected = |flow: &Flow| (*flow, self.world.allows(policies, *flow));
        self.differences(&flows.iter().map(expected).collect::<Vec<_>>())
    }

    /// Tries flows. Returns a description of those with another verdict than the one beside them.
    fn differences(&self, expected: &[(Flow, bool)]) -> Vec<String> {
        let flows: Vec<Flow> = expected.iter().map(|(flow, _)| *flow).collect();
        let passed = passes(&flows, |party| self.place(party));
        let mut wrong = Vec::new();
        for ((flow, allowed), passed) in expected.iter().zip(passed) {
            // A packet that is late on a busy machine looks like a drop, so those are tried again.
            let passed = passed || (*allowed && passes(&[*flow], |party| self.place(party))[0]);
            if passed != *allowed {
                wrong.push(format!("{flow:?}: allowed {allowed}, passed {passed}"));
            }
        }
        wrong
    }
}

/// The policies of a round and the flows to try under them, half of which are denied.
fn round(random: &mut Random, world: &World, number: usize) -> (Vec<Policy>, Vec<Flow>) {
    let set = policies(random, number);
    let flows = pairs(random, world, &set, A_ROUND / 2).concat();
    (set, flows)
}

/// The tried packets are of every kind, and the model denies half of them.
#[test]
fn what_is_tried_covers_everything() {
    let world = world();
    let mut random = Random::new(SEED);
    let mut tried: Vec<(Flow, bool)> = Vec::new();
    let mut rounds = 0;
    while tried.len() < VERDICTS {
        rounds += 1;
        let (set, flows) = round(&mut random, &world, rounds);
        tried.extend(flows.into_iter().map(|flow| (flow, world.allows(&set, flow))));
    }
    assert!((5..50).contains(&rounds), "{rounds} sets of policies");
    type Kind = (&'static str, fn(&Flow) -> bool);
    let kinds: [Kind; 10] = [
        ("IPv4", |flow| !flow.ipv6),
        ("IPv6", |flow| flow.ipv6),
        ("UDP", |flow| matches!(flow.l4, L4::Udp(_))),
        ("TCP", |flow| matches!(flow.l4, L4::Tcp(_))),
        ("ping", |flow| flow.l4 == L4::Ping),
        ("pod to pod", |flow| matches!((flow.from, flow.to), (Party::Pod(_), Party::Pod(_)))),
        ("to the outside", |flow| matches!(flow.to, Party::Outside(_))),
        ("from the outside", |flow| matches!(flow.from, Party::Outside(_))),
        ("to the node", |flow| flow.to == Party::Host),
        ("from the node", |flow| flow.from == Party::Host),
    ];
    for (kind, is) in kinds {
        for allowed in [false, true] {
            let count = tried.iter().filter(|(flow, verdict)| is(flow) && *verdict == allowed).count();
            // Only deny rules keep the node from its pods.
            let least = if kind == "from the node" { 1 } else { 10 };
            assert!(count >= least, "{count} of {kind}, allowed {allowed}");
        }
    }
}

/// The control: without rules every pair of parties communicates over every protocol.
#[test]
fn without_policies_every_flow_passes() {
    require_root!();
    let setup = Setup::new(world());
    let mut random = Random::new(SEED);
    let mut all = flows(&setup.world);
    for _ in 0..5 {
        let some: Vec<Flow> = (0..50).map(|_| all.swap_remove(random.below(all.len()))).collect();
        let wrong = setup.disagreements(&[], &some);
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), setup.node.log());
    }
}

#[test]
fn five_hundred_verdicts_are_those_of_a_naive_model() {
    require_root!();
    let setup = Setup::new(world());
    let mut random = Random::new(SEED);
    let (mut tried, mut rounds) = (0, 0);
    let mut wrong = Vec::new();
    while tried < VERDICTS {
        rounds += 1;
        assert!(rounds < 100, "the generator finds too few pairs: {tried} in 100 rounds");
        let (set, flows) = round(&mut random, &setup.world, rounds);
        if flows.is_empty() {
            continue;
        }
        let manifests: Vec<String> = set.iter().map(|policy| policy.manifest().to_string()).collect();
        setup.node.apply("policies.yaml", &manifests.join("\n---\n"));
        let names: Vec<&str> = set.iter().map(|policy| policy.name.as_str()).collect();
        setup.node.wait_policies(&names);
        tried += flows.len();
        let disagreements = setup.disagreements(&set, &flows);
        if !disagreements.is_empty() {
            wrong.push(format!("round {rounds}:\n{}\n{}", disagreements.join("\n"), manifests.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "of {tried} flows wrong:\n{}\n{}", wrong.join("\n"), setup.node.log());
}
