//! The connection of a client, on any stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tower::Service;

/// Requests name an authority, which a unix socket does not have; servers ignore it.
const ORIGIN: &str = "http://localhost";

/// A connection for requests of clients such as those that tonic generates. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connection {
    sender: SendRequest<Body>,
}

/// The work of a connection, which requests need to proceed. It ends with the connection.
pub type Work = Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>;

impl Connection {
    /// Begins with HTTP/2 on a connected stream. Needs a tokio runtime. No pings are sent: Cilium's servers close
    /// connections of clients that send more than one in five minutes.
    ///
    /// # Errors
    /// The server does not speak HTTP/2.
    pub async fn new<S>(stream: S) -> Result<(Self, Work), hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, work) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        Ok((Self { sender }, Box::pin(work)))
    }
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
