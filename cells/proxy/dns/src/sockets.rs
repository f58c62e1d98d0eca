//! Sockets that receive packets to any address and send from any address.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg,
    sendmsg, setsockopt, sockopt,
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::net::{TcpListener, UdpSocket};

/// The mark of packets of the proxy: the datapath takes them as the proxy's and not as the host's.
const PROXY_MARK: u32 = 0x0B00;
/// Connections that wait for their acceptance.
const BACKLOG: i32 = 1024;
/// The length of a UDP header.
const UDP_HEADER: usize = 8;
/// The largest payload of a UDP packet.
pub(crate) const MAX_PAYLOAD: usize = 65_507;

/// Returns the mark by which the datapath takes packets as those of an identity, beyond its policy.
pub(crate) fn mark_of(identity: u32) -> u32 {
    PROXY_MARK | (identity & 0xFFFF) << 16 | (identity >> 16) & 0xFF
}

/// Returns a listener for connections to any address that is routed to `address`.
pub(crate) fn listen_tcp(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = transparent(address, Type::STREAM, Protocol::TCP, PROXY_MARK, reuse_port)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Returns a socket for packets to any address that is routed to `address`.
pub(crate) fn listen_udp(address: SocketAddr, reuse_port: bool) -> io::Result<UdpSocket> {
    let socket = transparent(address, Type::DGRAM, Protocol::UDP, PROXY_MARK, reuse_port)?;
    match address.is_ipv4() {
        true => setsockopt(&socket, sockopt::Ipv4OrigDstAddr, &true)?,
        false => setsockopt(&socket, sockopt::Ipv6OrigDstAddr, &true)?,
    }
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

/// Returns a socket to a server, marked for the identity of a client. With `source` packets have this address.
pub(crate) fn upstream(
    kind: Type,
    server: SocketAddr,
    identity: u32,
    source: Option<SocketAddr>,
    linger: Option<Duration>,
) -> io::Result<Socket> {
    let protocol = if kind == Type::DGRAM { Protocol::UDP } else { Protocol::TCP };
    let mark = mark_of(identity);
    let socket = match source {
        Some(source) => {
            let socket = transparent(server, kind, protocol, mark, true)?;
            if kind == Type::STREAM
                && let Some(linger) = linger
            {
                socket.set_linger(Some(linger))?;
            }
            socket.bind(&source.into())?;
            socket
        }
        None => {
            let socket = Socket::new(Domain::for_address(server), kind.nonblocking(), Some(protocol))?;
            socket.set_mark(mark)?;
            socket
        }
    };
    Ok(socket)
}

fn transparent(
    address: SocketAddr,
    kind: Type,
    protocol: Protocol,
    mark: u32,
    reuse_port: bool,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind.nonblocking(), Some(protocol))?;
    match address.is_ipv4() {
        true => socket.set_ip_transparent_v4(true)?,
        false => {
            // Raw sockets never take both families, and refuse the option.
            if kind != Type::RAW {
                socket.set_only_v6(true)?;
            }
            socket.set_ip_transparent_v6(true)?;
        }
    }
    socket.set_mark(mark)?;
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    Ok(socket)
}

/// Receives a packet. Returns its length, its source and its destination; `None` if it has no source or destination.
pub(crate) async fn receive(
    socket: &UdpSocket,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, SocketAddr, SocketAddr)>> {
    socket
        .async_io(Interest::READABLE, || {
            let mut control = nix::cmsg_space!(nix::libc::sockaddr_in6, nix::libc::in6_pktinfo);
            let mut parts = [IoSliceMut::new(buffer)];
            let fd = socket.as_raw_fd();
            let flags = MsgFlags::MSG_DONTWAIT;
            let message = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), flags)?;
            let destination = message.cmsgs()?.find_map(|part| match part {
                ControlMessageOwned::Ipv4OrigDstAddr(address) => Some(v4(&SockaddrIn::from(address))),
                ControlMessageOwned::Ipv6OrigDstAddr(address) => Some(v6(&SockaddrIn6::from(address))),
                _ => None,
            });
            let source = message.address.and_then(|address: SockaddrStorage| {
                let of_v4 = address.as_sockaddr_in().map(v4);
                of_v4.or_else(|| address.as_sockaddr_in6().map(v6))
            });
            Ok(source.zip(destination).map(|(source, destination)| (message.bytes, source, destination)))
        })
        .await
}

fn v4(address: &SockaddrIn) -> SocketAddr {
    (address.ip(), address.port()).into()
}

fn v6(address: &SockaddrIn6) -> SocketAddr {
    (address.ip(), address.port()).into()
}

/// A socket that sends UDP packets from any address and port. It receives nothing.
#[derive(Debug)]
pub(crate) struct Spoofing(UdpSocket);

