//! Forwards requests to the servers that clients ask.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::Type;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::message::{Request, set_id};
use crate::shares::Shares;
use crate::sockets::{MAX_PAYLOAD, upstream};
use crate::waiting::{Received, Waiting};

/// Limit of a request from its forwarding to its answer, the connection included.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// Requests that wait to be written to a connection.
const QUEUE: usize = 64;
/// Open sockets over UDP of all clients, each with a port of the node: a third of Linux's default range. A client has
/// some beyond that, so that a few of them cannot stop the queries of all.
const MAX_UDP_SOCKETS: usize = 8192;
const GUARANTEED_UDP_SOCKETS: usize = 16;

/// The error of a request that has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
    #[error("clients use too many ports")]
    NoPort,
    #[error("too many requests with the same id")]
    NoId,
    #[error("the connection to the server is closed")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A way to a server: the requests of one client socket have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Path {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// The identity of the client.
    pub(crate) identity: u32,
    /// Whether packets have the address of the client. All requests of a client's socket then share one: two sockets with
    /// the same addresses would get each other's answers.
    pub(crate) transparent: bool,
}

impl Path {
    fn source(&self) -> Option<SocketAddr> {
        self.transparent.then_some(self.client)
    }
}

/// Sockets to servers over UDP, each open while a request waits.
#[derive(Debug, Clone)]
pub(crate) struct UdpPaths(Arc<Mutex<Paths>>);

#[derive(Debug)]
struct Paths {
    open: HashMap<Path, UsedPath>,
    shares: Shares,
}

/// A path with the number of its requests.
#[derive(Debug)]
struct UsedPath {
    path: Arc<UdpPath>,
    requests: usize,
}

/// A socket and the requests that wait for its packets. Opened under a lock of its own: system calls must not delay the
/// requests of other paths.
#[derive(Debug, Default)]
struct UdpPath(Mutex<(Option<Arc<UdpSocket>>, Waiting)>);

/// A request's place in a path; dropping it closes the path after the last one.
struct Place<'a> {
    paths: &'a UdpPaths,
    key: Path,
    path: Arc<UdpPath>,
    id: Option<u16>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.path.0.lock().1.remove(id);
        }
        let Paths { open, shares } = &mut *self.paths.0.lock();
        let Entry::Occupied(mut used) = open.entry(self.key) else { return };
        used.get_mut().requests -= 1;
        if used.get().requests == 0 {
            used.remove();
            shares.release(self.key.client.ip());
        }
    }
}

impl UdpPaths {
    pub(crate) fn new() -> UdpPaths {
        let shares = Shares::new(MAX_UDP_SOCKETS, GUARANTEED_UDP_SOCKETS);
        UdpPaths(Arc::new(Mutex::new(Paths { open: HashMap::new(), shares })))
    }

    /// Forwards a request and returns its answer, with the id at the server.
    pub(crate) async fn query(
        &self,
        key: Path,
        request: &Request,
        mut message: Vec<u8>,
    ) -> Result<Received, UpstreamError> {
        let mut place = self.place(key)?;
        let (socket, id, mut answer) = place.path.add(key, request)?;
        place.id = Some(id);
        set_id(&mut message, id);
        let exchange = async {
            socket.send(&message).await?;
            loop {
                // Each request receives for all of the path: no task has to be woken in between.
                tokio::select! {
                    biased;
                    answer = &mut answer => return answer.map_err(|_| UpstreamError::Closed),
                    ready = socket.readable() => place.path.receive(&socket, ready, key.server),
                }
            }
        };
        tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| UpstreamError::Timeout)?
    }

    fn place(&self, key: Path) -> Result<Place<'_>, UpstreamError> {
        let Paths { open, shares } = &mut *self.0.lock();
        let used = match open.entry(key) {
            Entry::Occupied(used) => used.into_mut(),
            Entry::Vacant(closed) => {
                if !shares.take(key.client.ip()) {
                    return Err(UpstreamError::NoPort);
                }
                closed.insert(UsedPath { path: Arc::default(), requests: 0 })
            }
        };
        used.requests += 1;
        Ok(Place { paths: self, key, path: used.path.clone(), id: None })
    }
}

impl UdpPath {
    /// Adds a request; the first one opens the socket. Returns the id that the request has at the server.
    fn add(
        &self,
        key: Path,
        request: &Request,
    ) -> Result<(Arc<UdpSocket>, u16, oneshot::Receiver<Received>), UpstreamError> {
        let (open, waiting) = &mut *self.0.lock();
        let socket = match open {
            Some(socket) => socket.clone(),
            None => {
                let socket = upstream(Type::DGRAM, key.server, key.identity, key.source(), None)?;
                socket.connect(&key.server.into())?;
                open.insert(Arc::new(UdpSocket::from_std(socket.into())?)).clone()
            }
        };
        let (id, answer) = waiting.add(request).ok_or(UpstreamError::NoId)?;
        Ok((socket, id, answer))
    }

