//! The observer in the agent's status.

use std::sync::Arc;

use api::StatusSource;
use api_models::{GoDuration, HubbleObserver, HubbleStatus};

use crate::observer::Observer;

/// Returns the source of `hubble`; without an observer it stays disabled.
pub(crate) fn source(observer: Option<Arc<Observer>>) -> StatusSource {
    StatusSource::new("hubble", move |status| {
        let Some(observer) = &observer else { return };
        status.hubble = Some(HubbleStatus {
            state: "Ok".to_owned(),
            observer: Some(HubbleObserver {
                current_flows: observer.ring.len() as i64,
                max_flows: observer.ring.capacity() as i64,
                seen_flows: i64::try_from(observer.seen()).unwrap_or(i64::MAX),
                uptime: GoDuration(observer.uptime()),
            }),
            ..HubbleStatus::default()
        });
    })
}
