//! The table `identity-requests`: label sets that wait for an identity of the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use identity_core::label_key;
use labels::LabelArray;
use serde::{Serialize, Serializer};
use statedb::{Query, RwTable, Table, TableDisplay, TableSpec, age};
use tokio::time::Instant;

/// A label set without an identity, and the users that wait for one. It is there until the label set has an identity, or
/// until nothing waits for it any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct IdentityRequest {
    /// The labels.
    pub labels: LabelArray,
    /// The waiting users, such as `endpoint/12`.
    pub users: BTreeSet<Arc<str>>,
    /// The id that is being created for them; none before one is chosen, and if the operator chooses it.
    pub id: Option<u32>,
    /// Why there is none yet, if that is known here. What the API server answers is in the table `k8s-writes`.
    pub error: String,
    /// When an identity is created for them: at once if a new endpoint waits, else after a random delay.
    #[serde(skip)]
    pub due: Instant,
    /// Since when it waits.
    #[serde(rename = "Age", serialize_with = "seconds")]
    pub since: Instant,
}

fn seconds<S: Serializer>(since: &Instant, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(since.elapsed().as_secs())
}

impl IdentityRequest {
    /// Queries the request of exactly these labels.
    pub fn by_labels(labels: &LabelArray) -> Query<IdentityRequest> {
        Query::primary(label_key(labels))
    }
}

impl TableSpec for IdentityRequest {
    const NAME: &'static str = "identity-requests";
    const PRIMARY: &'static str = "labels";
    type Key<'a> = String;

    fn key(&self) -> String {
        label_key(&self.labels)
    }
}

impl TableDisplay for IdentityRequest {
    fn columns() -> &'static [&'static str] {
        &["Labels", "ID", "Users", "Error", "Age"]
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.labels.texts().join(","),
            self.id.map(|id| id.to_string()).unwrap_or_default(),
            self.users.iter().map(|user| &**user).collect::<Vec<_>>().join(","),
            self.error.clone(),
            age::of(self.since.elapsed()),
        ]
    }
}

/// The writer of the table. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Requests(RwTable<IdentityRequest>);

impl Requests {
    pub(crate) fn new(table: RwTable<IdentityRequest>) -> Requests {
        Requests(table)
    }

    pub(crate) fn table(&self) -> Table<IdentityRequest> {
        self.0.reader()
    }

    /// Requests an identity of these labels for a user, which waits for no other one from now on. None is created before the
    /// shortest delay of all users is over.
    pub(crate) fn add(&self, labels: &LabelArray, user: &str, delay: Duration) {
        let snapshot = self.0.snapshot();
        let waits = |row: &IdentityRequest| row.users.contains(user);
        if self.0.get(&snapshot, IdentityRequest::by_labels(labels)).is_some_and(|row| waits(row)) {
            return;
        }
        let now = Instant::now();
        self.0.transact(|w| {
            let others: Vec<_> = w.all().filter(|row| waits(row)).cloned().collect();
            others.iter().for_each(|row| withdraw(w, row, user));
            let mut row = match w.get(IdentityRequest::by_labels(labels)) {
                Some(row) => (**row).clone(),
                None => IdentityRequest {
                    labels: labels.clone(),
                    users: BTreeSet::new(),
                    id: None,
                    error: String::new(),
                    due: now + delay,
                    since: now,
                },
            };
            row.due = row.due.min(now + delay);
            row.users.insert(user.into());
            w.insert(row);
        });
    }

    /// The user waits for no identity any more.
    pub(crate) fn remove_user(&self, user: &str) {
        let snapshot = self.0.snapshot();
        if !self.0.all(&snapshot).any(|row| row.users.contains(user)) {
            return;
        }
        self.0.transact(|w| {
            let rows: Vec<_> = w.all().filter(|row| row.users.contains(user)).cloned().collect();
            rows.iter().for_each(|row| withdraw(w, row, user));
        });
    }

    /// Ends a request: the labels have an identity.
    pub(crate) fn finish(&self, labels: &LabelArray) {
        self.0.transact(|w| w.delete(IdentityRequest::by_labels(labels)));
    }

    /// Sets the id that is being created for a request, or why there is none.
    pub(crate) fn set(&self, labels: &LabelArray, id: Option<u32>, error: &str) {
        let snapshot = self.0.snapshot();
        let differs = |row: &IdentityRequest| row.id != id || row.error != error;
        if !self.0.get(&snapshot, IdentityRequest::by_labels(labels)).is_some_and(|row| differs(row)) {
            return;
        }
        self.0.transact(|w| {
            if let Some(row) = w.get(IdentityRequest::by_labels(labels)) {
                let row = IdentityRequest { id, error: error.to_owned(), ..(**row).clone() };
                w.insert(row);
            }
        });
    }
}

fn withdraw(w: &mut statedb::Writer<'_, IdentityRequest>, row: &IdentityRequest, user: &str) {
    let mut row = row.clone();
    row.users.remove(user);
    match row.users.is_empty() {
        true => drop(w.delete(IdentityRequest::by_labels(&row.labels))),
        false => drop(w.insert(row)),
    }
}
