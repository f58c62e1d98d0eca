//! Leftovers of an agent of Cilium on a node, as recorded from one: names, pins, links, layouts, records, devices. The
//! programs are small ones of this test.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use bpf::{Direction, Layout, Link, Map, MapFlags, MapSpec, MapType, Program, RawMap};
use datapath_abi::{
    EndpointInfo, EndpointKey, IpcacheKey, PolicyEntry, PolicyKey, RemoteEndpointInfo, mac_word,
};
use integration_tests::Node;
use test_kit::NetNs;

use super::service;

/// Pins of a 1.20 agent without those of endpoints (name, type, sizes, flags), and their twins of IPv6.
pub(crate) const PINS: &str = include_str!("pinned-maps.tsv");
/// The record of an endpoint of a 1.20 agent.
const RECORD: &str = include_str!("../../../../cells/endpoint/endpoints/tests/samples/ep_config.json");
/// A recorded label of its pod, and those that pods of a cluster have beside.
const CLUSTER: &str = r#""io.cilium.k8s.policy.cluster":{"#;
const OF_CLUSTER_PODS: [&str; 2] =
    ["io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name", "io.cilium.k8s.policy.serviceaccount"];
/// The router's addresses.
pub(crate) const ROUTER: [&str; 2] = ["10.244.0.14", "fd00:10:244::14"];
/// Programs on devices: device, program, whether it is for egress.
pub(crate) const ON_DEVICES: [(&str, &str, bool); 4] = [
    ("cilium_host", "cil_from_host", true),
    ("cilium_host", "cil_to_host", false),
    ("cilium_net", "cil_to_host", false),
    ("eth0", "cil_from_netdev", false),
];

/// A pod of Cilium.
#[derive(Clone, Debug)]
pub(crate) struct OldPod {
    pub(crate) name: &'static str,
    pub(crate) id: u16,
    pub(crate) identity: u32,
    pub(crate) interface: &'static str,
    pub(crate) ips: [IpAddr; 2],
    pub(crate) ns: NetNs,
    pub(crate) ifindex: u32,
    mac: [u8; 6],
    node_mac: [u8; 6],
}

/// A node with leftovers of Cilium: a client that may reach a server, and a stranger that may not.
pub(crate) struct Original {
    pub(crate) node: Node,
    pub(crate) client: OldPod,
    pub(crate) server: OldPod,
    pub(crate) stranger: OldPod,
}

impl Original {
    pub(crate) fn new() -> Original {
        let mut node = Node::new();
        // As Cilium by default: what it has preallocated is then of the same layout.
        node.config.insert("preallocate-bpf-maps".into(), "true".into());
        node.follow_services("services.json");
        let host = node.host().clone();
        host.ip("link add cilium_host type veth peer name cilium_net").unwrap();
        let [v4, v6] = ROUTER;
        host.ip_batch(&format!(
            "link set cilium_host up arp off\nlink set cilium_net up arp off\n\
             addr add {v4}/32 dev cilium_host\naddr add {v6}/128 dev cilium_host nodad\n\
             route add {v4}/32 dev cilium_host proto kernel scope link\n\
             route add 10.244.0.0/24 via {v4} dev cilium_host proto kernel src {v4}\n\
             route add fd00:10:244::/112 dev cilium_host proto kernel src {v6} metric 1024\n"
        ))
        .unwrap();
        let client = pod(&node, "client", 1644, 24_453, "lxcc4cdef55b95c", 101);
        let server = pod(&node, "server", 2386, 6_592, "lxc66da2a01a005", 102);
        let stranger = pod(&node, "stranger", 970, 64_805, "lxcc1a86b6221ba", 103);
        let original = Original { node, client, server, stranger };
        original.neighbours();
        original.maps();
        service::write(&original.node, &original.server);
        original.programs();
        original.files();
        original
    }

    pub(crate) fn pods(&self) -> [&OldPod; 3] {
        [&self.client, &self.server, &self.stranger]
    }

    pub(crate) fn link(&self, pod: &OldPod) -> PathBuf {
        let endpoints = self.node.sandbox().bpf_root().join("cilium/endpoints");
        endpoints.join(pod.id.to_string()).join("links/cil_from_container")
    }

    pub(crate) fn device_link(&self, device: &str, program: &str) -> PathBuf {
        self.node.sandbox().bpf_root().join("cilium/devices").join(device).join("links").join(program)
    }

    pub(crate) fn policy_pin(&self, pod: &OldPod) -> PathBuf {
        self.node.pin(&format!("cilium_policy_v2_{:05}", pod.id))
    }

    /// The programs of this test redirect without rewriting: receivers must accept a pod's packets unchanged.
    fn neighbours(&self) {
        for (from, to) in
            [(&self.client, &self.server), (&self.server, &self.client), (&self.stranger, &self.server)]
        {
            let [v4, v6] = ROUTER;
            let mac = text(to.mac);
            from.ns
                .ip_batch(&format!(
                    "neigh replace {v4} lladdr {mac} dev eth0 nud permanent\n\
                     neigh replace {v6} lladdr {mac} dev eth0 nud permanent\n"
                ))
                .unwrap();
        }
    }

