//! The job that reads the rings.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bpf::RawMap;
use bpf::perf::{Reader, Record, Rings, Wakeups};
use datapath_abi::Pod;
use datapath_abi::signal::{
    AUTH_REQUIRED, AuthKey, AuthRequired, CT_FILL_UP, FAMILY_V4, FAMILY_V6, FillUp, NAT_FILL_UP,
};
use hive::JobCx;
use hive::job::Backoff;
use maps::Maps;

use crate::handle::{Families, Signals};

/// The perf event array with one ring per CPU.
const MAP: &str = "cilium_signals";
/// Pages of a ring: about 170 signals of 24 bytes. The kernel counts further ones as lost, which are handled alike.
const PAGES: usize = 1;
/// The pause between two reads: each packet that is dropped for its reason sends a signal.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// The first wait before the rings are opened again after a failure; it doubles up to [`MAX_RETRY_INTERVAL`].
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Reads signals until the job ends.
pub(crate) async fn read(maps: Arc<Maps>, signals: Arc<Signals>, cx: JobCx) -> anyhow::Result<()> {
    let mut backoff = Backoff::exponential(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
    let mut rings = loop {
        match open(&maps) {
            Ok(Some(rings)) => break rings,
            Ok(None) => {
                cx.health.ok("This node has no rings of signals");
                return Ok(());
            }
            Err(error) => {
                let message = "Could not open the signal rings: full maps wait for the next collection, and packets for \
                               authentication";
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
            readable = rings.readable() => readable?,
        }
        let full = drain(&mut rings, |key| signals.authenticate(key))?;
        signals.collect(full);
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = tokio::time::sleep(DEBOUNCE) => {}
        }
    }
}

/// Opens the rings of all online CPUs; `None` if this node does not have the map.
fn open(maps: &Maps) -> anyhow::Result<Option<Reader>> {
    if maps.shared(MAP)?.is_none() {
        return Ok(None);
    }
    // Opened by its pin, so that the rings have a file of their own, and their descriptors are in no journal of writes.
    let map = RawMap::open(&maps.path(MAP))?;
    let rings = Rings::open(map, PAGES, Wakeups::EachRecord)?;
    Reader::new(rings).context("watch a ring").map(Some)
}

/// A signal of the datapath.
#[derive(Debug, PartialEq, Eq)]
enum Signal {
    Full(Families),
    Authenticate(AuthKey),
}

/// Reads all signals; returns the families with full maps.
fn drain(rings: &mut Reader, mut authenticate: impl FnMut(AuthKey)) -> anyhow::Result<Families> {
    let (mut full, mut lost) = (Families::default(), false);
    rings.read(|_, record| match record {
        Record::Sample { head, tail } => match signal(&[head, tail].concat()) {
            Some(Signal::Full(families)) => full = full.with(families),
            Some(Signal::Authenticate(key)) => authenticate(key),
            None => {}
        },
        Record::Lost { .. } => lost = true,
    })?;
    // Lost signals carry no family: assume the families of the signals that were read, or both if there were none. Lost
    // requests to authenticate come again with the next packet.
    Ok(if lost && full.is_empty() { Families::BOTH } else { full })
}

/// Returns the signal of a message; `None` for an unknown one.
fn signal(message: &[u8]) -> Option<Signal> {
    // The kernel pads samples, so the message may be longer than the signal.
    let required = message.get(..size_of::<AuthRequired>()).and_then(AuthRequired::from_bytes);
    if let Some(AuthRequired { signal: AUTH_REQUIRED, key }) = required {
        return Some(Signal::Authenticate(key));
    }
    match message.get(..size_of::<FillUp>()).and_then(FillUp::from_bytes)? {
        FillUp { signal: CT_FILL_UP | NAT_FILL_UP, family: FAMILY_V4 } => Some(Signal::Full(Families::IPV4)),
        FillUp { signal: CT_FILL_UP | NAT_FILL_UP, family: FAMILY_V6 } => Some(Signal::Full(Families::IPV6)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_signals_by_their_first_word() {
        let of = |kind: u32, family: u32| {
            let padded = [kind.to_ne_bytes(), family.to_ne_bytes(), [0; 4]].concat();
            (signal(&padded), signal(&padded[..8]))
        };
        let full = |families| Some(Signal::Full(families));
        assert_eq!(of(CT_FILL_UP, FAMILY_V4), (full(Families::IPV4), full(Families::IPV4)));
        assert_eq!(of(NAT_FILL_UP, FAMILY_V6), (full(Families::IPV6), full(Families::IPV6)));
        assert_eq!(of(CT_FILL_UP, 7), (None, None));
        assert_eq!(of(AUTH_REQUIRED, FAMILY_V6), (None, None), "too short for its key");
        assert_eq!(signal(&[1, 0, 0, 0]), None);
        let key = AuthKey { local_identity: 1, remote_identity: 2, remote_node: 3, auth_type: 1, pad: 0 };
        let message = AuthRequired { signal: AUTH_REQUIRED, key };
        assert_eq!(signal(&[message.as_bytes(), &[0; 4]].concat()), Some(Signal::Authenticate(key)));
    }
}
