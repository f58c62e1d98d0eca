//! The observer: decodes events of the monitor into the ring.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use datapath_api::SocketLb;
use hive::JobCx;
use hubble_api::flow::{Emitter, Flow, LostEvent, LostEventSource};
use hubble_api::observer::Namespace;
use local_node::{DEFAULT_CLUSTER, LocalNode};
use monitor::{Monitor, Subscription};
use monitor_events::gob::{self, LOST, Payload, Reader, SAMPLE};
use parking_lot::Mutex;
use prost_types::Timestamp;
use statedb::{Db, Table};
use tokio::time::Instant;
use uuid::Uuid;

use crate::cgroups::Cgroups;
use crate::clock;
use crate::feed::Consumer;
use crate::kinds::Kinds;
use crate::names::{At, Names, Tables};
use crate::parser::{self, Records};
use crate::redact::Redaction;
use crate::ring::{Event, Ring};

/// Bytes of events that are decoded on one snapshot of the tables.
const BATCH: usize = 64 << 10;

/// How long a namespace is listed after its last flow.
const NAMESPACE_LIFETIME: Duration = Duration::from_secs(3600);

/// The version of the server: the release of Cilium with the same interfaces.
pub(crate) const VERSION: &str = metrics::VERSION;

/// The state of the observer, which requests read.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) ring: Arc<Ring>,
    /// Flows that were decoded since the start.
    seen: AtomicU64,
    started: Instant,
    /// Namespaces of flows, with the time of their last one.
    namespaces: Mutex<BTreeMap<String, Instant>>,
}

impl Observer {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            ring: Arc::new(Ring::new(capacity)),
            seen: AtomicU64::new(0),
            started: Instant::now(),
            namespaces: Mutex::default(),
        }
    }

    /// Returns the number of flows that were decoded since the start.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Returns the time since the start.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the number of flows per second in the last minute, or since the oldest flow of the ring if that is younger.
    pub(crate) fn flow_rate(&self) -> f64 {
        const WINDOW: i64 = 60;
        let now = clock::now();
        let since = Timestamp { seconds: now.seconds - WINDOW, ..now };
        let seconds = |time: &Timestamp| time.seconds as f64 + f64::from(time.nanos) / 1e9;
        let (flows, oldest) = self.ring.flows_since(&since);
        let window = seconds(&now) - seconds(&oldest.unwrap_or(since));
        if window > 0.0 { flows as f64 / window } else { 0.0 }
    }

    /// Returns the namespaces of flows of the last hour, sorted.
    pub(crate) fn namespaces(&self, cluster: &str) -> Vec<Namespace> {
        let mut namespaces = self.namespaces.lock();
        let now = Instant::now();
        namespaces.retain(|_, seen| now.duration_since(*seen) < NAMESPACE_LIFETIME);
        let cluster = if cluster == DEFAULT_CLUSTER { "" } else { cluster };
        let row =
            |namespace: &String| Namespace { cluster: cluster.to_owned(), namespace: namespace.clone() };
        namespaces.keys().map(row).collect()
    }

    /// Adds a batch of events.
    fn push(&self, events: Vec<Event>) {
        let now = Instant::now();
        let mut flows = 0;
        {
            let mut namespaces = self.namespaces.lock();
            for event in &events {
                let Event::Flow(flow) = event else { continue };
                flows += 1;
                for side in [&flow.source, &flow.destination].into_iter().flatten() {
                    match namespaces.get_mut(&side.namespace) {
                        Some(seen) => *seen = now,
                        None if side.namespace.is_empty() => {}
                        None => {
                            // Rare: also the time to forget old ones, if no client asks.
                            namespaces.retain(|_, seen| now.duration_since(*seen) < NAMESPACE_LIFETIME);
                            namespaces.insert(side.namespace.clone(), now);
                        }
                    }
                }
            }
        }
        self.seen.fetch_add(flows, Ordering::Relaxed);
        self.ring.push(events);
    }
}

/// Returns a node's name as clients see it: with its cluster, unless that has the default name.
pub(crate) fn node_name(node: &LocalNode) -> String {
    match node.cluster.as_str() {
        "" | DEFAULT_CLUSTER => node.name.clone(),
        cluster => format!("{cluster}/{}", node.name),
    }
}

/// The job that fills the ring.
pub(crate) struct Worker {
    pub(crate) observer: Arc<Observer>,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) queue_size: usize,
    /// The shortest time between two reports of events that did not fit into the queue.
    pub(crate) lost_event_interval: Duration,
    pub(crate) db: Arc<Db>,
    pub(crate) tables: Tables,
    pub(crate) node: Table<LocalNode>,
    pub(crate) redaction: Redaction,
    pub(crate) socket_lb: Option<Arc<SocketLb>>,
    pub(crate) skip_unknown_cgroups: bool,
    pub(crate) kinds: Kinds,
    pub(crate) consumers: Vec<Consumer>,
}

/// Events that did not fit into the queue and are not reported yet.
struct QueueLosses {
    lost: LostEvent,
    next_report: Instant,
}

impl QueueLosses {
    fn new() -> Self {
        let lost = LostEvent {
            source: LostEventSource::ObserverEventsQueue.into(),
            cpu: Some(0),
            ..LostEvent::default()
        };
        Self { lost, next_report: Instant::now() }
    }