    fn maps(&self) {
        fs::create_dir_all(self.node.pin("")).unwrap();
        for line in PINS.lines() {
            let (name, layout) = parse(line);
            create(&self.node, name, layout);
        }
        for name in ["cilium_calls_hostns_00506", "cilium_calls_netdev_00002"] {
            create(&self.node, name, CALLS);
        }
        let open = |name: &str| RawMap::open(&self.node.pin(name)).unwrap();
        let lxc: Map<EndpointKey, EndpointInfo> = Map::new(open("cilium_lxc")).unwrap();
        let ipcache: Map<IpcacheKey, RemoteEndpointInfo> = Map::new(open("cilium_ipcache_v2")).unwrap();
        for pod in self.pods() {
            create(&self.node, &format!("cilium_calls_{:05}", pod.id), CALLS);
            let info = EndpointInfo {
                ifindex: pod.ifindex,
                lxc_id: pod.id,
                mac: mac_word(pod.mac),
                node_mac: mac_word(pod.node_mac),
                sec_id: pod.identity,
                ..EndpointInfo::default()
            };
            for ip in pod.ips {
                lxc.update(&EndpointKey::from(ip), &info).unwrap();
                let bits = if ip.is_ipv4() { 32 } else { 128 };
                let known =
                    RemoteEndpointInfo { sec_identity: pod.identity, ..RemoteEndpointInfo::default() };
                ipcache.update(&IpcacheKey::new(ip, bits), &known).unwrap();
            }
            let layout = Layout {
                map_type: MapType::LpmTrie,
                key_size: 12,
                value_size: 12,
                max_entries: 16384,
                flags: MapFlags(0x81),
            };
            create(&self.node, &format!("cilium_policy_v2_{:05}", pod.id), layout);
            let policy: Map<PolicyKey, PolicyEntry> =
                Map::new(RawMap::open(&self.policy_pin(pod)).unwrap()).unwrap();
            let allow = PolicyEntry::allow(0);
            let from = if pod.id == self.server.id { self.client.identity } else { 0 };
            policy.update(&PolicyKey { sec_label: from, ..PolicyKey::any(false) }, &allow).unwrap();
            policy.update(&PolicyKey::any(true), &allow).unwrap();
        }
    }

    /// The programs of Cilium: the client's and the server's packets go to the other's interface, the stranger's nowhere.
    fn of_pods(&self) -> [(&OldPod, Program); 3] {
        let drop_all = Program::from_instructions("cil_from_container", &[0x2_0000_00b7, 0x95]).unwrap();
        [
            (&self.client, service::to_backend(&self.node, self.server.ifindex)),
            (&self.server, service::from_backend(&self.node, self.client.ifindex)),
            (&self.stranger, drop_all),
        ]
    }

    fn programs(&self) {
        for (pod, program) in self.of_pods() {
            attach(&self.link(pod), &program, pod.ifindex, Direction::Ingress);
        }
        for (device, name, egress) in ON_DEVICES {
            let direction = if egress { Direction::Egress } else { Direction::Ingress };
            attach(
                &self.device_link(device, name),
                &pass(name),
                ifindex(self.node.host(), device),
                direction,
            );
        }
    }

    /// Puts the programs of Cilium into the links that there are, as its agent does at a start. They read the services of
    /// the pinned maps. Returns the ids of the programs.
    pub(crate) fn come_back(&self) -> Vec<u32> {
        let of_pods = self.of_pods().map(|(pod, program)| (self.link(pod), program));
        let of_devices = ON_DEVICES.map(|(device, name, _)| (self.device_link(device, name), pass(name)));
        let replaced = of_pods.into_iter().chain(of_devices).map(|(pin, program)| {
            let link = Link::open(&pin).unwrap();
            link.update(&program).unwrap();
            link.info().unwrap().program
        });
        replaced.collect()
    }

    fn files(&self) {
        let (run, state) = (self.node.sandbox().run_dir(), self.node.endpoint_files());
        for pod in self.pods() {
            let folder = state.join(pod.id.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("ep_config.json"), record(pod)).unwrap();
            for other in ["ep_config.h", "bpf_lxc.json", "template.txt"] {
                fs::write(folder.join(other), "of the original").unwrap();
            }
        }
        for folder in ["globals", "templates/2efd22e6631f", "bpf/cilium_host"] {
            fs::create_dir_all(state.join(folder)).unwrap();
        }
        fs::write(state.join("globals/node_config.h"), format!("#define IPV4_GATEWAY {}\n", ROUTER[0]))
            .unwrap();
        fs::write(state.join("templates/2efd22e6631f/bpf_lxc.o"), "object").unwrap();
        fs::write(state.join("local_allocator_state.json"), "[]").unwrap();
        fs::write(state.join("nodes.json"), "[]").unwrap();
        for file in ["device-reconciler.wal", "route-reconciler.wal", "cilium-agent-health-history.log"] {
            fs::write(state.join(file), "").unwrap();
        }
        fs::create_dir_all(run.join("deleteQueue")).unwrap();
        fs::create_dir_all(run.join("envoy/sockets")).unwrap();
        fs::write(run.join("deleteQueue/lockfile"), "").unwrap();
        // The pid of a process that does not exist.
        fs::write(run.join("cilium.pid"), "4194304").unwrap();
    }
}

