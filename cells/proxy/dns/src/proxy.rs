//! The way of a query: policy, forwarding, the addresses of the answer.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fqdn::Lookup;
use hickory_proto::op::ResponseCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{DnsProxyConfig, RejectCode};
use crate::directory::{Directory, Question, Transport};
use crate::message::{Rejected, Request, set_id};
use crate::metrics::{Counters, Outcome, Timings};
use crate::observation::Observer;
use crate::records::Records;
use crate::upstream::{Path, TcpPath, UdpPaths, UpstreamError};
use crate::waiting::Received;

/// Queries of one address at once, and their bytes: a workload must use up neither sockets nor memory of the agent.
const MAX_QUERIES_PER_CLIENT: usize = 2048;
const MAX_BYTES_PER_CLIENT: usize = 4 << 20;
/// How long a query waits for rules of its client, and how often it looks for them.
const RULES_LIMIT: Duration = Duration::from_millis(500);
const RULES_INTERVAL: Duration = Duration::from_millis(10);

/// The servers as a proxy reaches them.
pub(crate) trait Forward {
    /// The connection to the server of a client's connection, which the first forwarded query opens.
    type Slot: Default;

    /// Forwards a query, over TCP if there is a slot, and returns its answer.
    async fn forward(
        &self,
        path: Path,
        message: Vec<u8>,
        request: &Request,
        slot: Option<&Self::Slot>,
    ) -> Result<Received, UpstreamError>;
}

/// The proxy.
#[derive(Clone)]
pub(crate) struct Proxy<F = Network> {
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) counters: Counters,
    records: Records,
    config: DnsProxyConfig,
    denied: ResponseCode,
    limit: Option<Arc<Semaphore>>,
    servers: F,
    load: Arc<Mutex<HashMap<IpAddr, Load>>>,
}

/// The servers behind sockets of this node.
#[derive(Clone)]
pub(crate) struct Network {
    udp: UdpPaths,
    linger: Option<Duration>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Forward for Network {
    type Slot = Mutex<Option<Arc<TcpPath>>>;

    async fn forward(
        &self,
        path: Path,
        message: Vec<u8>,
        request: &Request,
        slot: Option<&Self::Slot>,
    ) -> Result<Received, UpstreamError> {
        let Some(slot) = slot else { return self.udp.query(path, request, message).await };
        let open = || Arc::new(TcpPath::new(path, self.linger, self.tasks.clone(), &self.stop));
        let tcp = slot.lock().get_or_insert_with(open).clone();
        tcp.query(request, message).await
    }
}

/// The queries of a client that are in flight or wait for it.
#[derive(Default)]
struct Load {
    queries: usize,
    bytes: usize,
}

/// The error of a query beyond a limit.
#[derive(Debug, thiserror::Error)]
#[error("too many DNS queries at once")]
struct TooManyQueries;

/// A query as received.
pub(crate) struct Packet {
    pub(crate) message: Vec<u8>,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) transport: Transport,
}

/// A query that counts for its client until it is dropped.
struct Counted {
    load: Arc<Mutex<HashMap<IpAddr, Load>>>,
    client: IpAddr,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut load = self.load.lock();
        if let Some(own) = load.get_mut(&self.client) {
            own.queries -= 1;
            own.bytes -= self.bytes;
            if own.queries == 0 {
                load.remove(&self.client);
            }
        }
    }
}

