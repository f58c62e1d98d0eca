//! Sockets of a network namespace, listed and terminated by netlink (`linux/inet_diag.h`, `linux/sock_diag.h`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink::{Body, Connection, Error, Protocol, Request};

/// Types of messages (`linux/sock_diag.h`).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;

/// Bytes of `struct inet_diag_sockid` and `struct inet_diag_msg`.
const SOCKID_LEN: usize = 48;
const MESSAGE_LEN: usize = 72;

/// States of sockets, as bits of a mask (`TCPF_*` of `net/tcp_states.h`).
const ESTABLISHED: u32 = 1 << 1;
const SYN_SENT: u32 = 1 << 2;
const SYN_RECV: u32 = 1 << 3;
const FIN_WAIT1: u32 = 1 << 4;
const CLOSE_WAIT: u32 = 1 << 8;
/// `TCPF_ALL`
const ALL_STATES: u32 = !0;

const INET: u8 = libc::AF_INET as u8;
const INET6: u8 = libc::AF_INET6 as u8;

/// A transport protocol whose sockets can be terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

impl Transport {
    /// `IPPROTO_*`
    fn protocol(self) -> u8 {
        match self {
            Transport::Tcp => libc::IPPROTO_TCP as u8,
            Transport::Udp => libc::IPPROTO_UDP as u8,
        }
    }

    /// Returns the states, as a mask, of sockets that have a peer and are not closing. A connected UDP socket is in
    /// state established.
    fn connected_states(self) -> u32 {
        match self {
            Transport::Tcp => ESTABLISHED | SYN_SENT | SYN_RECV | FIN_WAIT1 | CLOSE_WAIT,
            Transport::Udp => ESTABLISHED,
        }
    }
}

/// A socket with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InetSocket {
    /// The kernel's id of it, which eBPF programs can read, too.
    pub cookie: u64,
    /// Its peer: an IPv4 address even if it is an IPv6 socket.
    pub peer: SocketAddr,
    transport: Transport,
    family: u8,
    /// `struct inet_diag_sockid`, as the kernel reported it.
    id: [u8; SOCKID_LEN],
}

/// A handle that lists and terminates the sockets of one network namespace.
#[derive(Debug)]
pub struct Diag {
    connection: Connection,
}

impl Diag {
    /// Opens a netlink socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Diag> {
        Ok(Diag { connection: Connection::open(Protocol::SockDiag)? })
    }

    /// Probes whether the kernel can terminate sockets of a protocol; the error is the reason why not.
    pub fn can_destroy(&mut self, transport: Transport) -> Result<(), Error> {
        // A socket that cannot exist: without addresses, with a cookie that the kernel never assigns.
        let mut id = [0; SOCKID_LEN];
        id[SOCKID_LEN - 8..].fill(0xfe);
        let peer = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        self.destroy(&InetSocket { cookie: 0, peer, transport, family: INET, id }).map(drop)
    }

    /// Returns the sockets of a protocol that have a peer, of both families.
    pub fn connected(&mut self, transport: Transport) -> Result<Vec<InetSocket>, Error> {
        let mut found = Vec::new();
        for family in [INET, INET6] {
            let body = request(family, transport, transport.connected_states(), &[0; SOCKID_LEN]);
            let request = Request { kind: SOCK_DIAG_BY_FAMILY, body };
            match self.connection.dump(&request, |answer| Ok(socket(answer.body, transport))) {
                Ok(sockets) => found.extend(sockets),
                // A kernel without IPv6.
                Err(error) if error.errno() == Some(libc::ENOENT) && family == INET6 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Terminates a socket: its process gets `ECONNABORTED`. False if it was closed in the meantime.
    pub fn destroy(&mut self, socket: &InetSocket) -> Result<bool, Error> {
        let body = request(socket.family, socket.transport, ALL_STATES, &socket.id);
        match self.connection.request(&Request { kind: SOCK_DESTROY, body }, 0) {
            Ok(()) => Ok(true),
            // No such socket, or the id belongs to another one now.
            Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ESTALE)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// `struct inet_diag_req_v2`
fn request(family: u8, transport: Transport, states: u32, id: &[u8; SOCKID_LEN]) -> Body {
    let selection = [family, transport.protocol(), 0, 0];
    Body::new(&[&selection[..], &states.to_ne_bytes(), id].concat())
}

/// Returns the socket of a `struct inet_diag_msg`; `None` for one of another family.
fn socket(message: &[u8], transport: Transport) -> Option<InetSocket> {
    let message: &[u8; MESSAGE_LEN] = message.first_chunk()?;
    let family = message[0];
    let id: [u8; SOCKID_LEN] = message[4..4 + SOCKID_LEN].try_into().ok()?;
    // struct inet_diag_sockid: ports, both addresses in 16 bytes each, interface, cookie in two words.
    let port = u16::from_be_bytes([id[2], id[3]]);
    let peer: [u8; 16] = id[20..36].try_into().ok()?;
    let ip = match family {
        INET => IpAddr::V4(Ipv4Addr::new(peer[0], peer[1], peer[2], peer[3])),
        INET6 => Ipv6Addr::from(peer).to_canonical(),
        _ => return None,
    };
    let word = |at: usize| Some(u32::from_ne_bytes(id.get(at..at + 4)?.try_into().ok()?));
    let cookie = u64::from(word(40)?) | u64::from(word(44)?) << 32;
    Some(InetSocket { cookie, peer: SocketAddr::new(ip, port), transport, family, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_kernels_layout() {
        let mut message = vec![INET6, 1, 0, 0];
        message.extend([0x30, 0x39, 0, 53]); // ports 12345, 53
        message.extend(Ipv6Addr::LOCALHOST.octets());
        message.extend(Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped().octets());
        message.extend(7_u32.to_ne_bytes());
        message.extend(0x0102_0304_u32.to_ne_bytes());
        message.extend(1_u32.to_ne_bytes());
        message.extend([0; 20]);
        assert_eq!(message.len(), MESSAGE_LEN);
        let socket = socket(&message, Transport::Udp).unwrap();
        assert_eq!(socket.peer, "10.0.0.9:53".parse().unwrap());
        assert_eq!(socket.cookie, 0x1_0102_0304);
        let request = request(INET6, Transport::Udp, Transport::Udp.connected_states(), &socket.id);
        let request = request.as_bytes();
        assert_eq!(request.len(), 56);
        assert_eq!((&request[..4], &request[4..8]), (&[10, 17, 0, 0][..], &2_u32.to_ne_bytes()[..]));
        assert_eq!(request[8..], message[4..52]);
        assert!(super::socket(&message[..MESSAGE_LEN - 1], Transport::Udp).is_none());
    }
}
