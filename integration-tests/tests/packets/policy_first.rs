//! The first packet: nothing passes of a denied pod that sends before its interface is known.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::json;
use test_kit::{NetNs, require_root, try_wait_until, wait_until};

const PORT: u16 = 7000;
/// How long pods send after they are ready.
const AFTER: Duration = Duration::from_millis(200);
/// Limit of waits on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);
/// Number of pods that are added in each way.
const PODS: usize = 6;

/// Sends packets from a namespace to some addresses continuously, also while there is no interface.
struct Sender {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Sender {
    fn start(ns: &NetNs, targets: Vec<IpAddr>) -> Sender {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let sockets =
            ns.run(|| [UdpSocket::bind(("0.0.0.0", 0)).unwrap(), UdpSocket::bind(("::", 0)).unwrap()]);
        let thread = {
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            let work = move || {
                while !stop.load(Ordering::Relaxed) {
                    for target in &targets {
                        // Without an interface there is no route: the next try comes soon.
                        if sockets[usize::from(target.is_ipv6())].send_to(b"first", (*target, PORT)).is_ok() {
                            sent.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    thread::sleep(Duration::from_micros(100));
                }
            };
            thread::Builder::new().name("sender".into()).spawn(work).unwrap()
        };
        Sender { stop, sent, thread }
    }

    /// Waits until the pod's kernel has taken a packet, which on a busy machine may be later than any fixed time.
    fn until_sent(&self) {
        wait_until("a packet is sent", LIMIT, || self.sent.load(Ordering::Relaxed) > 0);
    }

    /// Stops it. Returns how many packets the pod's kernel has accepted.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.sent.load(Ordering::Relaxed)
    }
}

/// Receives on a port of all addresses of a namespace, of both families.
struct Receiver(UdpSocket);

impl Receiver {
    fn of(ns: &NetNs) -> Receiver {
        let socket = ns.run(|| UdpSocket::bind(("::", PORT))).unwrap();
        socket.set_nonblocking(true).unwrap();
        Receiver(socket)
    }

    /// Returns the senders of packets received since the last call.
    fn senders(&self) -> Vec<IpAddr> {
        let mut senders = Vec::new();
        let mut buffer = [0; 16];
        while let Ok((_, from)) = self.0.recv_from(&mut buffer) {
            senders.push(from.ip().to_canonical());
        }
        senders.sort();
        senders.dedup();
        senders
    }
}

/// Two addresses of each that a pod could reach: another pod, the node, the world.
struct Others {
    receivers: Vec<Receiver>,
    addresses: Vec<IpAddr>,
}

impl Others {
    fn of(node: &Node, pod: &Pod) -> Others {
        let receivers = [&pod.ns, node.host(), node.world()].map(Receiver::of).into();
        let outside = [Node::IPV4, Node::IPV6, Node::WORLD_IPV4, Node::WORLD_IPV6];
        let outside = outside.map(|text| text.parse().unwrap());
        Others { receivers, addresses: pod.addresses().into_iter().chain(outside).collect() }
    }

    /// Returns the senders of packets to any of them.
    fn senders(&self) -> Vec<IpAddr> {
        let mut senders: Vec<IpAddr> = self.receivers.iter().flat_map(Receiver::senders).collect();
        senders.sort();
        senders.dedup();
        senders
    }
}

impl Others {
    /// Returns the addresses of a pod from which packets passed. Packets of the previous pod may still wait for a
    /// neighbour.
    fn senders_among(&self, pod: &[IpAddr]) -> Vec<IpAddr> {
        self.senders().into_iter().filter(|sender| pod.contains(sender)).collect()
    }
}

/// Creates a node with a pod without policy, and a policy that denies everything to and from pods with `talk: no`.
fn node() -> (Node, Pod) {
    let mut node = Node::new();
    // The node's own way to its pods is a rule of its own.
    node.config.insert("allow-localhost".into(), "policy".into());
    node.apply(
        "policy.yaml",
        &json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumClusterwideNetworkPolicy",
            "metadata": {"name": "quiet"},
            "spec": {"endpointSelector": {"matchLabels": {"talk": "no"}}, "ingress": [{}], "egress": [{}]},
        })
        .to_string(),
    );
    node.start();
    let open = node.add_pod("open");
    node.wait_policies(&["quiet"]);
    (node, open)
}

