//! Datagrams to the kernel and back.

use std::io;

use netlink_sys::{Socket, SocketAddr};

use crate::Protocol;

/// The datagrams of a connection: a socket, or the kernel of a test.
pub trait Transport {
    /// Sends a datagram.
    fn send(&self, datagram: &[u8]) -> io::Result<()>;

    /// Reads a datagram into the capacity of the empty `buffer`. Returns its length, which is larger than that of the
    /// buffer if it did not fit.
    fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<usize>;
}

impl Transport for Socket {
    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        Socket::send(self, datagram, 0).map(drop)
    }

    fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.recv(buffer, libc::MSG_TRUNC)
    }
}

/// Opens a socket to the kernel; returns it with its port.
pub(crate) fn open(protocol: Protocol) -> io::Result<(Socket, u32)> {
    let mut socket = Socket::new(protocol.number())?;
    let port = socket.bind_auto()?.port_number();
    socket.connect(&SocketAddr::new(0, 0))?;
    // Responses without a copy of the failed request, but with a text; older kernels do not support these options.
    let _ = socket.set_cap_ack(true);
    let _ = socket.set_ext_ack(true);
    Ok((socket, port))
}
