//! Ethernet frames, sent and captured byte for byte at one interface.
#![expect(unsafe_code, reason = "packet sockets have no wrapper in std")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::NetNs;

const RECEIVE_BUFFER: libc::c_int = 8 << 20;
/// From linux/if_packet.h: a socket with this option does not capture frames that its own interface sends.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Buffer size in bytes: larger than any frame of a veth pair without segmentation offload.
const MAX_FRAME: usize = 66_000;

/// An `AF_PACKET` socket of one interface (packet(7)): sends frames as they are, captures what the interface receives.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    /// The link-layer address to which frames are sent.
    address: libc::sockaddr_ll,
}

impl PacketSocket {
    /// Opens a socket at an interface of a namespace; starts capturing.
    pub fn open(ns: &NetNs, interface: &str) -> io::Result<Self> {
        let name = CString::new(interface).map_err(io::Error::other)?;
        ns.run(|| Self::open_here(&name))
    }

    fn open_here(name: &CString) -> io::Result<Self> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // JUSTIFICATION: std has no packet sockets.
        // SAFETY: takes no pointers; the descriptor is new and owned from here on.
        let fd = unsafe {
            let fd =
                libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: the name is a C string that lives through the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: all zero is a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = index as libc::c_int;
        crate::receive_buffer(&fd, RECEIVE_BUFFER)?;
        let socket = Self { fd, address };
        socket.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        // SAFETY: pointer and length describe an address that lives through the call.
        let bound = unsafe {
            libc::bind(
                socket.fd.as_raw_fd(),
                (&raw const socket.address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
    }

    /// Sets the mark of frames that are sent from now on (`SO_MARK`).
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_MARK, mark as libc::c_int)
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        // JUSTIFICATION: std has no such options.
        // SAFETY: pointer and length describe one c_int that lives through the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends a frame, Ethernet header first.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // JUSTIFICATION: std cannot send to a link-layer address.
        // SAFETY: pointers and lengths describe the frame and the address, which live through the call.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns the frames received since the last call, without VLAN tags.
    pub fn received(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0u8; MAX_FRAME];
        loop {
            // JUSTIFICATION: std has no packet sockets.
            // SAFETY: pointer and length describe the buffer, which lives through the call.
            let length =
                unsafe { libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            if length < 0 {
                return frames;
            }
            frames.push(buffer[..length as usize].to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sandbox, require_root};

    #[test]
    fn a_frame_arrives_as_it_was_sent_and_only_at_the_other_end() {
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        let other = sandbox.netns("other").unwrap();
        sandbox.host().veth("here", &other, "there").unwrap();
        let ends = [(sandbox.host(), "here"), (&other, "there")];
        let [here, there] = ends.map(|(ns, name)| PacketSocket::open(ns, name).unwrap());
        // An experimental Ethernet type, to which no stack replies.
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[7; 46]].concat();
        let is_ours = |got: &Vec<u8>| got[12..14] == [0x88, 0xb5];
        crate::wait_until("the link carries", std::time::Duration::from_secs(5), || {
            here.send(&frame).unwrap();
            there.received().contains(&frame)
        });
        assert!(!here.received().iter().any(is_ours));
    }
}
