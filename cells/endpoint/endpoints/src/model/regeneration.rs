//! The progress of an endpoint's regeneration.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use labels::Labels;
use serde::Serialize;
use tokio::time::Instant;

/// A regeneration in progress that waits for another cell. A change of the endpoint aborts it and starts another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regeneration {
    /// The step that it waits for.
    pub step: Step,
    /// The revision of the policies that its policy map must have.
    pub policy: u64,
    /// When it began.
    pub begun: Instant,
    /// When it reached the step.
    pub entered: Instant,
    /// When it fails with a timeout.
    pub deadline: Instant,
    /// The endpoints that change identity together, including this one.
    pub together: Option<Arc<BTreeSet<u16>>>,
}

/// The steps of a regeneration that may wait, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// The policy maps: its own, and the rows of all others about its identity.
    Policy,
    /// Its addresses in the ipcache.
    Ipcache,
    /// The endpoints that change identity together with it.
    Peers,
}

impl Step {
    /// Returns the scope of the step in `cilium_endpoint_regeneration_time_stats_seconds`.
    pub(crate) fn scope(self) -> &'static str {
        match self {
            // Cilium's name; here until the policy is in the maps, too.
            Step::Policy => "waitForPolicyCompute",
            Step::Ipcache => "ipcache",
            Step::Peers => "peers",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Policy => "policy",
            Step::Ipcache => "the ipcache",
            Step::Peers => "other endpoints",
        })
    }
}

/// An error of the regeneration itself; all other errors come from the cells that it writes to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegenerationError {
    /// The identity of the record belongs to other labels by now.
    #[error("identity {identity} is not {labels}'s any more")]
    IdentityReused {
        /// The identity.
        identity: u32,
        /// The endpoint's labels.
        labels: Labels,
    },
    /// The deadline has passed.
    #[error("timed out while waiting for {0}")]
    TimedOut(Step),
}
