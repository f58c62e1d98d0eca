//! Trying flows with real packets.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use test_kit::NetNs;

use super::model::{Flow, L4, Party};

/// Time on a busy machine after which a packet counts as dropped.
const PATIENCE: Duration = Duration::from_millis(600);

/// The namespace and address of a party.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) ns: NetNs,
    pub(crate) addresses: [IpAddr; 2],
}

/// Tries all flows at once. Returns those that passed. Listeners are started before, so that a refusal by a missing
/// listener does not count as a drop.
pub(crate) fn passes(flows: &[Flow], place: impl Fn(Party) -> Place) -> Vec<bool> {
    let target = |flow: &Flow| place(flow.to).addresses[usize::from(flow.ipv6)];
    let mut udp: HashMap<SocketAddr, UdpSocket> = HashMap::new();
    let mut tcp: HashMap<SocketAddr, TcpListener> = HashMap::new();
    for flow in flows {
        let ns = place(flow.to).ns;
        match flow.l4 {
            L4::Udp(port) => {
                let address = (target(flow), port).into();
                udp.entry(address).or_insert_with(|| {
                    let socket = ns.run(|| UdpSocket::bind(address)).unwrap();
                    socket.set_nonblocking(true).unwrap();
                    socket
                });
            }
            L4::Tcp(port) => {
                let address = (target(flow), port).into();
                tcp.entry(address).or_insert_with(|| ns.run(|| TcpListener::bind(address)).unwrap());
            }
            L4::Ping => {}
        }
    }
    let mut passed = vec![false; flows.len()];
    let mut pings: Vec<(usize, Child)> = Vec::new();
    thread::scope(|scope| {
        let connects: Vec<_> = flows
            .iter()
            .enumerate()
            .filter_map(|(index, flow)| {
                let L4::Tcp(port) = flow.l4 else { return None };
                let (ns, address) = (place(flow.from).ns, (target(flow), port).into());
                let connect = move || ns.run(|| TcpStream::connect_timeout(&address, PATIENCE).is_ok());
                Some((index, scope.spawn(connect)))
            })
            .collect();
        for (index, flow) in flows.iter().enumerate().filter(|(_, flow)| flow.l4 == L4::Ping) {
            let mut ping = place(flow.from).ns.command("ping");
            ping.args(["-n", "-c1", "-W1", "-q", &target(flow).to_string()]);
            pings.push((index, ping.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()));
        }
        for index in send_udp(flows, &udp, &place) {
            passed[index] = true;
        }
        for (index, connect) in connects {
            passed[index] = connect.join().unwrap();
        }
    });
    for (index, mut ping) in pings {
        passed[index] = ping.wait().unwrap().success();
    }
    passed
}

/// Sends one numbered packet per UDP flow, from a unique port. Returns the numbers of those that arrived.
fn send_udp(
    flows: &[Flow],
    listeners: &HashMap<SocketAddr, UdpSocket>,
    place: impl Fn(Party) -> Place,
) -> Vec<usize> {
    let mut senders = Vec::new();
    for (index, flow) in flows.iter().enumerate() {
        let L4::Udp(port) = flow.l4 else { continue };
        let family = usize::from(flow.ipv6);
        let from = place(flow.from);
        let any: SocketAddr = if flow.ipv6 { ([0u16; 8], 0).into() } else { ([0u8; 4], 0).into() };
        let socket = from.ns.run(|| UdpSocket::bind(any)).unwrap();
        let target = (place(flow.to).addresses[family], port);
        // A drop is silent for the sender; any other error would be a fault of the test.
        socket.send_to(&index.to_be_bytes(), target).unwrap();
        senders.push(socket);
    }
    let mut arrived = Vec::new();
    let begin = Instant::now();
    while arrived.len() < senders.len() && begin.elapsed() < PATIENCE {
        for socket in listeners.values() {
            let mut buffer = [0; 16];
            while let Ok(8) = socket.recv(&mut buffer) {
                let index = usize::from_be_bytes(buffer[..8].try_into().unwrap());
                if !arrived.contains(&index) {
                    arrived.push(index);
                }
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
    arrived
}
