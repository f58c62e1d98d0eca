//! Senders of which all packets are dropped.

use crate::List;

crate::models! {
    /// The prefilter.
    Prefilter {
        "spec" spec: Option<PrefilterSpec>,
        "status" status: Option<PrefilterStatus>,
    }

    /// Ranges of senders.
    PrefilterSpec {
        "deny" deny: List<String>,
        "revision" revision: i64,
    }

    /// The list in force.
    PrefilterStatus {
        "realized" realized: Option<PrefilterSpec>,
    }
}
