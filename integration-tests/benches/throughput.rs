//! TCP between pods of two nodes, by the tunnel and by direct routes, as ratios to the kernel alone: namespaces with the
//! same links, a vxlan device or routes, and no programs. Medians of interleaved pairs. Prints one row a number (name,
//! measured, unit, goal, met, peer), tab separated.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use integration_tests::Node;
use integration_tests::measure::{compared_row, no_rows, percentile};
use serde_json::json;
use test_kit::{NetNs, Sandbox, try_wait_until};

/// Pairs of transfers, one of each kind.
const PAIRS: usize = 21;
const TRANSFER: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(60);
/// Smaller differences are noise of the machine.
const GOAL: f64 = 1.1;
const HOSTS: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
const PORT: u16 = 5201;
/// One that sends as fast as it is acknowledged: BBR, the default of some machines, sends by the timers of its own estimate
/// of the path. Namespaces may choose this one on every machine.
const CONGESTION_CONTROL: &str = "reno";
/// Bytes of one write.
const CHUNK: usize = 256 << 10;

fn main() {
    if !test_kit::is_root() {
        no_rows("throughput", "needs root");
        return;
    }
    for (name, is_tunnel) in [("vxlan", true), ("direct routes", false)] {
        let nodes = two_nodes(is_tunnel);
        let plain = Plain::new(nodes.nodes[0].sandbox(), is_tunnel);
        let (ours, kernel) = (nodes.ends(), plain.ends());
        for ends in [&ours, &kernel] {
            ends.from.set_sysctl("net/ipv4/tcp_congestion_control", CONGESTION_CONTROL).unwrap();
            try_wait_until(LIMIT, || transfer(ends).map(drop)).expect("the other end is reached");
        }
        let (mut ratios, mut rates) = (Vec::new(), [Vec::new(), Vec::new()]);
        for pair in 0..PAIRS {
            let mut pair_rates = [0.0; 2];
            // The order alternates: the machine may get slower or faster all the time.
            for index in [pair % 2, 1 - pair % 2] {
                pair_rates[index] = transfer([&ours, &kernel][index]).expect("it was reached before");
                rates[index].push(pair_rates[index]);
            }
            ratios.push(pair_rates[1] / pair_rates[0]);
        }
        let [own, alone] = rates.map(|rates| percentile(rates, 50) * 8.0 / 1e9);
        let [low, high] = [25, 75].map(|hundredths| percentile(ratios.clone(), hundredths));
        let peer = format!("{own:.2} Gbit/s, kernel {alone:.2} Gbit/s, quartiles {low:.2} to {high:.2}");
        let name = format!("TCP between pods by {name}, time against the kernel's");
        compared_row(&name, percentile(ratios, 50), "x", GOAL, &peer);
    }
}

/// The namespaces of a sender and a receiver, and the receiver's address.
struct Ends<'n> {
    from: &'n NetNs,
    to: &'n NetNs,
    ip: IpAddr,
}

/// Sends as much as possible. Returns the bytes a second that have arrived.
fn transfer(ends: &Ends<'_>) -> Result<f64, String> {
    let text = |error: std::io::Error| error.to_string();
    let listener = ends.to.run(|| TcpListener::bind((ends.ip, PORT))).map_err(text)?;
    let to = SocketAddr::new(ends.ip, PORT);
    let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(1));
    let mut sender = ends.from.run(connect).map_err(text)?;
    let (mut receiver, _) = listener.accept().map_err(text)?;
    std::thread::scope(|scope| {
        let received = scope.spawn(move || {
            let (mut buffer, mut bytes) = (vec![0; CHUNK], 0);
            while let Ok(length @ 1..) = receiver.read(&mut buffer) {
                bytes += length;
            }
            bytes
        });
        let (chunk, begin) = (vec![0; CHUNK], Instant::now());
        while begin.elapsed() < TRANSFER {
            sender.write_all(&chunk).map_err(text)?;
        }
        drop(sender);
        let bytes = received.join().map_err(|_| "the receiver has panicked".to_owned())?;
        Ok(bytes as f64 / begin.elapsed().as_secs_f64())
    })
}

