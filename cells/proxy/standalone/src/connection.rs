//! Connections of HTTP/2 between processes of one user on this node.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use grpc::{Connection, Work};
use rustix::process::geteuid;
use tokio::net::TcpStream;

use crate::owner::user_of;

/// How often a client looks whether its connection was accepted, and how long.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(20);
const ACCEPT_ATTEMPTS: usize = 50;

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the server is a process of user {user}, not of user {own}")]
    OtherUser { user: u32, own: u32 },
    #[error("the server does not accept the connection")]
    NotAccepted,
    #[error(transparent)]
    Protocol(#[from] hyper::Error),
}

/// Whether the other end of an accepted connection is a socket of this process's user.
pub(crate) fn is_own(stream: &TcpStream) -> io::Result<bool> {
    Ok(user_of(stream.peer_addr()?, stream.local_addr()?)? == Some(geteuid().as_raw()))
}

/// Connects to a server of this process's user.
pub(crate) async fn connect(address: SocketAddr) -> Result<(Connection, Work), ConnectError> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let own = geteuid().as_raw();
    let mut user = None;
    for _ in 0..ACCEPT_ATTEMPTS {
        user = user_of(stream.peer_addr()?, stream.local_addr()?)?;
        if user.is_some() {
            break;
        }
        tokio::time::sleep(ACCEPT_INTERVAL).await;
    }
    match user {
        Some(user) if user == own => {}
        Some(user) => return Err(ConnectError::OtherUser { user, own }),
        None => return Err(ConnectError::NotAccepted),
    }
    Ok(Connection::new(stream).await?)
}
