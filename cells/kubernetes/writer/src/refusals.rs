//! Refusals of the server, in health and log: one row for each verb and kind, with the remedy.

use std::collections::BTreeMap;

use hive::Health;
use k8s_types::{ApiError, Kind};
use statedb::{Snapshot, Table};

use crate::mutation::Verb;
use crate::write::{Write, WriteState};

/// The currently reported refusals.
pub(crate) struct Refusals {
    table: Table<Write>,
    health: Health,
    reported: BTreeMap<(Kind, Verb), Health>,
}

impl Refusals {
    pub(crate) fn new(table: Table<Write>, health: Health) -> Refusals {
        Refusals { table, health, reported: BTreeMap::new() }
    }

    /// Whether any is reported.
    pub(crate) fn any(&self) -> bool {
        !self.reported.is_empty()
    }

    /// Updates health from the table. For each verb and kind only the first object by name is reported; the others are
    /// in the table.
    pub(crate) fn report(&mut self, snapshot: &Snapshot) {
        let mut first: BTreeMap<(Kind, Verb), &Write> = BTreeMap::new();
        for row in self.table.all(snapshot).filter(|row| row.state == WriteState::Refused) {
            first.entry((row.mutation.target.kind, row.verb)).or_insert(row);
        }
        self.reported.retain(|place, health| {
            let stays = first.contains_key(place);
            if !stays {
                health.close();
            }
            stays
        });
        for ((kind, verb), row) in first {
            let resource = format!("{}{}", kind.plural(), verb.sub_resource());
            let new = !self.reported.contains_key(&(kind, verb));
            let scope = || self.health.child(&format!("{}-{resource}", verb.name()));
            let health = self.reported.entry((kind, verb)).or_insert_with(scope);
            let message = format!("The API server refuses to {} {resource}", verb.name());
            health.degraded(&message, format_args!("{}: {}", row.object, row.error));
            if new {
                tracing::warn!(object = row.object, error = row.error, "{message}");
            }
        }
    }
}

/// Returns an error with its remedy, if one is known.
pub(crate) fn with_remedy(kind: Kind, verb: Verb, error: &ApiError) -> String {
    let resource = format!("{}{}", kind.plural(), verb.sub_resource());
    match error {
        ApiError::Forbidden(_) => format!(
            "{error}; give the agent's role the verb {} on {resource} of the group {:?}, or the agent a token that is valid",
            verb.name(),
            kind.group()
        ),
        ApiError::Invalid(_) => format!(
            "{error}; look whether the definition of {} in the cluster is of the agent's release",
            kind.plural()
        ),
        _ => error.to_string(),
    }
}
