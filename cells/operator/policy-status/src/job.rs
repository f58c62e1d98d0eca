//! The job that follows the policies of a kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::JobCx;
use hive::health::summarize;
use jiff::Timestamp;
use k8s_tables::Row;
use k8s_types::{Key, Resource as _};
use operator_status::StatusWriter;
use policy_engine::Settings;
use statedb::Table;
use tokio::task::yield_now;

use crate::object::PolicyObject;
use crate::validation::{problems, status};

/// Policies that are validated before other tasks may run: some milliseconds.
const SLICE: usize = 64;
/// Invalid policies that health names at most.
const MAX_REPORTED: usize = 5;

/// Keeps the statuses of policies.
pub(crate) struct PolicyStatus<const CLUSTERWIDE: bool> {
    pub(crate) settings: Arc<Settings>,
    pub(crate) policies: Arc<Table<Row<PolicyObject<CLUSTERWIDE>>>>,
    pub(crate) write: StatusWriter,
    /// The problems of invalid policies.
    pub(crate) invalid: BTreeMap<Key, String>,
}

impl<const CLUSTERWIDE: bool> PolicyStatus<CLUSTERWIDE> {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let policies = self.policies.clone();
        cx.health.ok("Waits for the list of policies");
        if cx.token().run_until_cancelled(policies.wait_initialized()).await.is_none() {
            return Ok(());
        }
        let mut changes = policies.changes();
        loop {
            self.report(&cx);
            let Some(batch) = cx.token().run_until_cancelled(changes.next()).await else { return Ok(()) };
            for (index, change) in batch.iter().enumerate() {
                match change.deleted {
                    true => self.forget(&change.object),
                    false => self.validate(&change.object),
                }
                if index % SLICE == SLICE - 1 {
                    yield_now().await;
                }
            }
        }
    }

    fn forget(&mut self, row: &Row<PolicyObject<CLUSTERWIDE>>) {
        let key = key(row);
        self.invalid.remove(&key);
        self.write.forget::<PolicyObject<CLUSTERWIDE>>(&key);
    }

    fn validate(&mut self, row: &Row<PolicyObject<CLUSTERWIDE>>) {
        let key = key(row);
        let problems = problems(row, &self.settings);
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        match status(row, problems.as_deref(), &now) {
            Some(status) => self.write.replace(&self.policies, row, status),
            None => self.write.forget::<PolicyObject<CLUSTERWIDE>>(&key),
        }
        match problems {
            Some(problems) => {
                if self.invalid.get(&key) != Some(&problems) {
                    tracing::warn!(policy = %key, %problems, "Agents refuse a policy");
                }
                self.invalid.insert(key, problems);
            }
            None => _ = self.invalid.remove(&key),
        }
    }

    /// Invalid policies are no failure of the operator.
    fn report(&self, cx: &JobCx) {
        let all = self.policies.len(&self.policies.snapshot());
        if self.invalid.is_empty() {
            cx.health.ok(format_args!("{all} policies are valid"));
            return;
        }
        let names: Vec<String> = self.invalid.keys().map(ToString::to_string).collect();
        let names = summarize(&names, MAX_REPORTED, ", ");
        cx.health.ok(format_args!("{} of {all} policies are invalid: {names}", self.invalid.len()));
    }
}

fn key<const CLUSTERWIDE: bool>(row: &Row<PolicyObject<CLUSTERWIDE>>) -> Key {
    Key::new(row.metadata().namespace.clone(), row.metadata().name.clone())
}
