//! Kinds of notifications of the agent (constants: agent_notify).

/// The agent has started.
pub const STARTED: u32 = 2;
/// An endpoint was regenerated.
pub const ENDPOINT_REGENERATED: u32 = 3;
/// The regeneration of an endpoint has failed.
pub const ENDPOINT_FAILED: u32 = 4;
/// A policy was added or updated.
pub const POLICY_UPDATED: u32 = 5;
/// A policy was deleted.
pub const POLICY_DELETED: u32 = 6;
/// An endpoint was created.
pub const ENDPOINT_CREATED: u32 = 7;
/// An endpoint was deleted.
pub const ENDPOINT_DELETED: u32 = 8;
/// An entry of the ipcache was added or updated.
pub const IPCACHE_UPSERTED: u32 = 9;
/// An entry of the ipcache was deleted.
pub const IPCACHE_DELETED: u32 = 10;

/// Names as Cilium prints them, by number.
const NAMES: [&str; 11] = [
    "unspecified",
    "Message",
    "Cilium agent started",
    "Endpoint regenerated",
    "Failed endpoint regeneration",
    "Policy updated",
    "Policy deleted",
    "Endpoint created",
    "Endpoint deleted",
    "IPCache entry upserted",
    "IPCache entry deleted",
];

/// Returns the name of a kind, if it is known.
#[must_use]
pub fn name(kind: u32) -> Option<&'static str> {
    NAMES.get(usize::try_from(kind).ok()?).copied()
}
