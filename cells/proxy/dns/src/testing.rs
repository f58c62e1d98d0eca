//! The proxy without the cell, for tests, and without sockets, for untrusted input.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use monitor::Monitor;
use parking_lot::Mutex;
use proxy_ports::Verdicts;
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::DnsProxyConfig;
use crate::directory::{Directory, Transport};
use crate::message::Request;
use crate::metrics::Counters;
use crate::observation::Observer;
use crate::proxy::{Forward, Packet, Proxy};
use crate::server::{Listener, converse};
use crate::upstream::{Connection, Path, UpstreamError, read_message};
use crate::waiting::{Received, Waiting};

/// Returns the observer of an agent, with its metrics in `metrics` and its records in `monitor`.
pub fn observer(
    directory: Arc<dyn Directory>,
    metrics: &metrics::Metrics,
    monitor: Arc<Monitor>,
) -> Observer {
    let verdicts = Verdicts::default();
    verdicts.register(metrics);
    let counters = Counters::new(verdicts);
    counters.register(metrics);
    Observer::new(monitor, directory, counters)
}

/// Serves queries at an address until the token is cancelled, with its metrics in `metrics` and its records in `monitor`.
///
/// # Errors
/// If the sockets cannot be bound.
pub async fn serve(
    address: SocketAddr,
    directory: Arc<dyn Directory>,
    config: DnsProxyConfig,
    metrics: &metrics::Metrics,
    monitor: Arc<Monitor>,
    stop: CancellationToken,
) -> io::Result<()> {
    let observer = observer(directory, metrics, monitor);
    let listener = Listener::bind(address, false)?;
    let tasks = TaskTracker::new();
    let proxy = Proxy::new(observer, config, tasks.clone(), stop.clone());
    listener.serve(proxy, tasks.clone(), stop).await;
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// A query and the messages of its server, or streams of both, with the messages that the proxy makes of them. No socket
/// is involved.
#[derive(Debug, Default)]
pub struct Traffic {
    /// The queries that servers have received.
    pub forwarded: Vec<Vec<u8>>,
    /// The answers that the client has received.
    pub replies: Vec<Vec<u8>>,
}

/// The addresses of the client and of the server that it asks.
const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2)), 40_000);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 2, 0, 2)), 53);
/// How often all other tasks have had their turn when a client has sent all of its queries.
const IDLE_TURNS: usize = 16;

/// A server that sends prepared messages: over UDP after each query, over TCP as a stream after the last one.
#[derive(Clone)]
struct Prepared<'a> {
    forwarded: Arc<Mutex<Vec<Vec<u8>>>>,
    messages: &'a [&'a [u8]],
    stream: &'a [u8],
    tasks: TaskTracker,
}

impl Forward for Prepared<'_> {
    type Slot = OnceLock<Connection>;

    async fn forward(
        &self,
        path: Path,
        message: Vec<u8>,
        request: &Request,
        slot: Option<&Self::Slot>,
    ) -> Result<Received, UpstreamError> {
        let Some(slot) = slot else {
            self.forwarded.lock().push(message);
            let mut waiting = Waiting::default();
            let (_, mut answer) = waiting.add(request).ok_or(UpstreamError::NoId)?;
            self.messages.iter().for_each(|message| waiting.deliver(message));
            return answer.try_recv().map_err(|_| UpstreamError::Timeout);
        };
        let open = || {
            let (near, far) = tokio::io::duplex(1 << 20);
            let (connection, run) = Connection::new(path.server, async { Ok(tokio::io::split(near)) });
            let (forwarded, stream) = (self.forwarded.clone(), self.stream.to_vec());
            self.tasks.spawn(run);
            self.tasks.spawn(serve_stream(far, forwarded, stream));
            connection
        };
        slot.get_or_init(open).query(request, message).await
    }
}

/// Reads queries until no more come, then writes a stream of answers and closes.
async fn serve_stream(mut socket: DuplexStream, forwarded: Arc<Mutex<Vec<Vec<u8>>>>, stream: Vec<u8>) {
    let idle = async || {
        for _ in 0..IDLE_TURNS {
            tokio::task::yield_now().await;
        }
    };
    loop {
        tokio::select! {
            biased;
            message = read_message(&mut socket) => match message {
                Ok(message) => forwarded.lock().push(message),
                Err(_) => return,
            },
            () = idle() => break,
        }
    }
    // An error: the proxy does not read any longer.
    let _ = socket.write_all(&stream).await;
}

/// Answers a query over UDP, to which the server sends these messages.
pub async fn answer(observer: Observer, config: DnsProxyConfig, query: &[u8], messages: &[&[u8]]) -> Traffic {
    let servers = Prepared { forwarded: Arc::default(), messages, stream: &[], tasks: TaskTracker::new() };
    let forwarded = servers.forwarded.clone();
    let proxy = Proxy::with_servers(observer, config, servers);
    let packet =
        Packet { message: query.to_vec(), client: CLIENT, server: SERVER, transport: Transport::Udp };
    let replies = proxy.answer(packet, None).await.into_iter().collect();
    let forwarded = std::mem::take(&mut *forwarded.lock());
    Traffic { forwarded, replies }
}

/// Answers a stream of queries over TCP, to which the server sends a stream of messages.
///
/// # Panics
/// If the proxy writes something other than messages with their lengths.
pub async fn answer_stream(
    observer: Observer,
    config: DnsProxyConfig,
    queries: &[u8],
    messages: &[u8],
) -> Traffic {
    let servers =
        Prepared { forwarded: Arc::default(), messages: &[], stream: messages, tasks: TaskTracker::new() };
    let forwarded = servers.forwarded.clone();
    let proxy = Proxy::with_servers(observer, config, servers);
    let mut written = Vec::new();
    // An error ends the connection: a stream that ends within a message.
    let _ = converse(queries, &mut written, CLIENT, SERVER, &proxy).await;
    let (mut rest, mut replies) = (&written[..], Vec::new());
    while !rest.is_empty() {
        replies.push(read_message(&mut rest).await.expect("whole messages"));
    }
    let forwarded = std::mem::take(&mut *forwarded.lock());
    Traffic { forwarded, replies }
}
