//! The cells of watches, with loom's parts.

pub(crate) mod sync {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicPtr, Ordering};
}

#[path = "../../src/watch/cell.rs"]
pub(crate) mod cell;
