//! Notifications of multicast groups, on tokio.

use std::io;

use futures::FutureExt;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use crate::{Messages, Protocol, messages};

/// Size of the receive buffer in bytes: larger than any packet of notifications.
const RECEIVE_BUFFER: usize = 64 << 10;

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A packet: see [`Subscription::messages`].
    Packet,
    /// The socket's receive buffer was full, notifications were lost: list everything again.
    Overflow,
}

/// A subscription to notifications of the network namespace in which it was opened. One socket carries all of its
/// groups, so that notifications arrive in the kernel's order.
pub struct Subscription {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl Subscription {
    /// Subscribes to multicast groups (`RTNLGRP_*`, `NFNLGRP_*`), with a receive buffer of this many bytes, or the
    /// kernel's default.
    pub fn open(protocol: Protocol, groups: &[u32], receive_buffer: Option<u32>) -> io::Result<Self> {
        let mut socket = TokioSocket::new(protocol.number())?;
        let raw = socket.socket_mut();
        raw.bind(&SocketAddr::new(0, 0))?;
        if let Some(bytes) = receive_buffer {
            raw.set_rx_buf_sz(bytes)?;
        }
        for group in groups {
            raw.add_membership(*group)?;
        }
        Ok(Self { socket, buffer: Vec::with_capacity(RECEIVE_BUFFER) })
    }

    /// Waits for the next packet. Cancel safe.
    pub async fn receive(&mut self) -> io::Result<Received> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer).await {
                Ok(()) => return Ok(Received::Packet),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.buffer.clear();
                    return Ok(Received::Overflow);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads a packet that has arrived already; `None` if there is none.
    pub fn try_receive(&mut self) -> Option<io::Result<Received>> {
        // Unconstrained: an exhausted budget of tokio would look like the end of the queue.
        tokio::task::unconstrained(self.receive()).now_or_never()
    }

    /// Returns the messages of the packet that was read last.
    #[must_use]
    pub fn messages(&self) -> Messages<'_> {
        messages(&self.buffer)
    }
}
