//! What the object of a pod says of its endpoint, and the endpoint that has it.

use std::time::SystemTime;

use labels::NamedPorts;
use statedb::Obj;

use crate::model::endpoint::Endpoint;
use crate::model::record::Record;
use crate::model::state::State;

/// Why endpoints of other labels are made again.
pub(crate) const UPDATED: &str = "LabelsUpdate: updated security labels";
pub(crate) const RESOLVING: &str = "Triggering identity resolution due to updated identity labels";

/// A record with other labels, and their identity; and other names of ports.
pub(crate) struct Description {
    pub(crate) record: Record,
    pub(crate) named_ports: NamedPorts,
}

impl Description {
    /// The current row with what was found out for `row`; none if that does not hold for it any more. How far the
    /// reconciler has come with it does not matter.
    pub(crate) fn applied(self, row: &Endpoint, current: Option<&Obj<Endpoint>>) -> Option<Endpoint> {
        let holds = |current: &&Obj<Endpoint>| {
            let is_same = current.record == row.record && current.named_ports == row.named_ports;
            is_same && !current.state.is_leaving()
        };
        let current = current.filter(holds)?;
        let now = SystemTime::now();
        let has_other_identity = self.record.sec_label != current.record.sec_label;
        let next = Endpoint { named_ports: self.named_ports, ..current.with_record(self.record) };
        let next = if has_other_identity { next.identified(RESOLVING, now) } else { next };
        Some(match next.state {
            State::Restoring => next,
            _ => next.triggered("LabelsUpdate", UPDATED, now),
        })
    }
}
