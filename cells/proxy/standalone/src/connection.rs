//! Connections of HTTP/2 between processes of one user on this node.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::geteuid;
use tokio::net::TcpStream;
use tonic::body::Body;
use tower::Service;

use crate::owner::user_of;

/// The authority of requests, as Cilium's proxy has it.
const ORIGIN: &str = "http://localhost";
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

/// A connection for requests. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Body>,
}

/// The work of a connection, which requests need to proceed.
pub(crate) type Work = Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>;

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
    // No pings from here: Cilium's server closes connections of clients that send more than one in five minutes.
    let (sender, work) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    Ok((Connection { sender }, Box::pin(work)))
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let mut parts = Uri::from_static(ORIGIN).into_parts();
        parts.path_and_query = request.uri().path_and_query().cloned();
        // Scheme, authority and path are there: the parts are a URI.
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
        Box::pin(self.sender.send_request(request))
    }
}
