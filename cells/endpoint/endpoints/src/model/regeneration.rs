//! How far an endpoint has come whose datapath is being (re)made.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use tokio::time::Instant;

/// A regeneration that has begun and waits for another cell. Changes of the endpoint end it: it starts again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regeneration {
    /// The step that it waits for.
    pub step: Step,
    /// The revision of the policies that its policy map must have.
    pub policy: u64,
    /// When it fails if it is still waiting.
    pub deadline: Instant,
    /// The endpoints that change identity together with this one, and itself.
    pub together: Option<Arc<BTreeSet<u16>>>,
}

/// The steps of a regeneration that wait, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// The policy maps: its own, and those of all others as far as they are about its identity.
    Policy,
    /// Its addresses in the ipcache.
    Ipcache,
    /// The endpoints that change identity together with it.
    Peers,
}
