//! The connection of a client to a server on a unix socket or on TCP.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tower::Service;

use crate::server::Server;
use crate::tls::TlsError;

/// Requests name an authority, which a unix socket does not have; servers of Hubble ignore it.
const ORIGIN: &str = "http://localhost";

/// The longest time in which a connection is made.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The server does not accept connections.
    #[error("cannot connect to {server}")]
    Socket {
        /// The server.
        server: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// Options of TLS cannot be used.
    #[error(transparent)]
    Options(#[from] TlsError),
    /// The handshake of TLS fails.
    #[error("TLS with {server} fails")]
    Tls {
        /// The server.
        server: String,
        /// Why the server is not trusted, or its alert.
        #[source]
        source: io::Error,
    },
    /// The server does not speak HTTP/2.
    #[error("{server} does not speak HTTP/2")]
    Protocol {
        /// The server.
        server: String,
        /// The error of the protocol.
        #[source]
        source: hyper::Error,
    },
    /// The server does not answer.
    #[error("{server} does not answer within 5s")]
    Timeout {
        /// The server.
        server: String,
    },
}

/// A connection for requests of clients, such as `ObserverClient`. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connection {
    sender: SendRequest<Body>,
}

/// The work of a connection, which requests need to proceed.
pub type Work = Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>;

/// Connects to a server. Returns the connection, and its work as a future: requests proceed only while it is polled. It
/// ends with the connection. Needs a tokio runtime with time.
///
/// # Errors
/// The server does not accept connections, is not the one that certificates verify, or does not speak HTTP/2.
pub async fn connect(server: &Server) -> Result<(Connection, Work), ConnectError> {
    let timeout = || ConnectError::Timeout { server: server.to_string() };
    tokio::time::timeout(TIMEOUT, establish(server)).await.map_err(|_| timeout())?
}

async fn establish(server: &Server) -> Result<(Connection, Work), ConnectError> {
    let refused = |source| ConnectError::Socket { server: server.to_string(), source };
    match server {
        Server::Unix(path) => handshake(server, UnixStream::connect(path).await.map_err(refused)?).await,
        Server::Tcp(address) => handshake(server, TcpStream::connect(address).await.map_err(refused)?).await,
        Server::Tls(address, tls) => {
            let (name, config) = (tls.name(address)?, tls.load()?);
            let stream = TcpStream::connect(address).await.map_err(refused)?;
            let secured = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
            let untrusted = |source| ConnectError::Tls { server: server.to_string(), source };
            handshake(server, secured.map_err(untrusted)?).await
        }
    }
}

async fn handshake<S>(server: &Server, stream: S) -> Result<(Connection, Work), ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let failed = |source| ConnectError::Protocol { server: server.to_string(), source };
    let (sender, work) = handshake.map_err(failed)?;
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