struct Nodes {
    pods: Vec<integration_tests::Pod>,
    nodes: [Node; 2],
}

impl Nodes {
    fn ends(&self) -> Ends<'_> {
        let [from, to] = &self.pods[..] else { unreachable!("there are two") };
        Ends { from: &from.ns, to: &to.ns, ip: to.ipv4 }
    }
}

/// Two nodes with an agent and a pod each, and a link between them.
fn two_nodes(is_tunnel: bool) -> Nodes {
    let mut nodes = [Node::new(), Node::new()];
    nodes[0].host().veth("eth1", nodes[1].host(), "eth1").unwrap();
    for (number, (node, ip)) in (1..).zip(nodes.iter_mut().zip(HOSTS)) {
        node.host().ip(&format!("addr add {ip}/24 dev eth1")).unwrap();
        let mode = if is_tunnel { "tunnel" } else { "native" };
        for (key, value) in [
            ("ipv4-node", ip.to_owned()),
            ("ipv4-range", format!("10.24{number}.0.0/24")),
            ("ipv6-range", format!("fd00:10:24{number}::/112")),
            ("routing-mode", mode.to_owned()),
            ("auto-direct-node-routes", (!is_tunnel).to_string()),
            ("devices", "eth+".to_owned()),
            // As the chart sets it: with the agent's own default each packet is reported at each of its points.
            ("monitor-aggregation", "medium".to_owned()),
            ("monitor-aggregation-flags", "all".to_owned()),
        ] {
            node.config.insert(key.to_owned(), value);
        }
        node.start();
    }
    let pods = nodes.iter_mut().map(|node| node.add_pod("pod")).collect();
    for (node, other) in [(0, 1), (1, 0)] {
        let object = json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "other"},
            "spec": {
                "addresses": [{"type": "InternalIP", "ip": HOSTS[other]}],
                "ipam": {"podCIDRs": [format!("10.24{}.0.0/24", other + 1)]},
            },
        });
        nodes[node].apply("other.json", &object.to_string());
    }
    Nodes { pods, nodes }
}

/// The same links without an agent: two hosts with a pod each.
struct Plain {
    pods: [NetNs; 2],
}

impl Plain {
    fn new(sandbox: &Sandbox, is_tunnel: bool) -> Plain {
        let hosts = [1, 2].map(|number| sandbox.netns(&format!("plain-host{number}")).unwrap());
        let pods = [1, 2].map(|number| sandbox.netns(&format!("plain-pod{number}")).unwrap());
        hosts[0].veth("eth1", &hosts[1], "eth1").unwrap();
        let mtu = if is_tunnel { 1450 } else { 1500 };
        for (here, there) in [(0, 1), (1, 0)] {
            let (host, pod) = (&hosts[here], &pods[here]);
            host.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
            host.veth("pod", pod, "eth0").unwrap();
            let (own, other) = (here + 1, there + 1);
            host.ip_batch(&format!(
                "addr add {}/24 dev eth1\naddr add 10.23{own}.0.254/24 dev pod\n",
                HOSTS[here]
            ))
            .unwrap();
            let way = if is_tunnel {
                format!(
                    "link add vx type vxlan id 7 dstport 4789 remote {} dev eth1\n\
                     addr add 10.99.0.{own}/24 dev vx\nlink set vx up mtu 1450\n\
                     route add 10.23{other}.0.0/24 via 10.99.0.{other}\n",
                    HOSTS[there]
                )
            } else {
                format!("route add 10.23{other}.0.0/24 via {}\n", HOSTS[there])
            };
            host.ip_batch(&way).unwrap();
            pod.ip_batch(&format!(
                "addr add 10.23{own}.0.1/24 dev eth0\nroute add default via 10.23{own}.0.254 mtu {mtu}\n"
            ))
            .unwrap();
        }
        Plain { pods }
    }

    fn ends(&self) -> Ends<'_> {
        let [from, to] = &self.pods;
        Ends { from, to, ip: IpAddr::from([10, 232, 0, 1]) }
    }
}
