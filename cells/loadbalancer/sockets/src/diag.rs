//! Sockets of a network namespace, listed and ended by netlink (`linux/inet_diag.h`, `linux/sock_diag.h`).

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// A change has interrupted a dump: it may have gaps.
const NLM_F_DUMP_INTR: u8 = 0x10;

/// Bytes of a netlink header, of `inet_diag_sockid`, of `inet_diag_msg`.
const HEADER: usize = 16;
const ID: usize = 48;
const MESSAGE: usize = 72;

/// Larger than any message of the kernel (dumps use at most 32 KiB).
const BUFFER: usize = 64 << 10;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// A transport protocol whose sockets can be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

impl Transport {
    fn number(self) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        }
    }

    /// States, as a mask, of sockets that have a peer and are not about to go: established, SYN sent and received,
    /// `FIN_WAIT1`, `CLOSE_WAIT`. A UDP socket that is connected counts as established.
    fn states(self) -> u32 {
        match self {
            Transport::Tcp => 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 8,
            Transport::Udp => 1 << 1,
        }
    }
}

/// A socket that has a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InetSocket {
    /// The kernel's number for it, by which eBPF programs know it, too.
    pub cookie: u64,
    /// Its peer; one of IPv4 also if the socket is of IPv6.
    pub peer: SocketAddr,
    transport: Transport,
    family: u8,
    id: [u8; ID],
}

/// Asks about the sockets of one network namespace.
#[derive(Debug)]
pub struct Diag {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Diag {
    /// For the network namespace of the calling thread.
    pub fn open() -> io::Result<Diag> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddr::new(0, 0))?;
        Ok(Diag { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER) })
    }

    /// Whether the kernel can end sockets of a protocol; the error says why not.
    pub fn can_destroy(&mut self, transport: Transport) -> io::Result<()> {
        // A socket that cannot be there: of no address, with a cookie that is never given.
        let mut id = [0; ID];
        id[ID - 8..].fill(0xfe);
        let nobody = InetSocket {
            cookie: 0,
            peer: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            transport,
            family: AF_INET,
            id,
        };
        self.destroy(&nobody).map(drop)
    }

    /// The sockets of a protocol that have a peer, of both families.
    pub fn connected(&mut self, transport: Transport) -> io::Result<Vec<InetSocket>> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let request = request(family, transport, transport.states(), &[0; ID]);
            let listed = self.exchange(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &request, |message| {
                found.extend(socket(message, transport));
            });
            match listed {
                // A kernel without the family.
                Err(error) if error.kind() == ErrorKind::NotFound && family == AF_INET6 => {}
                listed => listed?,
            }
        }
        Ok(found)
    }

    /// Ends a socket: its owner gets `ECONNABORTED`. False if it has gone by itself.
    pub fn destroy(&mut self, socket: &InetSocket) -> io::Result<bool> {
        let request = request(socket.family, socket.transport, !0, &socket.id);
        match self.exchange(SOCK_DESTROY, NLM_F_ACK, &request, |_| {}) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a request, hands what comes to `sink`, until the kernel says that this was all.
    fn exchange(
        &mut self,
        kind: u16,
        flags: u16,
        request: &[u8],
        mut sink: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER + request.len());
        message.extend(((HEADER + request.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(request);
        self.socket.send(&message, 0)?;
        let mut interrupted = false;
        loop {
            self.buffer.clear();
            self.buffer.reserve(BUFFER);
            self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = &self.buffer[..];
            while let Some(length) = u32_at(rest, 0).map(|length| length as usize) {
                if !(HEADER..=rest.len()).contains(&length) {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        "netlink message longer than its packet",
                    ));
                }
                let (message, tail) = rest.split_at(length);
                rest = tail.get(length.next_multiple_of(4) - length..).unwrap_or_default();
                if u32_at(message, 8) != Some(self.sequence) {
                    continue;
                }
                interrupted |= message[6] & NLM_F_DUMP_INTR != 0;
                match u16::from_ne_bytes([message[4], message[5]]) {
                    // The end of a dump carries its error.
                    NLMSG_DONE if interrupted => return Err(ErrorKind::Interrupted.into()),
                    NLMSG_DONE | NLMSG_ERROR => {
                        match u32_at(message, HEADER).unwrap_or_default().cast_signed() {
                            0 => return Ok(()),
                            error => return Err(io::Error::from_raw_os_error(-error)),
                        }
                    }
                    _ => sink(&message[HEADER..]),
                }
            }
        }
    }
}

/// `inet_diag_req_v2`.
fn request(family: u8, transport: Transport, states: u32, id: &[u8; ID]) -> Vec<u8> {
    let mut request = vec![family, transport.number(), 0, 0];
    request.extend(states.to_ne_bytes());
    request.extend(id);
    request
}

/// The socket of an `inet_diag_msg`; none if it is of another family.
fn socket(message: &[u8], transport: Transport) -> Option<InetSocket> {
    let message = message.get(..MESSAGE)?;
    let family = message[0];
    let id: [u8; ID] = message[4..4 + ID].try_into().ok()?;
    let port = u16::from_be_bytes([id[2], id[3]]);
    let peer: [u8; 16] = id[20..36].try_into().ok()?;
    let ip = match family {
        AF_INET => IpAddr::V4(Ipv4Addr::new(peer[0], peer[1], peer[2], peer[3])),
        AF_INET6 => Ipv6Addr::from(peer).to_canonical(),
        _ => return None,
    };
    let cookie = u64::from(u32_at(&id, 40)?) | u64::from(u32_at(&id, 44)?) << 32;
    Some(InetSocket { cookie, peer: SocketAddr::new(ip, port), transport, family, id })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_kernels_layout() {
        let mut message = vec![AF_INET6, 1, 0, 0];
        message.extend([0x30, 0x39, 0, 53]); // ports 12345, 53
        message.extend(Ipv6Addr::LOCALHOST.octets());
        message.extend(Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped().octets());
        message.extend(7_u32.to_ne_bytes());
        message.extend(0x0102_0304_u32.to_ne_bytes());
        message.extend(1_u32.to_ne_bytes());
        message.extend([0; 20]);
        assert_eq!(message.len(), MESSAGE);
        let socket = socket(&message, Transport::Udp).unwrap();
        assert_eq!(socket.peer, "10.0.0.9:53".parse().unwrap());
        assert_eq!(socket.cookie, 0x1_0102_0304);
        let request = request(AF_INET6, Transport::Udp, Transport::Udp.states(), &socket.id);
        assert_eq!(request.len(), 56);
        assert_eq!((request[..4].to_vec(), u32_at(&request, 4)), (vec![10, 17, 0, 0], Some(2)));
        assert_eq!(request[8..], message[4..52]);
        assert!(super::socket(&message[..MESSAGE - 1], Transport::Udp).is_none());
    }
}
