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
use crate::upstream::{Path, TcpPath, UdpPaths, UpstreamError};
use crate::waiting::Received;

/// Queries of one address at once: a workload must not use up the sockets of the agent.
const MAX_QUERIES_PER_CLIENT: usize = 2048;

/// The proxy.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) counters: Counters,
    config: DnsProxyConfig,
    denied: ResponseCode,
    limit: Option<Arc<Semaphore>>,
    udp: UdpPaths,
    tasks: TaskTracker,
    stop: CancellationToken,
    queries: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A query as received.
pub(crate) struct Packet {
    pub(crate) message: Vec<u8>,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) transport: Transport,
}

/// The connection to the server of a client's connection, which the first forwarded query opens.
#[derive(Default)]
pub(crate) struct TcpSlot(Mutex<Option<Arc<TcpPath>>>);

/// A query that counts for its client until it is dropped.
struct Counted {
    queries: Arc<Mutex<HashMap<IpAddr, usize>>>,
    client: IpAddr,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut queries = self.queries.lock();
        if let Some(count) = queries.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                queries.remove(&self.client);
            }
        }
    }
}

impl Proxy {
    pub(crate) fn new(
        directory: Arc<dyn Directory>,
        counters: Counters,
        config: DnsProxyConfig,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Proxy {
        let denied = match config.tofqdns_dns_reject_response_code {
            RejectCode::NameError => ResponseCode::NXDomain,
            RejectCode::Refused => ResponseCode::Refused,
        };
        let limit = match config.dnsproxy_concurrency_limit {
            0 => None,
            limit => Some(Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)))),
        };
        let udp = UdpPaths::new(tasks.clone(), stop.clone());
        Proxy { directory, counters, config, denied, limit, udp, tasks, stop, queries: Arc::default() }
    }

    /// Returns the answer to a query; `None` if it gets none.
    pub(crate) async fn answer(&self, packet: Packet, slot: Option<&TcpSlot>) -> Option<Vec<u8>> {
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
        let (outcome, reply) = self.handle(&packet, &request, slot, &mut timings).await;
        timings.total = started.elapsed();
        self.counters.ended(outcome, &timings);
        Some(match packet.transport {
            Transport::Udp => request.fit_udp(reply, self.config.tofqdns_enable_dns_compression),
            Transport::Tcp => reply,
        })
    }

    async fn handle(
        &self,
        packet: &Packet,
        request: &Request,
        slot: Option<&TcpSlot>,
        timings: &mut Timings,
    ) -> (Outcome, Vec<u8>) {
        let failed = || (Outcome::Failed, request.reply(ResponseCode::ServFail));
        let waited = Instant::now();
        let permit = self.permit().await;
        timings.semaphore = waited.elapsed();
        let (Ok(_permit), Some(_counted)) = (permit, self.count(packet.client.ip())) else {
            self.counters.rejected();
            return (Outcome::Timeout, request.reply(ResponseCode::ServFail));
        };
        let checked = Instant::now();
        let Some(client) = self.directory.client(packet.client.ip()) else {
            tracing::debug!(source = %packet.client, name = request.name, "A DNS query of no endpoint");
            return failed();
        };
        let Packet { server, transport, .. } = *packet;
        let question = Question { endpoint: client.endpoint, transport, server, name: &request.name };
        let is_allowed = self.directory.allows(question);
        timings.policy = checked.elapsed();
        if !is_allowed {
            return (Outcome::Denied, request.reply(self.denied));
        }
        let transparent = self.config.dnsproxy_enable_transparent_mode
            && !client.is_host
            && !packet.client.ip().is_loopback()
            && self.directory.may_see_client(server.ip());
        let path = Path { client: packet.client, server, identity: client.identity, transparent };
        let forwarded = Instant::now();
        let answer = self.forward(path, packet, request, slot).await;
        timings.upstream = forwarded.elapsed();
        let (mut reply, answer) = match answer {
            Ok(received) => received,
            Err(UpstreamError::Timeout) => return (Outcome::Timeout, request.reply(ResponseCode::ServFail)),
            Err(error) => {
                tracing::debug!(%server, name = request.name, %error, "Unable to forward a DNS query");
                return failed();
            }
        };
        if answer.code == ResponseCode::NoError && !answer.addresses.is_empty() {
            let learned = Instant::now();
            let lookup = Lookup::new(&request.name, answer.addresses, answer.ttl, Timestamp::now());
            self.directory.learn(client.endpoint, lookup).await;
            timings.datapath = learned.elapsed();
        }
        set_id(&mut reply, request.id);
        (Outcome::Forwarded, reply)
    }

    async fn forward(
        &self,
        path: Path,
        packet: &Packet,
        request: &Request,
        slot: Option<&TcpSlot>,
    ) -> Result<Received, UpstreamError> {
        let message = packet.message.clone();
        let Some(slot) = slot else { return self.udp.query(path, request, message).await };
        let tcp = {
            let mut tcp = slot.0.lock();
            let open = || TcpPath::new(path, self.linger(), self.tasks.clone(), &self.stop);
            tcp.get_or_insert_with(|| Arc::new(open())).clone()
        };
        tcp.query(request, message).await
    }

    fn linger(&self) -> Option<Duration> {
        u64::try_from(self.config.dnsproxy_socket_linger_timeout).ok().map(Duration::from_secs)
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

    fn count(&self, client: IpAddr) -> Option<Counted> {
        let mut queries = self.queries.lock();
        let count = queries.entry(client).or_default();
        if *count >= MAX_QUERIES_PER_CLIENT {
            return None;
        }
        *count += 1;
        Some(Counted { queries: self.queries.clone(), client })
    }
}
