//! The probe: one packet from a socket in the network namespace of a pod, and the answer to it.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Serialize;

/// The protocol of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Protocol {
    /// A SYN; the connection is reset once it is accepted.
    Tcp,
    /// A datagram with a mark.
    Udp,
    /// An echo request.
    Icmp,
}

impl Protocol {
    /// Returns its name in questions about policy.
    pub(super) fn name(self, is_ipv6: bool) -> &'static str {
        match (self, is_ipv6) {
            (Self::Tcp, _) => "tcp",
            (Self::Udp, _) => "udp",
            (Self::Icmp, false) => "icmp",
            (Self::Icmp, true) => "icmpv6",
        }
    }
}

/// The length of the mark in payloads.
pub(super) const MARK_LEN: usize = 16;

/// The first part of each mark, so that a capture shows where the packet is from.
const MARK: &[u8] = b"apiary-t";

/// The type of an echo request (RFC 792, RFC 4443).
const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;

/// The addresses of a probe, and by what it is known again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) protocol: Protocol,
    /// For ICMP without a port.
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// A number in the payload of datagrams and echo requests.
    pub(super) mark: [u8; MARK_LEN],
    /// The kernel's number of the socket, in events of translations.
    pub(super) cookie: u64,
}

impl Packet {
    /// Returns the port by which policy selects it, for ICMP the type.
    pub(super) fn policy_port(&self) -> u16 {
        match (self.protocol, self.destination.is_ipv6()) {
            (Protocol::Icmp, false) => ECHO_V4.into(),
            (Protocol::Icmp, true) => ECHO_V6.into(),
            _ => self.destination.port(),
        }
    }
}

/// The answer that the socket has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answer {
    /// The connection was accepted, or the request answered.
    Answered,
    /// The destination, or a router, has refused it.
    Refused(String),
}

/// A socket that has not sent yet.
#[derive(Debug)]
pub(super) struct Probe {
    socket: OwnedFd,
    pub(super) packet: Packet,
}