    /// Passes a packet of the server to the request that waits for it. An error, such as that no process has the port,
    /// ends all requests.
    fn receive(&self, socket: &UdpSocket, ready: io::Result<()>, server: SocketAddr) {
        thread_local! {
            // One for a thread: there may be thousands of paths.
            static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_PAYLOAD].into());
        }
        BUFFER.with_borrow_mut(|buffer| match ready.and_then(|()| socket.try_recv(buffer)) {
            Ok(length) => self.0.lock().1.deliver(&buffer[..length]),
            // Another request of the path has received it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::debug!(%server, %error, "A DNS server cannot be reached");
                self.0.lock().1.fail();
            }
        });
    }
}

/// A connection to a server, for the requests of one client connection. It is opened with the first request and again
/// after an error.
#[derive(Debug)]
pub(crate) struct TcpPath {
    path: Path,
    linger: Option<Duration>,
    open: Mutex<Option<Connection>>,
    tasks: TaskTracker,
    close: CancellationToken,
}

/// A connection that is open or about to be.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    requests: mpsc::Sender<Vec<u8>>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Drop for TcpPath {
    fn drop(&mut self) {
        self.close.cancel();
    }
}

impl TcpPath {
    pub(crate) fn new(
        path: Path,
        linger: Option<Duration>,
        tasks: TaskTracker,
        stop: &CancellationToken,
    ) -> TcpPath {
        TcpPath { path, linger, open: Mutex::new(None), tasks, close: stop.child_token() }
    }

    /// Forwards a request and returns its answer, with the id at the server.
    pub(crate) async fn query(&self, request: &Request, message: Vec<u8>) -> Result<Received, UpstreamError> {
        self.connection()?.query(request, message).await
    }

    fn connection(&self) -> io::Result<Connection> {
        let mut open = self.open.lock();
        if let Some(connection) = open.as_ref().filter(|connection| !connection.requests.is_closed()) {
            return Ok(connection.clone());
        }
        let Path { server, identity, .. } = self.path;
        let socket = upstream(Type::STREAM, server, identity, self.path.source(), self.linger)?;
        let socket = TcpSocket::from_std_stream(socket.into());
        let connected = async move {
            let stream = socket.connect(server).await?;
            stream.set_nodelay(true)?;
            Ok(stream.into_split())
        };
        let (connection, run) = Connection::new(server, connected);
        self.tasks.spawn(self.close.clone().run_until_cancelled_owned(run));
        *open = Some(connection.clone());
        Ok(connection)
    }
}

impl Connection {
    /// Returns a connection and the future that writes its requests and reads its answers, once it is connected.
    pub(crate) fn new<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        server: SocketAddr,
        connected: impl Future<Output = io::Result<(R, W)>>,
    ) -> (Connection, impl Future<Output = ()>) {
        let (requests, queue) = mpsc::channel(QUEUE);
        let connection = Connection { requests, waiting: Arc::default() };
        let waiting = connection.waiting.clone();
        let run = async move {
            let ended = async { exchange(connected.await?, queue, &waiting).await };
            if let Err(error) = ended.await {
                tracing::debug!(%server, %error, "A connection to a DNS server has failed");
            }
            waiting.lock().fail();
        };
        (connection, run)
    }

    /// Forwards a request and returns its answer, with the id at the server.
    pub(crate) async fn query(
        &self,
        request: &Request,
        mut message: Vec<u8>,
    ) -> Result<Received, UpstreamError> {
        let (id, answer) = self.waiting.lock().add(request).ok_or(UpstreamError::NoId)?;
        set_id(&mut message, id);
        let exchange = async {
            self.requests.send(message).await.map_err(|_| UpstreamError::Closed)?;
            answer.await.map_err(|_| UpstreamError::Closed)
        };
        let answer = tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| UpstreamError::Timeout);
        self.waiting.lock().remove(id);
        answer?
    }
}

/// Writes requests and passes answers on until either side closes the connection.
async fn exchange(
    (mut reader, mut writer): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    mut queue: mpsc::Receiver<Vec<u8>>,
    waiting: &Mutex<Waiting>,
) -> io::Result<()> {
    let write = async {
        while let Some(message) = queue.recv().await {
            write_message(&mut writer, &message).await?;
        }
        Ok::<_, io::Error>(())
    };
    let read = async {
        loop {
            let message = read_message(&mut reader).await?;
            waiting.lock().deliver(&message);
        }
    };
    tokio::select! {
        ended = write => ended,
        ended = read => ended,
    }
}

/// Writes a message with its length.
pub(crate) async fn write_message(to: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    // One segment: some servers expect length and message together.
    let mut bytes = Vec::with_capacity(2 + message.len());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(message);
    to.write_all(&bytes).await
}

/// Reads a message with its length.
pub(crate) async fn read_message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = from.read_u16().await?;
    let mut message = vec![0; length.into()];
    from.read_exact(&mut message).await?;
    Ok(message)
}
