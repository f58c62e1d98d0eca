//! The cells and waiters of watches, compiled with loom's primitives.

pub(crate) mod sync {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

    pub(crate) use crate::engine::sync::Mutex;
}

#[path = "../../src/watch/cell.rs"]
pub(crate) mod cell;

#[path = "../../src/watch/waiting.rs"]
pub(crate) mod waiting;
