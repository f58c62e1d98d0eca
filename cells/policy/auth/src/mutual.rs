//! Handshakes between agents: TLS 1.3 in which both sides have a certificate of an identity.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::stream::{FuturesUnordered, StreamExt as _};
use hive::JobCx;
use rustls::client::Resumption;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificates::Certificates;
use crate::error::{Error, InvalidPeer};
use crate::verify::Verifier;

/// Handshakes of other agents at once; further clients wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 256;
/// The pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Authenticates an identity of this node and one of the node at an address. Returns the end of the authentication: that
/// of the certificate that expires first.
pub(crate) async fn connect(
    certificates: &Certificates,
    address: SocketAddr,
    (local, remote): (u32, u32),
    limit: Duration,
) -> Result<SystemTime, Error> {
    let authorities = certificates.authorities().ok_or(Error::NoBundle)?;
    let key = certificates.key(local).ok_or(Error::NoCertificate(local))?;
    let verifier = Verifier { authorities: authorities.clone(), expected: Some(remote) };
    let config = ClientConfig::builder_with_provider(authorities.provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(handshake)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key.clone())));
    // A resumed session would authenticate with certificates of the past.
    config.resumption = Resumption::disabled();
    let name = ServerName::try_from(certificates.domain().server_name(remote))
        .map_err(|error: InvalidDnsNameError| handshake(error))?;
    let exchange = async {
        let stream = TcpStream::connect(address).await.map_err(Error::Connect)?;
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, stream).await.map_err(Error::Handshake)?;
        // The server verifies the client after the client's part of the handshake: it refuses by an alert, or closes.
        match stream.read_u8().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(Error::Handshake(error)),
            Ok(_) => return Err(handshake("the server sends data")),
        }
        let chain = stream.get_ref().1.peer_certificates().ok_or(InvalidPeer::Missing)?;
        let ends = [authorities.not_after(chain)?, authorities.not_after(&key.cert)?];
        Ok(ends[0].min(ends[1]))
    };
    timeout(limit, exchange).await.map_err(|_| Error::Timeout(limit))?
}

fn handshake(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Handshake(io::Error::other(error))
}

/// Whether an identity has an endpoint on this node.
pub(crate) type HasEndpoint = Arc<dyn Fn(u32) -> bool + Send + Sync>;

/// Serves handshakes of other agents until the job is cancelled.
pub(crate) async fn serve(
    listener: TcpListener,
    certificates: watch::Receiver<Arc<Certificates>>,
    has_endpoint: HasEndpoint,
    limit: Duration,
    cx: &JobCx,
) {
    let mut handshakes = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = cx.cancelled() => return,
            accepted = listener.accept(), if handshakes.len() < MAX_HANDSHAKES => match accepted {
                Ok((stream, client)) => {
                    let certificates = certificates.borrow().clone();
                    handshakes.push(timeout(limit, accept(stream, client, certificates, has_endpoint.clone())));
                }
                Err(error) => {
                    tracing::warn!(%error, "Unable to accept a handshake, trying again");
                    sleep(ACCEPT_RETRY).await;
                }
            },
            Some(_) = handshakes.next(), if !handshakes.is_empty() => {}
        }
    }
}

async fn accept(
    stream: TcpStream,
    client: SocketAddr,
    certificates: Arc<Certificates>,
    has_endpoint: HasEndpoint,
) {
    let Some(authorities) = certificates.authorities() else { return };
    let verifier = Verifier { authorities: authorities.clone(), expected: None };
    let config = ServerConfig::builder_with_provider(authorities.provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map(|builder| builder.with_client_cert_verifier(Arc::new(verifier)))
        .map(|builder| builder.with_cert_resolver(Arc::new(Resolver { certificates, has_endpoint })));
    let Ok(mut config) = config else { return };
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    match TlsAcceptor::from(Arc::new(config)).accept(stream).await {
        // The client reads the end of the stream: its certificate is accepted.
        Ok(mut stream) => drop(stream.shutdown().await),
        Err(error) => tracing::debug!(%client, %error, "Handshake of another agent failed"),
    }
}

/// Returns the certificate of the identity that a client wants, if it has an endpoint on this node.
struct Resolver {
    certificates: Arc<Certificates>,
    has_endpoint: HasEndpoint,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let identity = self.certificates.domain().identity_of_server_name(hello.server_name()?)?;
        self.certificates.key(identity).filter(|_| (self.has_endpoint)(identity)).cloned()
    }
}
