//! A server that speaks TLS in front of one that does not, with certificates that tests choose.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use test_kit::{Authority, Identity};

use crate::spoiler::request;

/// How long an ended connection is read to its end.
const LINGER: Duration = Duration::from_secs(2);

/// How long a change waits for requests without an answer.
const PENDING_LIMIT: Duration = Duration::from_secs(5);

/// The handling of a connection.
#[derive(Clone)]
pub enum Front {
    /// TLS, and then what is behind.
    Tls(Arc<ServerConfig>),
    /// An answer in HTTP without TLS.
    Plain,
    /// It ends when the client has said the first word.
    Cut,
}

impl Front {
    /// TLS with this certificate; of clients those with a certificate of `clients` are let in, else all.
    ///
    /// # Panics
    /// When the files are not what they should be.
    #[must_use]
    pub fn tls(identity: &Identity, clients: Option<&Authority>) -> Self {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let read = |file: &Path| CertificateDer::from_pem_file(file).unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(read(&authority.certificate())).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        Self::Tls(Arc::new(builder.with_single_cert(vec![read(&identity.certificate)], key).unwrap()))
    }
}

/// HTTP/1.1 over TLS, one request a connection, before a server without TLS.
pub struct TlsServer {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    behind: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    front: Front,
    /// Both ends of connections.
    connections: Vec<TcpStream>,
    /// The number of connections by the present front that are not in the list yet.
    pending: usize,
    /// Whether new connections wait for another front.
    is_changing: bool,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url())
    }
}

impl TlsServer {
    /// Listens in the calling thread's namespace.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn new(behind: SocketAddr, front: Front) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let state = Mutex::new(State { front, connections: Vec::new(), pending: 0, is_changing: false });
        let shared = Arc::new(Shared { behind, state, changed: Condvar::new() });
        let (theirs, state) = (listener.try_clone().unwrap(), shared.clone());
        Builder::new().name("tls-server".to_owned()).spawn(move || accept(&theirs, &state)).unwrap();
        Self { listener, shared }
    }

    /// Its URL.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.listener.local_addr().unwrap())
    }

    /// From now on connections are taken so; those that are open are cut. A request that the previous front has taken is
    /// answered before: it would succeed during the fault, or have an answer from before it.
    pub fn be(&self, front: Front) {
        let mut state = self.shared.state();
        state.is_changing = true;
        let is_pending = |state: &mut State| state.pending > 0;
        let waited = self.shared.changed.wait_timeout_while(state, PENDING_LIMIT, is_pending);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.front = front;
        state.is_changing = false;
        cut(&mut state);
        self.shared.changed.notify_all();
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        cut(&mut self.shared.state());
        if let Ok(listener) = self.listener.try_clone() {
            let _ = TcpStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cut(state: &mut State) {
    for stream in state.connections.drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        let shared = shared.clone();
        // A client that cannot be served loses its connection.
        let serve = move || serve(client, &shared);
        let _ = Builder::new().name("tls-client".to_owned()).spawn(serve);
    }
}

fn serve(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let (front, pending) = {
        let wait = shared.changed.wait_while(shared.state(), |state| state.is_changing);
        let mut state = wait.unwrap_or_else(PoisonError::into_inner);
        state.connections.retain(|stream| stream.peer_addr().is_ok());
        state.pending += 1;
        (state.front.clone(), Pending(shared))
    };
    let served = match front {
        Front::Tls(config) => secured(client.try_clone()?, config, pending),
        Front::Plain => {
            drop(pending);
            client.read(&mut [0; 16 << 10]).map(drop)?;
            client.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        }
        Front::Cut => {
            drop(pending);
            client.read(&mut [0; 16 << 10]).map(drop)
        }
    };
    // Reading the client's last bytes lets the alert arrive: an unread socket would be reset.
    client.shutdown(Shutdown::Write)?;
    client.set_read_timeout(Some(LINGER))?;
    while client.read(&mut [0; 16 << 10])? > 0 {}
    served
}

/// A connection that is not in the list of those that can be cut.
struct Pending<'s>(&'s Shared);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.state().pending -= 1;
        self.0.changed.notify_all();
    }
}

fn secured(client: TcpStream, config: Arc<ServerConfig>, pending: Pending<'_>) -> io::Result<()> {
    let shared = pending.0;
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut client = StreamOwned::new(connection, client);
    let (head, body) = request(&mut client)?;
    let mut behind = TcpStream::connect(shared.behind)?;
    write!(behind, "{head}\r\n\r\n{body}")?;
    // From the first word of the answer on it can be cut: before, that would be another fault.
    behind.peek(&mut [0])?;
    let streams = [behind.try_clone()?, client.sock.try_clone()?];
    shared.state().connections.extend(streams);
    drop(pending);
    io::copy(&mut behind, &mut client)?;
    client.conn.send_close_notify();
    client.flush()
}
