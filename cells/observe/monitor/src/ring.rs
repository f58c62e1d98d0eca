//! The rings of `cilium_events`: open while there is a subscription, read when the kernel reports events.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use aya::maps::perf::{PerfEvent, PerfEventArrayBuffer};
use aya::maps::{Map, MapData, PerfEventArray};
use bpf::RawMap;
use bytes::Bytes;
use hive::JobCx;
use hive::job::Backoff;
use maps::Maps;
use monitor_events::gob;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::hub::Monitor;

/// Pages of a ring, as Cilium's: 256 KiB, about 1,400 events of 128 bytes of packets.
pub(crate) const PAGES: usize = 64;

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

/// A CPU's ring.
struct Ring {
    cpu: u32,
    buffer: AsyncFd<PerfEventArrayBuffer<MapData>>,
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
        let buffers = hive::blocking(move || anyhow::Ok((page_size()?, open(&opened)?))).await;
        let rings = buffers.and_then(|(page_size, buffers)| {
            let rings = buffers.into_iter().map(|(cpu, buffer)| {
                register(buffer).map(|buffer| Ring { cpu, buffer }).context("watch a ring")
            });
            Ok((page_size, rings.collect::<anyhow::Result<Vec<Ring>>>()?))
        });
        match rings {
            Ok((page_size, mut rings)) => {
                backoff.reset();
                cx.health.ok(format_args!("Reading the rings of {} CPUs", rings.len()));
                monitor.counters.page_size.store(page_size, Ordering::Relaxed);
                let end = read(&mut rings, &monitor, &cx).await;
                monitor.counters.page_size.store(0, Ordering::Relaxed);
                // The kernel waits for programs that use a ring before it is gone.
                hive::blocking(move || drop(rings)).await;
                end?;
            }
            Err(error) => {
                const MESSAGE: &str = "Could not open the rings of events: listeners get notifications only";
                if cx.health.degraded_anew(MESSAGE, format_args!("{error:#}")) {
                    tracing::warn!(error = %format_args!("{error:#}"), "{MESSAGE}");
                }
                tokio::select! {
                    () = cx.cancelled() => return Ok(()),
                    () = tokio::time::sleep(backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL)) => {}
                }
            }
        }
    }
}

/// Publishes events until the last subscription ends.
async fn read(rings: &mut [Ring], monitor: &Monitor, cx: &JobCx) -> anyhow::Result<()> {
    let mut subscriptions = monitor.subscriptions();
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            _ = subscriptions.wait_for(|count| *count == 0) => return Ok(()),
            ready = readable(rings) => ready?,
        }
        // After a wakeup all rings are drained, as the order between CPUs is not kept anyway.
        for ring in rings.iter_mut() {
            let messages = drain(ring.cpu, ring.buffer.get_mut(), &monitor.counters.lost);
            monitor.publish_all(&messages);
        }
    }
}

/// Opens the rings of all online CPUs. The map is opened by its pin for each use: the kernel removes rings from a map
/// when the descriptor by which they were set is closed, also that of a process that was killed.
fn open(maps: &Maps) -> anyhow::Result<Vec<(u32, PerfEventArrayBuffer<MapData>)>> {
    let pinned = RawMap::open(&maps.path("cilium_events"))?;
    anyhow::ensure!(pinned.id() == maps.events().id(), "the pin cilium_events is that of another map");
    let map = MapData::from_fd(pinned.as_fd().try_clone_to_owned()?)?;
    drop(pinned);
    let mut array = PerfEventArray::try_from(Map::from_map_data(map)?)?;
    let cpus = aya::util::online_cpus().map_err(|(path, error)| anyhow::anyhow!("{path}: {error}"))?;
    let open = |cpu| {
        let buffer = array.open(cpu, Some(PAGES)).with_context(|| format!("open the ring of CPU {cpu}"))?;
        Ok((cpu, buffer))
    };
    cpus.into_iter().map(open).collect()
}

/// Returns the size of a page, from the auxiliary vector of the process (getauxval(3)).
fn page_size() -> anyhow::Result<usize> {
    const AT_PAGESZ: usize = 6;
    const WORD: usize = size_of::<usize>();
    let vector = std::fs::read("/proc/self/auxv").context("read /proc/self/auxv")?;
    let words: Vec<usize> = vector
        .chunks_exact(WORD)
        .map(|bytes| usize::from_ne_bytes(bytes.try_into().unwrap_or([0; WORD])))
        .collect();
    let pairs = words.chunks_exact(2);
    let size = pairs.filter(|pair| pair[0] == AT_PAGESZ).map(|pair| pair[1]).next();
    size.context("no page size in /proc/self/auxv")
}

#[expect(
    deprecated,
    reason = "sound with a ring, whose descriptor stays the same; its successor is an unsafe function"
)]
fn register(buffer: PerfEventArrayBuffer<MapData>) -> io::Result<AsyncFd<PerfEventArrayBuffer<MapData>>> {
    AsyncFd::with_interest(buffer, Interest::READABLE)
}

/// Waits until a ring is readable.
async fn readable(rings: &[Ring]) -> io::Result<()> {
    if rings.is_empty() {
        return std::future::pending().await;
    }
    let all = rings.iter().map(|ring| Box::pin(ring.buffer.ready(Interest::READABLE)));
    let (ready, ..) = futures::future::select_all(all).await;
    // Cleared before the rings are read: events that arrive later must wake the task again.
    ready?.clear_ready();
    Ok(())
}

/// Reads all events of a ring, encoded; lost ones are one message.
fn drain(cpu: u32, buffer: &mut PerfEventArrayBuffer<MapData>, lost: &AtomicU64) -> Vec<(Bytes, u64)> {
    let mut messages = Vec::new();
    buffer.for_each(|event| match event {
        PerfEvent::Sample { head, tail } => messages.push((gob::sample(cpu, head, tail).into(), 1)),
        PerfEvent::Lost { count } => {
            lost.fetch_add(count, Ordering::Relaxed);
            messages.push((gob::lost(cpu, count).into(), count));
        }
    });
    messages
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_size_is_a_power_of_two() {
        assert!(super::page_size().unwrap().is_power_of_two());
    }
}