const CALLS: Layout =
    Layout { map_type: MapType::ProgArray, key_size: 4, value_size: 4, max_entries: 50, flags: MapFlags(0) };

/// A line of the table of pins.
pub(crate) fn parse(line: &str) -> (&str, Layout) {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, kind, key, value, max, flags] = fields[..] else { panic!("{line}") };
    let number = |field: &str| field.split_once('=').unwrap().1.parse::<u32>().unwrap();
    let map_type = (1..40).map(MapType::from_number).find(|known| known.to_string() == kind).expect(kind);
    let layout = Layout {
        map_type,
        key_size: number(key),
        value_size: number(value),
        max_entries: number(max),
        flags: MapFlags(number(flags)),
    };
    (name, layout)
}

fn create(node: &Node, name: &str, layout: Layout) {
    let max_entries = match layout.map_type {
        MapType::PerfEventArray => bpf::possible_cpus() as u32,
        _ => layout.max_entries,
    };
    let spec =
        MapSpec { name: name.to_owned().into(), layout: Layout { max_entries, ..layout }, inner: None };
    RawMap::create(&spec).unwrap().pin(&node.pin(name)).unwrap();
}

/// A program that lets all packets through.
fn pass(name: &str) -> Program {
    Program::from_instructions(name, &[0x00b7, 0x95]).unwrap()
}

fn attach(pin: &std::path::Path, program: &Program, ifindex: u32, direction: Direction) {
    fs::create_dir_all(pin.parent().unwrap()).unwrap();
    Link::tcx(program, ifindex, direction).unwrap().pin(pin).unwrap();
}

fn ifindex(ns: &NetNs, name: &str) -> u32 {
    ns.ip(&format!("-o link show dev {name}")).unwrap().split(':').next().unwrap().parse().unwrap()
}

fn mac(ns: &NetNs, name: &str) -> [u8; 6] {
    let link = ns.ip(&format!("-o link show dev {name}")).unwrap();
    let text = link.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn pod(node: &Node, name: &'static str, id: u16, identity: u32, interface: &'static str, last: u8) -> OldPod {
    let ns = node.sandbox().netns(name).unwrap();
    node.host().veth(interface, &ns, "eth0").unwrap();
    let ips = [format!("10.244.0.{last}"), format!("fd00:10:244::{last}")];
    let [v4, v6] = ROUTER;
    ns.ip_batch(&format!(
        "addr add {}/32 dev eth0\naddr add {}/128 dev eth0 nodad\n\
         route add {v4} dev eth0 scope link\nroute add default via {v4} dev eth0\n\
         route add {v6} dev eth0\nroute add default via {v6} dev eth0\n",
        ips[0], ips[1]
    ))
    .unwrap();
    let (mac_inside, node_mac) = (mac(&ns, "eth0"), mac(node.host(), interface));
    let ifindex = ifindex(node.host(), interface);
    let ips = ips.map(|ip| ip.parse().unwrap());
    OldPod { name, id, identity, interface, ips, ns, ifindex, mac: mac_inside, node_mac }
}

/// The recorded record, made this pod's.
fn record(pod: &OldPod) -> String {
    let interface = format!(r#""IfName":"{}","IfIndex":{}"#, pod.interface, pod.ifindex);
    let label = |key: &str| format!(r#""{key}":{{"key":"{key}","value":"default","source":"k8s"}},"#);
    let more = OF_CLUSTER_PODS.map(label).concat();
    let pairs = [
        (r#""ID":2386"#, format!(r#""ID":{}"#, pod.id)),
        ("cid-p1", format!("container-{}", pod.name)),
        ("/var/run/cilium/netns/p1", pod.ns.path().display().to_string()),
        (r#""IfName":"lxc66da2a01a005","IfIndex":9"#, interface),
        (r#""value":"p1""#, format!(r#""value":"{}""#, pod.name)),
        ("6e:a7:d1:db:66:a5", text(pod.mac)),
        (r#""IPv6":"""#, format!(r#""IPv6":"{}""#, pod.ips[1])),
        ("10.244.183.160", pod.ips[0].to_string()),
        ("be:5e:28:23:ab:a6", text(pod.node_mac)),
        (r#""id":6592"#, format!(r#""id":{}"#, pod.identity)),
        (CLUSTER, format!("{more}{CLUSTER}")),
        (r#""K8sPodName":"p1""#, format!(r#""K8sPodName":"{}""#, pod.name)),
    ];
    pairs.iter().fold(RECORD.to_owned(), |record, (from, to)| {
        assert!(record.contains(from), "{from}");
        record.replace(from, to)
    })
}
