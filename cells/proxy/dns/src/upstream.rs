//! Forwards requests to the servers that clients ask.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::Type;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
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
/// The time for which a socket over UDP serves one request after another: opening one costs as much as the rest of a
/// request. A forged answer has to have its port, which must not be the same for long (RFC 5452, 9.2).
const SOCKET_LIFETIME: Duration = Duration::from_secs(1);
/// Sockets that wait for their next request.
const MAX_IDLE_SOCKETS: usize = 1024;

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

    /// Returns the requests that may share its socket one after another; `None` if its port is that of the client.
    fn route(&self) -> Option<Route> {
        let Path { client, server, identity, transparent } = *self;
        (!transparent).then_some(Route { client: client.ip(), server, identity })
    }
}

/// Sockets to servers over UDP.
#[derive(Debug, Clone)]
pub(crate) struct UdpPaths {
    paths: Arc<Mutex<Paths>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Paths {
    open: HashMap<Path, UsedPath>,
    shares: Shares,
    idle: IdleSockets,
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
struct UdpPath(Mutex<PathState>);

#[derive(Debug, Default)]
struct PathState {
    open: Option<PathSocket>,
    waiting: Waiting,
    /// Whether a request has ended without its answer, which may come later.
    has_unanswered: bool,
}

/// A socket that is connected to a server: the kernel drops packets of others.
#[derive(Debug, Clone)]
struct PathSocket {
    socket: Arc<UdpSocket>,
    opened: Instant,
}

/// The requests that may have a socket one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Route {
    client: IpAddr,
    server: SocketAddr,
    identity: u32,
}

/// Sockets without a request, with random ports.
#[derive(Debug, Default)]
struct IdleSockets {
    by_route: HashMap<Route, Vec<PathSocket>>,
    count: usize,
    is_swept: bool,
}

/// A request's place in a path; dropping it closes the path after the last one.
struct Place<'a> {
    paths: &'a UdpPaths,
    key: Path,
    path: Arc<UdpPath>,
    id: Option<u16>,
    is_answered: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.path.0.lock();
            if let Some(id) = self.id {
                state.waiting.remove(id);
            }
            state.has_unanswered |= !self.is_answered;
        }
        let paths = &mut *self.paths.paths.lock();
        let Entry::Occupied(mut used) = paths.open.entry(self.key) else { return };
        used.get_mut().requests -= 1;
        if used.get().requests == 0 {
            used.remove();
            paths.shares.release(self.key.client.ip());
            self.paths.keep(&mut paths.idle, self.key, &self.path);
        }
    }
}

impl UdpPaths {
    pub(crate) fn new(tasks: TaskTracker, stop: CancellationToken) -> UdpPaths {
        let shares = Shares::new(MAX_UDP_SOCKETS, GUARANTEED_UDP_SOCKETS);
        let paths = Paths { open: HashMap::new(), shares, idle: IdleSockets::default() };
        UdpPaths { paths: Arc::new(Mutex::new(paths)), tasks, stop }
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
        let answer = tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| UpstreamError::Timeout)?;
        place.is_answered = answer.is_ok();
        answer
    }

    fn place(&self, key: Path) -> Result<Place<'_>, UpstreamError> {
        let Paths { open, shares, idle } = &mut *self.paths.lock();
        let used = match open.entry(key) {
            Entry::Occupied(used) => used.into_mut(),
            Entry::Vacant(closed) => {
                if !shares.take(key.client.ip()) {
                    return Err(UpstreamError::NoPort);
                }
                let open = key.route().and_then(|route| idle.take(route));
                let state = PathState { open, ..PathState::default() };
                closed.insert(UsedPath { path: Arc::new(UdpPath(Mutex::new(state))), requests: 0 })
            }
        };
        used.requests += 1;
        Ok(Place { paths: self, key, path: used.path.clone(), id: None, is_answered: false })
    }

    /// Keeps the socket of a path without requests for the next one, unless packets may still come for these.
    fn keep(&self, idle: &mut IdleSockets, key: Path, path: &UdpPath) {
        let mut state = path.0.lock();
        let (Some(route), false) = (key.route(), state.has_unanswered) else { return };
        // A socket that is not kept is closed with the path, when the lock is released.
        if !state.open.as_ref().is_some_and(|open| idle.has_capacity_for(open)) {
            return;
        }
        let Some(open) = state.open.take() else { return };
        idle.add(route, open);
        if !std::mem::replace(&mut idle.is_swept, true) {
            let sweep = sweep(self.paths.clone());
            self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(sweep));
        }
    }
}

/// Closes idle sockets at the end of their time, until there are none.
async fn sweep(paths: Arc<Mutex<Paths>>) {
    loop {
        tokio::time::sleep(SOCKET_LIFETIME).await;
        let mut over = Vec::new();
        let idle = &mut paths.lock().idle;
        idle.by_route.retain(|_, sockets| {
            over.extend(sockets.extract_if(.., |open| open.is_over()));
            !sockets.is_empty()
        });
        idle.count -= over.len();
        if idle.count == 0 {
            idle.is_swept = false;
            return;
        }
    }
}

impl IdleSockets {
    fn has_capacity_for(&self, open: &PathSocket) -> bool {
        self.count < MAX_IDLE_SOCKETS && !open.is_over()
    }

    fn add(&mut self, route: Route, open: PathSocket) {
        self.by_route.entry(route).or_default().push(open);
        self.count += 1;
    }

