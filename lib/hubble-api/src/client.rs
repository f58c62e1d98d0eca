//! The connection of a client to a server on a unix socket or on TCP.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use grpc::{Connection, Work};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::server::Server;
use crate::tls::TlsError;

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
    let failed = |source| ConnectError::Protocol { server: server.to_string(), source };
    Connection::new(stream).await.map_err(failed)
}