impl Probe {
    /// Returns a socket in a network namespace, bound to the source's address.
    pub(super) fn new(
        namespace: &Path,
        protocol: Protocol,
        source: IpAddr,
        destination: SocketAddr,
    ) -> anyhow::Result<Self> {
        let path = namespace.display();
        let file = File::open(namespace).with_context(|| {
            format!("cannot open {path}, the network namespace of the pod: run as root on its node")
        })?;
        // Only this thread enters the namespace; the socket stays in it.
        let socket = std::thread::scope(|scope| {
            let entered = scope.spawn(|| -> anyhow::Result<OwnedFd> {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).with_context(
                    || format!("cannot enter {path}, the network namespace of the pod: needs CAP_SYS_ADMIN"),
                )?;
                bound(protocol, source).context("cannot make a socket in the pod's network namespace")
            });
            entered.join().unwrap_or_else(|_| anyhow::bail!("the thread of the probe has failed"))
        })?;
        let cookie = sockopt::socket_cookie(&socket)?;
        let port = match protocol {
            Protocol::Icmp => 0,
            _ => SocketAddr::try_from(rustix::net::getsockname(&socket)?)?.port(),
        };
        let mut mark = [0; MARK_LEN];
        mark[..MARK.len()].copy_from_slice(MARK);
        // Unique on this node: no two sockets have the same cookie.
        mark[MARK.len()..].copy_from_slice(&cookie.to_be_bytes());
        let packet = Packet { protocol, source: SocketAddr::new(source, port), destination, mark, cookie };
        Ok(Self { socket, packet })
    }

    /// Sends the packet.
    pub(super) fn send(&self) -> Result<(), Errno> {
        let Packet { protocol, destination, mark, .. } = &self.packet;
        match protocol {
            Protocol::Tcp => match rustix::net::connect(&self.socket, destination) {
                Err(Errno::INPROGRESS) => Ok(()),
                result => result,
            },
            Protocol::Udp => {
                rustix::net::connect(&self.socket, destination)?;
                rustix::net::send(&self.socket, mark, SendFlags::empty()).map(drop)
            }
            Protocol::Icmp => {
                rustix::net::connect(&self.socket, &SocketAddr::new(destination.ip(), 0))?;
                let request = echo(mark, destination.is_ipv6());
                rustix::net::send(&self.socket, &request, SendFlags::empty()).map(drop)
            }
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the answer if there is one.
    pub(super) fn answer(&self) -> Option<Answer> {
        if let Ok(Err(error)) = sockopt::socket_error(&self.socket) {
            return Some(Answer::Refused(io::Error::from(error).to_string()));
        }
        if self.packet.protocol == Protocol::Tcp {
            return rustix::net::getpeername(&self.socket)
                .is_ok_and(|peer| peer.is_some())
                .then_some(Answer::Answered);
        }
        let mut buffer = [0; 2048];
        loop {
            match rustix::net::recv(&self.socket, &mut buffer, rustix::net::RecvFlags::DONTWAIT) {
                // A raw socket gets each ICMP message of the namespace.
                Ok((_, length)) if self.packet.protocol == Protocol::Icmp => {
                    let message = buffer.get(..length).unwrap_or_default();
                    if is_reply(message, &self.packet) {
                        return Some(Answer::Answered);
                    }
                }
                Ok(_) => return Some(Answer::Answered),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Err(error) => return Some(Answer::Refused(io::Error::from(error).to_string())),
            }
        }
    }
}

/// Whether a message of a raw socket is the reply to this echo request. Those of IPv4 begin with the IP header.
fn is_reply(message: &[u8], packet: &Packet) -> bool {
    let has_mark = message.windows(MARK_LEN).any(|part| part == packet.mark);
    let kind = match packet.destination.is_ipv6() {
        true => message.first().map(|kind| *kind == 129),
        false => {
            let header = usize::from(message.first().copied().unwrap_or_default() & 15) * 4;
            message.get(header).map(|kind| *kind == 0)
        }
    };
    has_mark && kind == Some(true)
}

fn bound(protocol: Protocol, source: IpAddr) -> Result<OwnedFd, Errno> {
    let family = if source.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let (kind, number) = match protocol {
        Protocol::Tcp => (SocketType::STREAM, ipproto::TCP),
        Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
        Protocol::Icmp if source.is_ipv6() => (SocketType::RAW, ipproto::ICMPV6),
        Protocol::Icmp => (SocketType::RAW, ipproto::ICMP),
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, kind, flags, Some(number))?;
    if protocol == Protocol::Tcp {
        // Its end is one packet, which waits for nothing.
        sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO))?;
    }
    rustix::net::bind(&socket, &SocketAddr::new(source, 0))?;
    Ok(socket)
}

/// Returns an echo request. The kernel computes the checksum of ICMPv6.
fn echo(mark: &[u8; MARK_LEN], is_ipv6: bool) -> Vec<u8> {
    let mut request = vec![if is_ipv6 { ECHO_V6 } else { ECHO_V4 }, 0, 0, 0];
    // Identifier and sequence number.
    request.extend_from_slice(&mark[MARK_LEN - 2..]);
    request.extend_from_slice(&[0, 1]);
    request.extend_from_slice(mark);
    if !is_ipv6 {
        let sum = checksum(&request);
        request[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    request
}

/// Returns the Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_requests_have_a_valid_checksum_and_are_known_by_their_mark() {
        let mark = *b"apiary-t01234567";
        let request = echo(&mark, false);
        assert_eq!((checksum(&request), request[0], echo(&mark, true)[0]), (0, 8, 128));
        let packet = |destination: &str| Packet {
            protocol: Protocol::Icmp,
            source: "10.0.0.1:0".parse().unwrap(),
            destination: destination.parse().unwrap(),
            mark,
            cookie: 1,
        };
        let mut reply = vec![0x45; 20];
        reply.extend(&request);
        assert!(!is_reply(&reply, &packet("10.0.0.2:0")), "the request itself");
        reply[20] = 0;
        assert!(is_reply(&reply, &packet("10.0.0.2:0")));
        reply[40] ^= 1;
        assert!(!is_reply(&reply, &packet("10.0.0.2:0")), "another request's");
        assert_eq!((packet("10.0.0.2:0").policy_port(), packet("[fd00::2]:0").policy_port()), (8, 128));
        assert!(!is_reply(&[], &packet("10.0.0.2:0")));
    }
}