#[test]
fn a_denied_pod_of_the_plugin_gets_nothing_through() {
    require_root!();
    let (node, open) = node();
    let others = Others::of(&node, &open);
    for index in 0..PODS {
        // Twins: the label is all that differs.
        for talk in ["no", "yes"] {
            let name = format!("pod{index}-{talk}");
            node.apply(
                &format!("pod-{name}.yaml"),
                &integration_tests::pod_manifest("default", &name, &[("talk", talk)]),
            );
            let ns = node.sandbox().netns(&name).unwrap();
            let inside = Receiver::of(&ns);
            let sender = Sender::start(&ns, others.addresses.clone());
            let pod = Pod::add(&node, "default", &name, &ns)
                .unwrap_or_else(|answer| panic!("{answer}\nlog of the agent:\n{}", node.log()));
            let back = Sender::start(&open.ns, pod.addresses().to_vec());
            thread::sleep(AFTER);
            assert!(back.stop() > 0);
            let sent = sender.stop();
            assert!(sent > 0, "{name} could send nothing");
            let (through, got) = (others.senders_among(&pod.addresses()), inside.senders());
            if talk == "no" {
                assert!(
                    through.is_empty() && got.is_empty(),
                    "{name} {:?}: {through:?} {got:?}\n{}",
                    pod.addresses(),
                    node.log()
                );
            } else {
                let mut expected = pod.addresses();
                expected.sort();
                assert_eq!(through, expected, "{name}\n{}", node.log());
                assert_eq!(got.len(), 2, "{name}: {got:?}\n{}", node.log());
            }
            pod.cni(&node, "DEL").unwrap();
        }
    }
}

#[test]
fn a_pod_without_a_manifest_gets_nothing_through_until_it_has_one() {
    require_root!();
    let (node, open) = node();
    let others = Others::of(&node, &open);
    let ns = node.sandbox().netns("late").unwrap();
    let sender = Sender::start(&ns, others.addresses.clone());
    let pod = Pod::add(&node, "default", "late", &ns).unwrap();
    thread::sleep(AFTER);
    assert_eq!(others.senders(), Vec::<IpAddr>::new(), "{}", node.log());
    node.apply("pod-late.yaml", &integration_tests::pod_manifest("default", "late", &[("talk", "yes")]));
    wait_until("the pod gets its labels and talks", Duration::from_secs(10), || !others.senders().is_empty());
    sender.stop();
    drop(pod);
}

/// A pod with an interface that is created and set up before the agent is notified.
struct EarlyPod {
    ns: NetNs,
    addresses: [IpAddr; 2],
    body: String,
}

/// The name of a pod's interface in the form that CNI plugins give it; pods have names of six characters at most.
fn device(name: &str) -> String {
    let digits: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("lxc{digits:0<12}")
}

fn early_pod(node: &Node, name: &str) -> EarlyPod {
    let answer = node.request("POST", &format!("/v1/ipam?owner=default/{name}"), None).unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    let ipam = answer.json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let (ipv4, ipv6) = (text(&ipam["address"]["ipv4"]), text(&ipam["address"]["ipv6"]));
    let gateway = |family: &str| text(&ipam["host-addressing"][family]["ip"]);
    let (gateway4, gateway6) = (gateway("ipv4"), gateway("ipv6"));
    let ns = node.sandbox().netns(name).unwrap();
    let device = device(name);
    let (host_mac, mac) = ("0a:00:00:00:00:01", "0a:00:00:00:00:02");
    // Everything but the link is prepared, so that the very first packet leaves with it.
    node.host()
        .ip(&format!(
            "link add {device} address {host_mac} type veth peer name eth0 address {mac} netns {}",
            ns.path().display()
        ))
        .unwrap();
    ns.ip_batch(&format!(
        "addr add {ipv4}/32 dev eth0\naddr add {ipv6}/128 dev eth0 nodad\nlink set eth0 up\n\
         route add {gateway4}/32 dev eth0\nroute add default via {gateway4}\n\
         route add {gateway6}/128 dev eth0\nroute add default via {gateway6} dev eth0\n\
         neigh replace {gateway4} lladdr {host_mac} dev eth0\nneigh replace {gateway6} lladdr {host_mac} dev eth0\n"
    ))
    .unwrap();
    let line = node.host().ip(&format!("-o link show {device}")).unwrap();
    let index: u32 = line.split(':').next().unwrap().trim().parse().unwrap();
    let body = json!({
        "container-id": name, "container-interface-name": "eth0", "state": "waiting-for-identity",
        "interface-name": device, "interface-index": index, "mac": mac, "host-mac": host_mac,
        "addressing": {"ipv4": ipv4, "ipv6": ipv6}, "k8s-pod-name": name, "k8s-namespace": "default",
        "sync-build-endpoint": true,
    });
    EarlyPod { ns, addresses: [ipv4.parse().unwrap(), ipv6.parse().unwrap()], body: body.to_string() }
}

