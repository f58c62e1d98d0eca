//! Counters by reason, direction, file and line.

use crate::maps::cilium_metrics;
use datapath_abi::{MetricsKey, MetricsValue};

/// Counts a packet of `bytes` bytes.
#[inline(always)]
pub(crate) fn count(reason: u8, dir: u8, file: u8, line: u16, bytes: u32) {
    let key = MetricsKey { reason, dir, line, file, reserved: [0; 3] };
    match cilium_metrics.get_mut(&key) {
        Some(value) => {
            value.count += 1;
            value.bytes += u64::from(bytes);
        }
        None => cilium_metrics.insert(&key, &MetricsValue { count: 1, bytes: u64::from(bytes) }),
    }
}
