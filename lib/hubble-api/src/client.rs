//! The connection of a client to a server on a unix socket.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tonic::body::Body;
use tower::Service;

/// Requests name an authority, which a unix socket does not have.
const ORIGIN: &str = "http://localhost";

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The socket does not accept connections.
    #[error("cannot connect to {path}")]
    Socket {
        /// The socket.
        path: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The server does not speak HTTP/2.
    #[error("the server of {path} does not speak HTTP/2")]
    Protocol {
        /// The socket.
        path: String,
        /// The error of the protocol.
        #[source]
        source: hyper::Error,
    },
}

/// A connection for requests of clients, such as `ObserverClient`. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connection {
    sender: SendRequest<Body>,
}

/// Connects to a server. Returns the connection, and its work as a future: requests proceed only while it is polled. It
/// ends with the connection. Needs a tokio runtime.
///
/// # Errors
/// The socket does not accept connections, or its server does not speak HTTP/2.
pub async fn connect(
    path: &Path,
) -> Result<(Connection, impl Future<Output = Result<(), hyper::Error>> + Send + use<>), ConnectError> {
    let shown = path.display().to_string();
    let stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        Err(source) => return Err(ConnectError::Socket { path: shown, source }),
    };
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, work) = handshake.map_err(|source| ConnectError::Protocol { path: shown, source })?;
    Ok((Connection { sender }, work))
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
