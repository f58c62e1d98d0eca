//! In-memory multi-version tables with typed indexes, snapshots and watches.
