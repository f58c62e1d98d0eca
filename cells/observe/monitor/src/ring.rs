//! The rings of `cilium_events`: open while there is a subscription, read when the kernel reports events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use bpf::RawMap;
use bpf::perf::{self, Reader, Record, Rings, Wakeups};
use bytes::Bytes;
use hive::JobCx;
use hive::job::Backoff;
use maps::Maps;
use monitor_events::gob;

use crate::hub::Monitor;

/// Pages of a ring, as Cilium's: 256 KiB, about 1,400 events of 128 bytes of packets.
pub(crate) const PAGES: usize = 64;

/// Messages that are published at once, a bound of their memory.
const MAX_BATCH: usize = 512;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The state of the rings, for the status.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// The size of a page in bytes; zero while the rings are closed.
    pub(crate) page_size: AtomicUsize,
    /// Events that the kernel could not write into a ring.
    pub(crate) lost: AtomicU64,
}

/// Opens the rings with the first subscription and closes them with the last, until the job ends.
pub(crate) async fn run(maps: Arc<Maps>, monitor: Arc<Monitor>, cx: JobCx) -> anyhow::Result<()> {
    let mut subscriptions = monitor.subscriptions();
    let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
    loop {
        cx.health.ok("No listeners");
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            // An error means that the monitor is gone, which this job keeps.
            _ = subscriptions.wait_for(|count| *count > 0) => {}
        }
        let opened = maps.clone();
        let result = async {
            let rings = hive::blocking(move || open(&opened)).await?;
            let mut rings = Reader::new(rings).context("watch a ring")?;
            backoff.reset();
            cx.health.ok(format_args!("Reading the rings of {} CPUs", rings.len()));
            monitor.counters.page_size.store(perf::page_size(), Ordering::Relaxed);
            let end = read(&mut rings, &monitor, &cx).await;
            monitor.counters.page_size.store(0, Ordering::Relaxed);
            // The kernel waits for programs that use a ring before it is gone.
            hive::blocking(move || drop(rings)).await;
            end
        };
        let Err(error) = result.await else { continue };
        const MESSAGE: &str = "Could not read the rings of events: listeners get notifications only";
        if cx.health.degraded_anew(MESSAGE, format_args!("{error:#}")) {
            tracing::warn!(error = %format_args!("{error:#}"), "{MESSAGE}");
        }
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = tokio::time::sleep(backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL)) => {}
        }
    }
}

/// Publishes events until the last subscription ends.
async fn read(rings: &mut Reader, monitor: &Monitor, cx: &JobCx) -> anyhow::Result<()> {
    let mut subscriptions = monitor.subscriptions();
    let mut messages = Vec::new();
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            _ = subscriptions.wait_for(|count| *count == 0) => return Ok(()),
            readable = rings.readable() => readable?,
        }
        rings.read(|cpu, record| {
            if messages.len() == MAX_BATCH {
                monitor.publish_all(&messages);
                messages.clear();
            }
            messages.push(encode(cpu, record, &monitor.counters.lost));
        })?;
        monitor.publish_all(&messages);
        messages.clear();
    }
}

/// Opens the rings of all online CPUs. The map is opened by its pin for each use: the kernel removes rings from a map
/// when the file is closed by which they were set, also that of a process that was killed.
fn open(maps: &Maps) -> anyhow::Result<Rings> {
    let map = RawMap::open(&maps.path("cilium_events"))?;
    anyhow::ensure!(map.id() == maps.events().id(), "the pin cilium_events is that of another map");
    Ok(Rings::open(map, PAGES, Wakeups::Paced)?)
}

/// Returns the message of a record with the number of events that it stands for; counts those that are lost.
fn encode(cpu: u32, record: Record<'_>, lost: &AtomicU64) -> (Bytes, u64) {
    match record {
        Record::Sample { head, tail } => (gob::sample(cpu, head, tail).into(), 1),
        Record::Lost { count } => {
            lost.fetch_add(count, Ordering::Relaxed);
            (gob::lost(cpu, count).into(), count)
        }
    }
}
