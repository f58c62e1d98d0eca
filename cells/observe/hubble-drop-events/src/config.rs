//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::time::Duration;

use hubble_api::flow::DropReason;

/// Events for drops.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Hubble")]
pub struct DropEventsConfig {
    /// Write events of Kubernetes for packets of pods that are dropped; needs enable-hubble
    #[flag(default = false)]
    pub hubble_drop_events: bool,
    /// The shortest time between two writes of equal events
    #[flag(default = "2m")]
    pub hubble_drop_events_interval: Duration,
    /// Reasons of drops that are events, by the names of Hubble
    #[flag(default = "auth_required,policy_denied")]
    pub hubble_drop_events_reasons: Vec<String>,
    /// Name the policies that deny the packet in events, or those that select the pod if no rule denies it
    #[flag(default = false)]
    pub hubble_drop_events_extended: bool,
    /// Number of writes of events per second; 0 for no limit
    #[flag(default = 1)]
    pub hubble_drop_events_rate_limit: u32,
}

/// A reason that Hubble does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hubble-drop-events-reasons: {0:?} is no reason of Hubble: `apiary explain` lists them")]
pub struct UnknownReason(pub String);

impl DropEventsConfig {
    /// Returns the reasons, and the names that are none.
    pub(crate) fn reasons(&self) -> (Vec<DropReason>, Vec<UnknownReason>) {
        let (mut reasons, mut unknown) = (Vec::new(), Vec::new());
        // The chart joins its list by blanks.
        for name in self.hubble_drop_events_reasons.iter().flat_map(|names| names.split_whitespace()) {
            match DropReason::from_str_name(&name.to_ascii_uppercase()) {
                Some(reason) => reasons.push(reason),
                None => unknown.push(UnknownReason(name.to_owned())),
            }
        }
        (reasons, unknown)
    }
}