    fn add(&mut self, count: u64) {
        if count > 0 {
            let now = clock::now();
            self.lost.num_events_lost += count;
            self.lost.first.get_or_insert(now);
            self.lost.last = Some(now);
        }
    }

    fn is_empty(&self) -> bool {
        self.lost.num_events_lost == 0
    }

    fn take(&mut self, interval: Duration) -> Event {
        let taken = std::mem::replace(self, Self::new());
        self.next_report = Instant::now() + interval;
        Event::Lost(taken.lost)
    }
}

impl Worker {
    /// Decodes events until the job ends.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let subscription = self.monitor.subscribe_separately(self.queue_size);
        cx.health.ok("Observing flows");
        let mut losses = QueueLosses::new();
        let (mut reader, mut bytes) = (Reader::default(), Vec::new());
        reader.push(gob::PREAMBLE);
        let mut records = Records::new(self.redaction.clone());
        let mut cgroups = Cgroups::new(self.socket_lb.clone(), self.skip_unknown_cgroups);
        while !cx.is_cancelled() {
            let Some(lost) = self.wait(&subscription, &mut bytes, &losses, &cx).await else { continue };
            let _working = cx.working();
            losses.add(lost);
            reader.push(&bytes);
            bytes.clear();
            let payloads = self.payloads(&mut reader)?;
            let Tables { endpoints, pods, .. } = &self.tables;
            cgroups.find(&payloads, &self.db, endpoints, pods.as_ref()).await;
            let mut events = self.decode(&payloads, &mut records, &cgroups);
            if !losses.is_empty() && Instant::now() >= losses.next_report {
                events.push(losses.take(self.lost_event_interval));
            }
            for consumer in &self.consumers {
                events.iter().for_each(|event| consumer.consume(event));
            }
            self.observer.push(events);
            // A queue that is never empty must not keep other tasks of this thread waiting.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Waits for events, and for the time of a report. Returns the number of events that the queue has lost; `None` at
    /// the end of the job.
    async fn wait(
        &self,
        subscription: &Subscription,
        bytes: &mut Vec<u8>,
        losses: &QueueLosses,
        cx: &JobCx,
    ) -> Option<u64> {
        tokio::select! {
            () = cx.cancelled() => None,
            lost = subscription.read(bytes, BATCH) => Some(lost),
            () = tokio::time::sleep_until(losses.next_report), if !losses.is_empty() => Some(0),
        }
    }

    /// Returns the messages that are kept.
    fn payloads(&self, reader: &mut Reader) -> anyhow::Result<Vec<Payload>> {
        let mut payloads = Vec::new();
        while let Some(value) = reader.next_value()? {
            payloads.extend(Some(Payload::from(value)).filter(|payload| self.kinds.keep(payload)));
        }
        Ok(payloads)
    }

    fn decode(&self, payloads: &[Payload], records: &mut Records, cgroups: &Cgroups) -> Vec<Event> {
        let names = At { tables: &self.tables, snapshot: self.db.snapshot(), cgroups };
        let node = self.node.get(&names.snapshot, LocalNode::query());
        let labels =
            node.map(|node| node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect());
        let stamp = Stamp {
            node_name: node.map(|node| node_name(node)).unwrap_or_default(),
            node_labels: labels.unwrap_or_default(),
        };
        payloads.iter().filter_map(|payload| stamp.event(payload, &names, records)).collect()
    }
}

/// The fields that all flows of a batch have in common.
struct Stamp {
    node_name: String,
    node_labels: Vec<String>,
}

impl Stamp {
    /// Returns the event of a message of the monitor; `None` if no request returns its kind.
    fn event(&self, payload: &Payload, names: &dyn Names, records: &mut Records) -> Option<Event> {
        match payload.kind {
            LOST => Some(Event::Lost(LostEvent {
                source: LostEventSource::PerfEventRingBuffer.into(),
                num_events_lost: payload.lost,
                cpu: i32::try_from(payload.cpu).ok(),
                ..LostEvent::default()
            })),
            SAMPLE => {
                // Newer programs may write events of unknown versions.
                let event = monitor_events::decode(&payload.data).ok()?;
                match &event {
                    monitor_events::Event::Agent(agent) => {
                        Some(Event::Agent(Arc::new(parser::agent_event(agent)), clock::now()))
                    }
                    monitor_events::Event::Debug(message) => {
                        let event = parser::debug_event(message, payload.cpu, names);
                        Some(Event::Debug(Arc::new(event), clock::now()))
                    }
                    monitor_events::Event::Record(record) => {
                        let flow = records.parse(record, names);
                        Some(Event::Flow(Arc::new(self.stamp(flow))))
                    }
                    _ => {
                        let flow = parser::parse(&event, names)?;
                        Some(Event::Flow(Arc::new(self.stamp(flow))))
                    }
                }
            }
            _ => None,
        }
    }

    fn stamp(&self, flow: Flow) -> Flow {
        Flow {
            time: Some(clock::now()),
            uuid: Uuid::new_v4().to_string(),
            emitter: Some(Emitter { name: "Hubble".to_owned(), version: VERSION.to_owned() }),
            node_name: self.node_name.clone(),
            node_labels: self.node_labels.clone(),
            ..flow
        }
    }
}