#[test]
fn a_denied_pod_whose_link_is_up_before_it_is_announced_gets_nothing_through() {
    require_root!();
    let (node, open) = node();
    let others = Others::of(&node, &open);
    for index in 0..PODS {
        for talk in ["no", "yes"] {
            let name = format!("e{index}{talk}");
            node.apply(
                &format!("pod-{name}.yaml"),
                &integration_tests::pod_manifest("default", &name, &[("talk", talk)]),
            );
            let pod = early_pod(&node, &name);
            let inside = Receiver::of(&pod.ns);
            let sender = Sender::start(&pod.ns, others.addresses.clone());
            let back = Sender::start(&open.ns, pod.addresses.to_vec());
            // The order of Cilium's plugin: the link is set up, then the endpoint is requested from the agent.
            node.host().ip(&format!("link set {} up", device(&name))).unwrap();
            thread::sleep(Duration::from_millis(100));
            let before = (others.senders_among(&pod.addresses), inside.senders());
            assert!(
                before.0.is_empty() && before.1.is_empty(),
                "{name} is unknown: {before:?}\n{}",
                node.log()
            );
            let path = format!("/v1/endpoint/cni-attachment-id:{name}:eth0");
            let answer = node.request("PUT", &path, Some(&pod.body)).unwrap();
            assert_eq!(answer.status, 201, "{answer:?}\n{}", node.log());
            let (mut through, mut got) = (BTreeSet::new(), BTreeSet::new());
            let mut receive = || {
                through.extend(others.senders_among(&pod.addresses));
                got.extend(inside.senders());
                (through.len(), got.len()) == (2, 2)
            };
            match talk {
                // Packets that must not arrive get some time to do so; those that must are waited for.
                "no" => thread::sleep(AFTER),
                // Missing packets are asserted below, with the agent's log.
                _ => drop(try_wait_until(LIMIT, || if receive() { Ok(()) } else { Err(String::new()) })),
            }
            assert!(sender.stop() > 0 && back.stop() > 0);
            receive();
            if talk == "no" {
                assert!(
                    through.is_empty() && got.is_empty(),
                    "{name} {:?}: {through:?} {got:?}\n{}",
                    pod.addresses,
                    node.log()
                );
            } else {
                assert_eq!(through, pod.addresses.into(), "{name}\n{}", node.log());
                assert_eq!(got.len(), 2, "{name}: {got:?}\n{}", node.log());
            }
            let answer = node.request("DELETE", &path, None).unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
}

/// Between the moment that the link is up and the agent's program on it.
#[test]
fn an_unannounced_pod_gets_nothing_through_from_its_first_packet() {
    require_root!();
    let mut node = Node::started();
    let open = node.add_pod("open");
    let others = Others::of(&node, &open);
    for index in 0..4 * PODS {
        let pod = early_pod(&node, &format!("u{index}"));
        let sender = Sender::start(&pod.ns, others.addresses.clone());
        node.host().ip(&format!("link set {} up", device(&format!("u{index}")))).unwrap();
        sender.until_sent();
        thread::sleep(Duration::from_millis(30));
        assert!(sender.stop() > 0);
        let through = others.senders();
        assert!(through.is_empty(), "pod {index} got through: {through:?}\n{}", node.log());
    }
}