impl Proxy {
    pub(crate) fn new(
        observer: Observer,
        config: DnsProxyConfig,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Proxy {
        let linger = u64::try_from(config.dnsproxy_socket_linger_timeout).ok().map(Duration::from_secs);
        let udp = UdpPaths::new(tasks.clone(), stop.clone());
        Proxy::with_servers(observer, config, Network { udp, linger, tasks, stop })
    }
}

impl<F: Forward> Proxy<F> {
    pub(crate) fn with_servers(observer: Observer, config: DnsProxyConfig, servers: F) -> Proxy<F> {
        let denied = match config.tofqdns_dns_reject_response_code {
            RejectCode::NameError => ResponseCode::NXDomain,
            RejectCode::Refused => ResponseCode::Refused,
        };
        let limit = match config.dnsproxy_concurrency_limit {
            0 => None,
            limit => Some(Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)))),
        };
        let Observer { records, counters } = observer;
        let directory = records.directory.clone();
        Proxy { directory, counters, records, config, denied, limit, servers, load: Arc::default() }
    }

    /// Returns the answer to a query; `None` if it gets none.
    pub(crate) async fn answer(&self, packet: Packet, slot: Option<&F::Slot>) -> Option<Vec<u8>> {
        let started = Instant::now();
        self.counters.received();
        let request = match Request::parse(&packet.message) {
            Ok(request) => request,
            Err(rejected) => {
                self.counters.malformed();
                return match rejected {
                    Rejected::Silently => None,
                    Rejected::With(reply) => Some(reply),
                };
            }
        };
        let mut timings = Timings::default();
        let transport = packet.transport;
        let (outcome, reply) = self.handle(packet, &request, slot, &mut timings).await;
        timings.total = started.elapsed();
        self.counters.ended(outcome, &timings);
        Some(match transport {
            Transport::Udp => request.fit_udp(reply, self.config.tofqdns_enable_dns_compression),
            Transport::Tcp => reply,
        })
    }

    async fn handle(
        &self,
        packet: Packet,
        request: &Request,
        slot: Option<&F::Slot>,
        timings: &mut Timings,
    ) -> (Outcome, Vec<u8>) {
        let Packet { client: source, server, transport, .. } = packet;
        let started = Instant::now();
        let failed = || (Outcome::Failed, request.reply(ResponseCode::ServFail));
        let exchange = |client| self.records.exchange(client, transport, request, [source, server]);
        let rejected = || {
            self.counters.rejected();
            if let Some(client) = self.directory.client(source.ip()) {
                exchange(client).failed(&TooManyQueries, true, &Timings::default());
            }
            (Outcome::Timeout, request.reply(ResponseCode::ServFail))
        };
        // Also those count that wait for the permission.
        let Some(_counted) = self.count(packet.client.ip(), packet.message.len()) else { return rejected() };
        self.wait_for_rules(&packet).await;
        let waited = Instant::now();
        let permit = self.permit().await;
        timings.semaphore = waited.elapsed();
        let Ok(_permit) = permit else { return rejected() };
        let checked = Instant::now();
        let Some(client) = self.directory.client(source.ip()) else {
            tracing::debug!(%source, name = request.name, "A DNS query of no endpoint");
            return failed();
        };
        let question = Question { endpoint: client.endpoint, transport, server, name: &request.name };
        let is_allowed = self.directory.allows(question);
        timings.policy = checked.elapsed();
        let exchange = exchange(client);
        timings.total = started.elapsed();
        exchange.decided(is_allowed, timings);
        if !is_allowed {
            return (Outcome::Denied, request.reply(self.denied));
        }
        let transparent = self.config.dnsproxy_enable_transparent_mode
            && !client.is_host
            && !source.ip().is_loopback()
            && self.directory.may_see_client(server.ip());
        let path = Path { client: source, server, identity: client.identity, transparent };
        let forwarded = Instant::now();
        let answer = self.servers.forward(path, packet.message, request, slot).await;
        timings.upstream = forwarded.elapsed();
        timings.total = started.elapsed();
        let (mut reply, answer) = match answer {
            Ok(received) => received,
            Err(error) => {
                let is_timeout = matches!(error, UpstreamError::Timeout | UpstreamError::NoPort);
                exchange.failed(&error, is_timeout, timings);
                match error {
                    UpstreamError::NoPort => return rejected(),
                    UpstreamError::Timeout => {
                        return (Outcome::Timeout, request.reply(ResponseCode::ServFail));
                    }
                    _ => {}
                }
                tracing::debug!(%server, name = request.name, %error, "Unable to forward a DNS query");
                return failed();
            }
        };
        let lookup = Lookup::new(&request.name, answer.addresses, answer.ttl, Timestamp::now());
        if answer.code == ResponseCode::NoError && !lookup.addresses.is_empty() {
            let learned = Instant::now();
            self.directory.learn(client.endpoint, lookup.clone()).await;
            timings.datapath = learned.elapsed();
        }
        timings.total = started.elapsed();
        exchange.answered(&reply, answer.code, &lookup, timings);
        set_id(&mut reply, request.id);
        (Outcome::Forwarded, reply)
    }

    /// Waits for the rules of a client that a directory does not have yet, so that a new workload's query is not refused.
    async fn wait_for_rules(&self, packet: &Packet) {
        let started = Instant::now();
        while self.directory.is_behind(packet.client.ip(), packet.transport, packet.server)
            && started.elapsed() < RULES_LIMIT
        {
            tokio::time::sleep(RULES_INTERVAL).await;
        }
    }

    /// Waits for the permission to forward a query, if there is a limit. Returns an error if it takes too long.
    async fn permit(&self) -> Result<Option<OwnedSemaphorePermit>, ()> {
        let Some(limit) = &self.limit else { return Ok(None) };
        if let Ok(permit) = limit.clone().try_acquire_owned() {
            return Ok(Some(permit));
        }
        let grace = self.config.dnsproxy_concurrency_processing_grace_period;
        let acquired = tokio::time::timeout(grace, limit.clone().acquire_owned()).await;
        acquired.map_err(drop)?.map(Some).map_err(drop)
    }

    fn count(&self, client: IpAddr, bytes: usize) -> Option<Counted> {
        let mut load = self.load.lock();
        let own = load.entry(client).or_default();
        if own.queries >= MAX_QUERIES_PER_CLIENT || own.bytes + bytes > MAX_BYTES_PER_CLIENT {
            return None;
        }
        own.queries += 1;
        own.bytes += bytes;
        Some(Counted { load: self.load.clone(), client, bytes })
    }
}