    /// Returns the socket that was used last, if its time is not over.
    fn take(&mut self, route: Route) -> Option<PathSocket> {
        let Entry::Occupied(mut sockets) = self.by_route.entry(route) else { return None };
        let open = sockets.get_mut().pop();
        if sockets.get().is_empty() {
            sockets.remove();
        }
        self.count -= usize::from(open.is_some());
        open.filter(|open| !open.is_over())
    }
}

impl PathSocket {
    fn is_over(&self) -> bool {
        self.opened.elapsed() >= SOCKET_LIFETIME
    }
}

impl UdpPath {
    /// Adds a request; the first one opens the socket. Returns the id that the request has at the server.
    fn add(
        &self,
        key: Path,
        request: &Request,
    ) -> Result<(Arc<UdpSocket>, u16, oneshot::Receiver<Received>), UpstreamError> {
        let PathState { open, waiting, .. } = &mut *self.0.lock();
        let socket = match open {
            Some(open) => open.socket.clone(),
            None => {
                let socket = upstream(Type::DGRAM, key.server, key.identity, key.source(), None)?;
                socket.connect(&key.server.into())?;
                let socket = Arc::new(UdpSocket::from_std(socket.into())?);
                *open = Some(PathSocket { socket: socket.clone(), opened: Instant::now() });
                socket
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
            Ok(length) => self.0.lock().waiting.deliver(&buffer[..length]),
            // Another request of the path has received it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::debug!(%server, %error, "A DNS server cannot be reached");
                self.0.lock().waiting.fail();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a path with a request, and its socket.
    fn request<'a>(
        paths: &'a UdpPaths,
        key: &str,
        identity: u32,
        transparent: bool,
    ) -> (Place<'a>, Arc<UdpSocket>) {
        let query = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\x02io\0\0\x01\0\x01";
        let (client, server) = key.split_once(' ').unwrap();
        let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
        let key = Path { client, server, identity, transparent };
        let mut place = paths.place(key).unwrap();
        let (socket, id, _) = place.path.add(key, &Request::parse(query).unwrap()).unwrap();
        place.id = Some(id);
        (place, socket)
    }

    fn idle(paths: &UdpPaths) -> usize {
        paths.paths.lock().idle.count
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_has_one_request_after_another_of_a_client_to_a_server_for_a_second() {
        test_kit::require_root!();
        let paths = UdpPaths::new(TaskTracker::new(), CancellationToken::new());
        let ask = |key| request(&paths, key, 1000, false);
        let answered = |(mut place, socket): (Place<'_>, _)| {
            place.is_answered = true;
            drop(place);
            socket
        };
        let is_first = {
            let first = answered(ask("127.0.0.2:1 127.0.0.1:53"));
            move |socket: &Arc<UdpSocket>| Arc::ptr_eq(socket, &first)
        };
        assert_eq!(idle(&paths), 1);
        {
            let (_second, socket) = ask("127.0.0.2:2 127.0.0.1:53");
            assert!(is_first(&socket) && idle(&paths) == 0);
            let (_third, socket) = ask("127.0.0.2:3 127.0.0.1:53");
            assert!(!is_first(&socket), "one in flight");
            let (_fourth, socket) = ask("127.0.0.2:2 127.0.0.1:53");
            assert!(is_first(&socket), "the same socket of the client");
        }
        assert_eq!(idle(&paths), 0, "requests without an answer: it may still come");
        let next = answered(ask("127.0.0.2:1 127.0.0.1:53"));
        let is_next = |socket: &Arc<UdpSocket>| Arc::ptr_eq(socket, &next);
        assert!(!is_first(&next));
        for other in ["127.0.0.3:1 127.0.0.1:53", "127.0.0.2:1 127.0.0.4:53", "127.0.0.2:1 127.0.0.1:5353"] {
            assert!(!is_next(&ask(other).1), "{other}");
        }
        assert!(!is_next(&request(&paths, "127.0.0.2:1 127.0.0.1:53", 1001, false).1), "another identity");
        let transparent = answered(request(&paths, "127.0.0.2:9 127.0.0.1:53", 1000, true));
        assert_eq!(transparent.local_addr().unwrap().port(), 9);
        assert_eq!(idle(&paths), 1, "the port of a client is not kept");
        tokio::time::sleep(SOCKET_LIFETIME - Duration::from_millis(1)).await;
        let (place, socket) = ask("127.0.0.2:1 127.0.0.1:53");
        assert!(is_next(&socket));
        tokio::time::sleep(Duration::from_millis(1)).await;
        answered((place, socket));
        assert_eq!(idle(&paths), 0, "its time is over");
        answered(ask("127.0.0.2:1 127.0.0.1:53"));
        assert_eq!(idle(&paths), 1);
        tokio::time::sleep(2 * SOCKET_LIFETIME).await;
        assert_eq!(idle(&paths), 0, "without another request");
    }

    #[tokio::test]
    async fn idle_sockets_are_bounded() {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let open = PathSocket { socket, opened: Instant::now() };
        let mut idle = IdleSockets::default();
        let route = |port| Route {
            client: [127, 0, 0, 2].into(),
            server: ([127, 0, 0, 1], port).into(),
            identity: 1,
        };
        for number in 0..MAX_IDLE_SOCKETS {
            assert!(idle.has_capacity_for(&open));
            idle.add(route(number as u16 % 7), open.clone());
        }
        assert!(!idle.has_capacity_for(&open));
        assert!(idle.take(route(7)).is_none() && idle.take(route(6)).is_some());
        assert!(idle.has_capacity_for(&open));
    }
}
