//! Listeners and the peers of their connections.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// The peer of a connection: the process id on a unix socket; the same value for all peers over TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(i32);

impl Peer {
    /// Returns the peer with this process id.
    pub fn new(process: i32) -> Self {
        Peer(process)
    }
}

/// A socket that listens.
pub trait Accept: Send + Sync {
    /// The type of its connections.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next connection.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = self.accept().await?;
        let process = stream.peer_cred().ok().and_then(|peer| peer.pid()).unwrap_or_default();
        Ok((stream, Peer(process)))
    }
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, Peer::default()))
    }
}
