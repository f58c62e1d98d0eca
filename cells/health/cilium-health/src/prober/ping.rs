//! Raw ICMP sockets, one a family.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::os::fd::OwnedFd;

use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::net::UdpSocket;

use super::echo::{Echo, REQUEST_LEN};

/// Room for a reply with the longest IP header, and one byte by which longer packets are recognized.
const REPLY_LEN: usize = 60 + REQUEST_LEN + 1;

/// The sockets of the enabled families that could be opened.
pub(crate) struct PingSockets {
    ipv4: Option<UdpSocket>,
    ipv6: Option<UdpSocket>,
}

impl PingSockets {
    /// Opens the sockets, which needs `CAP_NET_RAW`. Returns the error of the first one that cannot be opened besides
    /// the others. Only replies with the id reach the sockets: other pings of the machine cost nothing.
    pub(crate) fn open(ipv4: bool, ipv6: bool, id: u16) -> (Self, Option<io::Error>) {
        let mut failed = None;
        let mut open = |enabled: bool, domain, protocol, filter: &[SockFilter]| {
            if !enabled {
                return None;
            }
            match socket(domain, protocol, filter) {
                Ok(socket) => Some(socket),
                // A kernel without the family, which has no address to probe either.
                Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => None,
                Err(error) => {
                    failed.get_or_insert(error);
                    None
                }
            }
        };
        let ipv4 = open(ipv4, Domain::IPV4, Protocol::ICMPV4, &filter(true, id));
        let ipv6 = open(ipv6, Domain::IPV6, Protocol::ICMPV6, &filter(false, id));
        (Self { ipv4, ipv6 }, failed)
    }

    /// Sends a ping; `None` without a socket for the family.
    pub(crate) fn send(&self, to: IpAddr, echo: Echo) -> Option<io::Result<usize>> {
        let socket = if to.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        // The port of a raw socket's destination is not used.
        socket.as_ref().map(|socket| socket.try_send_to(&echo.request(to), SocketAddr::new(to, 0)))
    }

    /// Waits for the next reply.
    pub(crate) async fn receive(&self) -> (IpAddr, Echo) {
        loop {
            let (mut v4, mut v6) = ([0; REPLY_LEN], [0; REPLY_LEN]);
            let (packet, received) = tokio::select! {
                received = receive(self.ipv4.as_ref(), &mut v4) => (&v4, received),
                received = receive(self.ipv6.as_ref(), &mut v6) => (&v6, received),
            };
            match received {
                Ok((length, from)) => {
                    if let Some(echo) = Echo::parse_reply(&packet[..length], from.ip()) {
                        return (from.ip(), echo);
                    }
                }
                // Errors of earlier packets, such as those of an ICMP error from a router; a probe that has no reply
                // fails by time. The yield keeps a socket that only fails from occupying the thread.
                Err(error) => {
                    tracing::debug!(%error, "Receiving an ICMP reply failed");
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

async fn receive(socket: Option<&UdpSocket>, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(buffer).await,
        None => std::future::pending().await,
    }
}

/// Opens a raw socket. tokio has no type for it, but its UDP socket only passes datagrams on.
fn socket(domain: Domain, protocol: Protocol, filter: &[SockFilter]) -> io::Result<UdpSocket> {
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.attach_filter(filter)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(StdSocket::from(OwnedFd::from(socket)))
}

/// Returns a classic BPF program that accepts echo replies with this id. Packets begin with the IP header for IPv4,
/// with that of ICMPv6 for IPv6.
fn filter(ipv4: bool, id: u16) -> Vec<SockFilter> {
    let code = |code: u32| u16::try_from(code).unwrap_or_default();
    let op = |code: u16, jt, jf, k| SockFilter::new(code, jt, jf, k);
    let half = code(libc::BPF_LD | libc::BPF_H | if ipv4 { libc::BPF_IND } else { libc::BPF_ABS });
    let equal = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let end = code(libc::BPF_RET | libc::BPF_K);
    let reply = if ipv4 { 0 } else { 129 << 8 };
    let mut program = vec![
        op(half, 0, 0, 0),
        op(equal, 0, 3, reply),
        op(half, 0, 0, 4),
        op(equal, 0, 1, u32::from(id)),
        op(end, 0, 0, u32::from(u16::MAX)),
        op(end, 0, 0, 0),
    ];
    if ipv4 {
        // X = length of the IP header.
        program.insert(0, op(code(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH), 0, 0, 0));
    }
    program
}