impl Spoofing {
    /// Returns a socket of the family of `listener`.
    pub(crate) fn new(listener: IpAddr) -> io::Result<Spoofing> {
        let address = SocketAddr::new(listener, 0);
        let socket = transparent(address, Type::RAW, Protocol::UDP, PROXY_MARK, false)?;
        // A raw socket gets a copy of each packet of its protocol to its address: with the loopback address the kernel makes
        // none of others. A program that takes zero bytes of a packet refuses the rest.
        let loopback: IpAddr = match listener {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        socket.bind(&SocketAddr::new(loopback, 0).into())?;
        let refuse = SockFilter::new((nix::libc::BPF_RET | nix::libc::BPF_K) as u16, 0, 0, 0);
        socket.attach_filter(&[refuse])?;
        // For tokio it is a socket of packets, like any other.
        Ok(Spoofing(UdpSocket::from_std(socket.into())?))
    }

    /// Sends a payload.
    pub(crate) async fn send(
        &self,
        payload: &[u8],
        source: SocketAddr,
        target: SocketAddr,
    ) -> io::Result<()> {
        let header = udp_header(payload, source, target)
            .ok_or_else(|| io::Error::other("addresses of two families, or too many bytes"))?;
        self.0.async_io(Interest::WRITABLE, || send(&self.0, &header, payload, source, target)).await
    }
}

fn send(
    socket: &UdpSocket,
    header: &[u8; UDP_HEADER],
    payload: &[u8],
    source: SocketAddr,
    target: SocketAddr,
) -> io::Result<()> {
    let parts = [IoSlice::new(header), IoSlice::new(payload)];
    let (fd, flags) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
    match (source.ip(), target.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let address = nix::libc::in_addr { s_addr: u32::from(source).to_be() };
            let info = nix::libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: address, ipi_addr: address };
            let target = SockaddrIn::from(std::net::SocketAddrV4::new(target, 0));
            sendmsg(fd, &parts, &[ControlMessage::Ipv4PacketInfo(&info)], flags, Some(&target))?;
        }
        (IpAddr::V6(source), IpAddr::V6(ip)) => {
            let address = nix::libc::in6_addr { s6_addr: source.octets() };
            let info = nix::libc::in6_pktinfo { ipi6_addr: address, ipi6_ifindex: 0 };
            let scope = if let SocketAddr::V6(target) = target { target.scope_id() } else { 0 };
            let target = SockaddrIn6::from(std::net::SocketAddrV6::new(ip, 0, 0, scope));
            sendmsg(fd, &parts, &[ControlMessage::Ipv6PacketInfo(&info)], flags, Some(&target))?;
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(())
}

/// Returns the UDP header of a packet with its checksum (RFC 768; RFC 8200, 8.1).
fn udp_header(payload: &[u8], source: SocketAddr, target: SocketAddr) -> Option<[u8; UDP_HEADER]> {
    let length = u16::try_from(UDP_HEADER + payload.len()).ok()?;
    let mut header = [0; UDP_HEADER];
    header[..2].copy_from_slice(&source.port().to_be_bytes());
    header[2..4].copy_from_slice(&target.port().to_be_bytes());
    header[4..6].copy_from_slice(&length.to_be_bytes());
    let addresses = match (source.ip(), target.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => words(&Ipv4Addr::octets(&a)) + words(&Ipv4Addr::octets(&b)),
        (IpAddr::V6(a), IpAddr::V6(b)) => words(&Ipv6Addr::octets(&a)) + words(&Ipv6Addr::octets(&b)),
        _ => return None,
    };
    let protocol = nix::libc::IPPROTO_UDP as u64;
    let mut sum = addresses + protocol + u64::from(length) + words(&header) + words(payload);
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    // Zero means that there is none.
    let checksum = match !(sum as u16) {
        0 => u16::MAX,
        checksum => checksum,
    };
    header[6..8].copy_from_slice(&checksum.to_be_bytes());
    Some(header)
}

fn words(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    bytes.chunks(2).map(word).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_carry_the_identity() {
        assert_eq!(mark_of(0), 0x0000_0B00);
        assert_eq!(mark_of(0x0001_2345), 0x2345_0B01);
    }

    #[test]
    fn checksums_complement_the_sum_of_all_words() {
        let header =
            udp_header(b"abc", "10.0.0.1:4660".parse().unwrap(), "10.0.0.2:53".parse().unwrap()).unwrap();
        let sum = words(&header) + words(b"abc") + words(&[10, 0, 0, 1, 10, 0, 0, 2]) + 17 + 11;
        assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF, "RFC 768");
        assert!(udp_header(b"", "10.0.0.1:1".parse().unwrap(), "[::1]:1".parse().unwrap()).is_none());
    }
}
