//! The wiring: the options.

use hive::prelude::*;

use crate::MasqueradeConfig;

/// Provides the options of masquerading.
pub fn cell() -> Cell {
    module("masquerade", "Addresses of packets that leave the cluster", [config::<MasqueradeConfig>()])
}
