//! Forwards requests to the servers that clients ask.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::Type;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::mpsc;
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
pub(crate) struct UdpPaths {
    paths: Arc<Mutex<Paths>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Paths {
    open: HashMap<Path, UdpPath>,
    shares: Shares,
    /// For the packet that is being received. One for all: there may be thousands of paths.
    buffer: Box<[u8]>,
}

#[derive(Debug)]
struct UdpPath {
    socket: Arc<UdpSocket>,
    waiting: Waiting,
    /// Ends the receiver.
    close: CancellationToken,
}

/// A request's place in a path; dropping it removes the request, and closes the path after the last one.
struct Place<'a> {
    paths: &'a UdpPaths,
    path: Path,
    id: u16,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Paths { open, shares, .. } = &mut *self.paths.paths.lock();
        if let Some(path) = open.get_mut(&self.path) {
            path.waiting.remove(self.id);
            if path.waiting.is_empty() {
                path.close.cancel();
                open.remove(&self.path);
                shares.release(self.path.client.ip());
            }
        }
    }
}

impl UdpPaths {
    pub(crate) fn new(tasks: TaskTracker, stop: CancellationToken) -> UdpPaths {
        let shares = Shares::new(MAX_UDP_SOCKETS, GUARANTEED_UDP_SOCKETS);
        let paths = Paths { open: HashMap::new(), shares, buffer: vec![0; MAX_PAYLOAD].into() };
        UdpPaths { paths: Arc::new(Mutex::new(paths)), tasks, stop }
    }

    /// Forwards a request and returns its answer, with the id at the server.
    pub(crate) async fn query(
        &self,
        path: Path,
        request: &Request,
        mut message: Vec<u8>,
    ) -> Result<Received, UpstreamError> {
        let (place, socket, answer) = {
            let Paths { open, shares, .. } = &mut *self.paths.lock();
            let open = match open.entry(path) {
                Entry::Occupied(open) => open.into_mut(),
                Entry::Vacant(closed) => {
                    if !shares.take(path.client.ip()) {
                        return Err(UpstreamError::NoPort);
                    }
                    let opened = self.open(path).inspect_err(|_| shares.release(path.client.ip()))?;
                    closed.insert(opened)
                }
            };
            let (id, answer) = open.waiting.add(request).ok_or(UpstreamError::NoId)?;
            (Place { paths: self, path, id }, open.socket.clone(), answer)
        };
        set_id(&mut message, place.id);
        let exchange = async {
            socket.send(&message).await?;
            answer.await.map_err(|_| UpstreamError::Closed)
        };
        tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| UpstreamError::Timeout)?
    }

    fn open(&self, path: Path) -> io::Result<UdpPath> {
        let socket = upstream(Type::DGRAM, path.server, path.identity, path.source(), None)?;
        socket.connect(&path.server.into())?;
        let socket = Arc::new(UdpSocket::from_std(socket.into())?);
        let close = self.stop.child_token();
        let receive = receive(self.paths.clone(), path, socket.clone());
        self.tasks.spawn(close.clone().run_until_cancelled_owned(receive));
        Ok(UdpPath { socket, waiting: Waiting::default(), close })
    }
}

/// Passes the packets of a server to the requests of a path. An error, such as that no process has the port, ends them.
async fn receive(paths: Arc<Mutex<Paths>>, path: Path, socket: Arc<UdpSocket>) {
    loop {
        let ready = socket.readable().await;
        let Paths { open, buffer, .. } = &mut *paths.lock();
        // A path with another socket has replaced this one.
        let Some(open) = open.get_mut(&path).filter(|open| Arc::ptr_eq(&open.socket, &socket)) else {
            return;
        };
        match ready.and_then(|()| socket.try_recv(buffer)) {
            Ok(length) => open.waiting.deliver(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::debug!(server = %path.server, %error, "A DNS server cannot be reached");
                open.waiting.fail();
            }
        }
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

#[derive(Debug, Clone)]
struct Connection {
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
    pub(crate) async fn query(
        &self,
        request: &Request,
        mut message: Vec<u8>,
    ) -> Result<Received, UpstreamError> {
        let connection = self.connection()?;
        let (id, answer) = connection.waiting.lock().add(request).ok_or(UpstreamError::NoId)?;
        set_id(&mut message, id);
        let exchange = async {
            connection.requests.send(message).await.map_err(|_| UpstreamError::Closed)?;
            answer.await.map_err(|_| UpstreamError::Closed)
        };
        let answer = tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| UpstreamError::Timeout);
        connection.waiting.lock().remove(id);
        answer?
    }

    fn connection(&self) -> io::Result<Connection> {
        let mut open = self.open.lock();
        if let Some(connection) = open.as_ref().filter(|connection| !connection.requests.is_closed()) {
            return Ok(connection.clone());
        }
        let Path { server, identity, .. } = self.path;
        let socket = upstream(Type::STREAM, server, identity, self.path.source(), self.linger)?;
        let socket = TcpSocket::from_std_stream(socket.into());
        let (requests, queue) = mpsc::channel(QUEUE);
        let connection = Connection { requests, waiting: Arc::default() };
        let waiting = connection.waiting.clone();
        let run = async move {
            let connected = async {
                let stream = socket.connect(server).await?;
                stream.set_nodelay(true)?;
                exchange(stream, queue, &waiting).await
            };
            if let Err(error) = connected.await {
                tracing::debug!(%server, %error, "A connection to a DNS server has failed");
            }
            waiting.lock().fail();
        };
        self.tasks.spawn(self.close.clone().run_until_cancelled_owned(run));
        *open = Some(connection.clone());
        Ok(connection)
    }
}

/// Writes requests and passes answers on until either side closes the connection.
async fn exchange(
    stream: TcpStream,
    mut queue: mpsc::Receiver<Vec<u8>>,
    waiting: &Mutex<Waiting>,
) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
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
