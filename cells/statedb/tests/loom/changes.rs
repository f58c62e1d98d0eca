//! The readers of changes, compiled with loom's primitives.

pub(crate) mod sync {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[expect(unreachable_pub, reason = "part of a trait's signature in the library")]
#[path = "../../src/changes/trackers.rs"]
pub(crate) mod trackers;
