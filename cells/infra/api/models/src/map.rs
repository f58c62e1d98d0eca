//! BPF maps.

use crate::{DateTime, List};

crate::models! {
    /// The BPF maps that the agent has open.
    BpfMapList {
        "maps" maps: List<BpfMap>,
    }

    /// A BPF map and its entries that the agent has cached.
    BpfMap {
        "cache" cache: List<BpfMapEntry>,
        "path" path: String,
    }

    /// A cached entry of a BPF map.
    BpfMapEntry {
        "desired-action" desired_action: String,
        "key" key: String,
        "last-error" last_error: String,
        "value" value: String,
    }

    /// A change of a BPF map.
    MapEvent {
        "action" action: String,
        "desired-action" desired_action: String,
        "key" key: String,
        "last-error" last_error: String,
        "timestamp" timestamp: DateTime,
        "value" value: String,
    }

    /// The sizes of the BPF maps.
    BpfMapStatus {
        "dynamic-size-ratio" dynamic_size_ratio: f64,
        "maps" maps: List<BpfMapProperties>,
    }

    /// The size of a BPF map, by the map's purpose.
    BpfMapProperties {
        "name" name: String,
        "size" size: i64,
    }
}
