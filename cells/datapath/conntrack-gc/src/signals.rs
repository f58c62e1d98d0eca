//! Reader of `cilium_signals`, the perf event array in which the programs report full maps.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::Context;
use aya::maps::perf::{PerfEvent, PerfEventArrayBuffer};
use aya::maps::{Map, MapData, PerfEventArray};
use datapath_abi::Pod;
use datapath_abi::signal::{CT_FILL_UP, FAMILY_V4, FAMILY_V6, FillUp, NAT_FILL_UP};
use hive::JobCx;
use hive::job::Backoff;
use maps::Maps;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// The perf event array with one ring per CPU.
const MAP: &str = "cilium_signals";
/// Pages of a ring: about 170 signals of 24 bytes. The kernel counts further ones as lost, which are handled alike.
const PAGES: usize = 1;
/// The pause between two reads: each packet that is dropped because a map is full sends a signal.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// The first wait before the rings are opened again after a failure; it doubles up to [`MAX_RETRY_INTERVAL`].
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// A set of address families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Families(u8);

impl Families {
    pub(crate) const IPV4: Families = Families(1);
    pub(crate) const IPV6: Families = Families(2);
    const BOTH: Families = Families(3);

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn contains(self, other: Families) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn with(self, other: Families) -> Families {
        Families(self.0 | other.0)
    }
}

/// Requests of the signal reader for garbage collection: the families with full maps, coalesced.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    families: AtomicU8,
    notify: Notify,
}

impl Requests {
    fn add(&self, families: Families) {
        if !families.is_empty() {
            self.families.fetch_or(families.0, Ordering::AcqRel);
            self.notify.notify_one();
        }
    }

    /// Waits for a request and takes its families. Cancel safe.
    pub(crate) async fn next(&self) -> Families {
        loop {
            self.notify.notified().await;
            let families = Families(self.families.swap(0, Ordering::AcqRel));
            if !families.is_empty() {
                return families;
            }
        }
    }
}

type Ring = AsyncFd<PerfEventArrayBuffer<MapData>>;

/// Reads signals until the job ends.
pub(crate) async fn read(maps: Arc<Maps>, requests: Arc<Requests>, cx: JobCx) -> anyhow::Result<()> {
    let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
    let mut rings = loop {
        match open(&maps) {
            Ok(rings) => break rings,
            Err(error) => {
                let message =
                    "Could not open the signal rings: full maps are not collected before the interval ends";
                if cx.health.degraded_anew(message, format_args!("{error:#}")) {
                    tracing::warn!(error = %format_args!("{error:#}"), "Could not open the signal rings, retrying");
                }
                tokio::select! {
                    () = cx.cancelled() => return Ok(()),
                    () = tokio::time::sleep(backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL)) => {}
                }
            }
        }
    };
    cx.health.ok(format!("Running on {} CPUs", rings.len()));
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            ready = readable(&rings) => ready?,
        }
        let all = Families::default();
        requests.add(rings.iter_mut().fold(all, |all, ring| all.with(drain(ring.get_mut()))));
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = tokio::time::sleep(DEBOUNCE) => {}
        }
    }
}

/// Opens the rings of all online CPUs and registers them with tokio; empty if this node does not have the map.
fn open(maps: &Maps) -> anyhow::Result<Vec<Ring>> {
    let Some(map) = maps.shared(MAP)? else { return Ok(Vec::new()) };
    let map = MapData::from_fd(map.as_fd().try_clone_to_owned()?)?;
    let mut array = PerfEventArray::try_from(Map::from_map_data(map)?)?;
    let cpus = aya::util::online_cpus().map_err(|(path, error)| anyhow::anyhow!("{path}: {error}"))?;
    let open = |cpu| {
        let ring = array.open(cpu, Some(PAGES)).with_context(|| format!("open the ring of CPU {cpu}"))?;
        register(ring).context("watch a ring")
    };
    cpus.into_iter().map(open).collect()
}

#[expect(
    deprecated,
    reason = "sound with a ring, whose descriptor stays the same; its successor is an unsafe function"
)]
fn register(ring: PerfEventArrayBuffer<MapData>) -> io::Result<Ring> {
    AsyncFd::with_interest(ring, Interest::READABLE)
}

/// Waits until a ring is readable.
async fn readable(rings: &[Ring]) -> io::Result<()> {
    if rings.is_empty() {
        return std::future::pending().await;
    }
    let all = rings.iter().map(|ring| Box::pin(ring.ready(Interest::READABLE)));
    let (ready, ..) = futures::future::select_all(all).await;
    // Clear readiness before the rings are read: signals that arrive later must wake the task again.
    ready?.clear_ready();
    Ok(())
}

/// Reads all signals of a ring; returns the families with full maps.
fn drain(ring: &mut PerfEventArrayBuffer<MapData>) -> Families {
    let (mut all, mut lost) = (Families::default(), false);
    ring.for_each(|event| match event {
        PerfEvent::Sample { head, tail } => all = all.with(families(&[head, tail].concat())),
        PerfEvent::Lost { .. } => lost = true,
    });
    // Lost signals carry no family: assume the families of the signals that were read, or both if there were none.
    if lost && all.is_empty() { Families::BOTH } else { all }
}

/// Returns the family of the map that a signal reports as full; the empty set for other signals.
fn families(message: &[u8]) -> Families {
    // The kernel pads samples, so the message may be longer than the signal.
    let signal = message.get(..size_of::<FillUp>()).and_then(FillUp::from_bytes);
    match signal {
        Some(FillUp { signal: CT_FILL_UP | NAT_FILL_UP, family: FAMILY_V4 }) => Families::IPV4,
        Some(FillUp { signal: CT_FILL_UP | NAT_FILL_UP, family: FAMILY_V6 }) => Families::IPV6,
        _ => Families::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_full_maps_name_their_family() {
        let of = |signal: u32, family: u32| {
            let padded = [signal.to_ne_bytes(), family.to_ne_bytes(), [0; 4]].concat();
            (families(&padded), families(&padded[..8]))
        };
        assert_eq!(of(CT_FILL_UP, FAMILY_V4), (Families::IPV4, Families::IPV4));
        assert_eq!(of(NAT_FILL_UP, FAMILY_V6), (Families::IPV6, Families::IPV6));
        assert_eq!(of(CT_FILL_UP, 7).0, Families::default());
        // A signal with another layout, where `family` means something else.
        assert_eq!(of(datapath_abi::signal::AUTH_REQUIRED, FAMILY_V6).0, Families::default());
        assert_eq!(families(&[1, 0, 0, 0]), Families::default());
    }

    #[tokio::test]
    async fn any_number_of_signals_is_one_request() {
        let requests = Requests::default();
        for _ in 0..10_000 {
            requests.add(Families::IPV4);
        }
        requests.add(Families::IPV6);
        requests.add(Families::default());
        assert_eq!(requests.next().await, Families::BOTH);
        assert!(tokio::time::timeout(Duration::from_millis(10), requests.next()).await.is_err());
        requests.add(Families::IPV6);
        assert_eq!(requests.next().await, Families::IPV6);
    }
}
