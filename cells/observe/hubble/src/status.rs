//! The observer in the agent's status.

use std::sync::Arc;

use api::StatusSource;
use api_models::{GoDuration, HubbleObserver, HubbleStatus};

use crate::observer::Observer;

/// Returns the source of `hubble`; without an observer it stays disabled. While it starts, it is a warning, with Cilium's
/// message.
pub(crate) fn source(
    observer: Option<Arc<Observer>>,
    is_starting: impl Fn() -> bool + Send + Sync + 'static,
) -> StatusSource {
    StatusSource::new("hubble", move |status| {
        let Some(observer) = &observer else { return };
        let (state, msg) = if is_starting() { ("Warning", "Hubble starting") } else { ("Ok", "") };
        status.hubble = Some(HubbleStatus {
            state: state.to_owned(),
            msg: msg.to_owned(),
            observer: Some(HubbleObserver {
                current_flows: observer.ring.len() as i64,
                max_flows: observer.ring.capacity() as i64,
                seen_flows: i64::try_from(observer.seen()).unwrap_or(i64::MAX),
                uptime: GoDuration(observer.uptime()),
            }),
        });
    })
}
