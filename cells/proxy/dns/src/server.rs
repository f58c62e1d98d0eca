//! Listeners: queries in, answers out.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::directory::Transport;
use crate::proxy::{Forward, Packet, Proxy};
use crate::sockets::{MAX_PAYLOAD, Spoofing, listen_tcp, listen_udp, receive};
use crate::upstream::{read_message, write_message};

/// Limit of the first query of a connection.
const FIRST_QUERY_LIMIT: Duration = Duration::from_secs(2);
/// Limit of a connection without a query.
const IDLE_LIMIT: Duration = Duration::from_secs(8);
/// Limit of an answer that the client does not read.
const WRITE_LIMIT: Duration = Duration::from_secs(8);
/// Queries in progress on a connection; the next one is not read before.
const MAX_PIPELINED: usize = 128;
/// The maximum number of answers that wait for a client to read them: each may have 64 KiB.
const MAX_UNREAD: usize = 8;
/// Connections of one client, and of all.
const MAX_CONNECTIONS_PER_CLIENT: usize = 128;
const MAX_CONNECTIONS: usize = 4096;
/// The pause after an error of a listener, such as that no descriptor is left.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// The sockets of a family.
#[derive(Debug)]
pub(crate) struct Listener {
    tcp: TcpListener,
    udp: Arc<UdpSocket>,
    replies: Arc<Spoofing>,
}

impl Listener {
    /// Binds an address. Port 0 is any; see [`port`](Self::port).
    pub(crate) fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<Listener> {
        let tcp = listen_tcp(address, reuse_port)?;
        let address = SocketAddr::new(address.ip(), tcp.local_addr()?.port());
        let udp = Arc::new(listen_udp(address, reuse_port)?);
        let replies = Arc::new(Spoofing::new(address.ip())?);
        Ok(Listener { tcp, udp, replies })
    }

    /// Returns the port, the same for both protocols.
    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.tcp.local_addr()?.port())
    }

    /// Serves queries until the token is cancelled.
    pub(crate) async fn serve(self, proxy: Proxy, tasks: TaskTracker, stop: CancellationToken) {
        let serve = async {
            tokio::join!(
                serve_udp(self.udp, self.replies, proxy.clone(), &tasks, &stop),
                serve_tcp(self.tcp, proxy, &tasks, &stop),
            );
        };
        stop.run_until_cancelled(serve).await;
    }
}

async fn serve_udp(
    socket: Arc<UdpSocket>,
    replies: Arc<Spoofing>,
    proxy: Proxy,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        let (length, client, server) = match receive(&socket, &mut buffer).await {
            Ok(Some(received)) => received,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(%error, "Unable to receive DNS queries, trying again");
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        let packet = Packet { message: buffer[..length].to_vec(), client, server, transport: Transport::Udp };
        let (proxy, replies) = (proxy.clone(), replies.clone());
        let answer = async move {
            let Some(reply) = proxy.answer(packet, None).await else { return };
            if let Err(error) = replies.send(&reply, server, client).await {
                tracing::debug!(%client, %error, "Unable to send an answer to a DNS query");
            }
        };
        // Boxed: the future is large, and each of the wrappers would move it.
        tasks.spawn(stop.clone().run_until_cancelled_owned(Box::pin(answer)));
    }
}

/// The open connections by client.
#[derive(Debug, Default)]
struct Connections {
    by_client: HashMap<IpAddr, usize>,
    all: usize,
}

/// A connection that counts until it is dropped.
struct Counted {
    connections: Arc<Mutex<Connections>>,
    client: IpAddr,
}

impl Counted {
    /// Counts a connection; `None` if there are too many.
    fn new(connections: &Arc<Mutex<Connections>>, client: IpAddr) -> Option<Counted> {
        let mut open = connections.lock();
        let own = open.by_client.get(&client).copied().unwrap_or_default();
        if own >= MAX_CONNECTIONS_PER_CLIENT || open.all >= MAX_CONNECTIONS {
            return None;
        }
        open.by_client.insert(client, own + 1);
        open.all += 1;
        Some(Counted { connections: connections.clone(), client })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.all -= 1;
        if let Some(own) = open.by_client.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                open.by_client.remove(&self.client);
            }
        }
    }
}

async fn serve_tcp(listener: TcpListener, proxy: Proxy, tasks: &TaskTracker, stop: &CancellationToken) {
    let connections = Arc::default();
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "Unable to accept connections for DNS queries, trying again");
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        let Some(counted) = Counted::new(&connections, client.ip()) else { continue };
        let proxy = proxy.clone();
        let serve = async move {
            if let Err(error) = serve_connection(stream, client, &proxy).await {
                tracing::debug!(%client, %error, "A connection for DNS queries has ended");
            }
            drop(counted);
        };
        tasks.spawn(stop.clone().run_until_cancelled_owned(serve));
    }
}

/// Answers the queries of a connection, each when its answer is there. Ends when the client closes it or is idle.
async fn serve_connection(stream: TcpStream, client: SocketAddr, proxy: &Proxy) -> io::Result<()> {
    // The address that the client has connected to: the socket is transparent.
    let server = stream.local_addr()?;
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    converse(reader, writer, client, server, proxy).await
}

/// Answers the queries that a client sends, until it ends or is idle.
pub(crate) async fn converse<F: Forward>(
    reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    client: SocketAddr,
    server: SocketAddr,
    proxy: &Proxy<F>,
) -> io::Result<()> {
    let slot = F::Slot::default();
    let (replies, mut queue) = mpsc::channel::<Vec<u8>>(MAX_UNREAD);
    let write = async {
        while let Some(reply) = queue.recv().await {
            tokio::time::timeout(WRITE_LIMIT, write_message(&mut writer, &reply)).await??;
        }
        Ok::<_, io::Error>(())
    };
    let read = read_queries(reader, client, server, proxy, &slot, replies);
    tokio::pin!(read, write);
    // A client that does not read its answers must not keep its queries.
    let ended = tokio::select! {
        ended = &mut read => ended,
        written = &mut write => return written,
    };
    write.await.and(ended)
}

async fn read_queries<F: Forward>(
    mut reader: impl AsyncRead + Unpin,
    client: SocketAddr,
    server: SocketAddr,
    proxy: &Proxy<F>,
    slot: &F::Slot,
    replies: mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    let mut answers = FuturesUnordered::new();
    let mut limit = FIRST_QUERY_LIMIT;
    let (queries, mut incoming) = mpsc::channel(1);
    // A query that is read in part must not be lost when an answer comes: it is read by a future of its own.
    let read = async move {
        loop {
            let message = tokio::time::timeout(limit, read_message(&mut reader)).await??;
            limit = IDLE_LIMIT;
            if queries.send(message).await.is_err() {
                return Ok::<_, io::Error>(());
            }
        }
    };
    let answer = async {
        loop {
            let has_room = answers.len() < MAX_PIPELINED;
            tokio::select! {
                message = incoming.recv(), if has_room => match message {
                    Some(message) => {
                        let packet = Packet { message, client, server, transport: Transport::Tcp };
                        answers.push(proxy.answer(packet, Some(slot)));
                    }
                    None => break,
                },
                Some(reply) = answers.next(), if !answers.is_empty() => {
                    if let Some(reply) = reply && replies.send(reply).await.is_err() {
                        return;
                    }
                }
            }
        }
        while let Some(reply) = answers.next().await {
            if let Some(reply) = reply
                && replies.send(reply).await.is_err()
            {
                return;
            }
        }
    };
    let (ended, ()) = tokio::join!(read, answer);
    match ended {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        other => other,
    }
}
