//! The table `identities`.

use std::sync::Arc;
use std::time::Instant;

use identity_core::{ClusterObject, Scope};
use labels::{LabelArray, NamedPorts};
use serde::{Serialize, Serializer};
use statedb::{Index, Query, TableDisplay, TableSpec};

use crate::label_key::LabelKey;
use crate::prefixes::PREFIX_USER;
use crate::users::Users;

/// A security identity with its labels and users. Immutable: a change is a new value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Identity {
    /// The id.
    pub id: u32,
    /// Its labels.
    pub labels: LabelArray,
    /// Its users.
    pub users: Users,
    /// The time since which it is unused; `None` for one that is used or fixed.
    #[serde(rename = "Unused", serialize_with = "is_some")]
    pub unused_since: Option<Instant>,
    /// Its CiliumIdentity, if the cluster has one. Boxed: those of prefixes have none.
    #[serde(rename = "InCluster", serialize_with = "is_some")]
    pub object: Option<Box<ClusterObject>>,
}

fn is_some<T, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bool(value.is_some())
}

const BY_LABELS: Index<Identity, LabelKey> =
    Index::new("labels", |row, keys| keys.add(&LabelKey(row.labels.clone())));

const BY_USER: Index<Identity, str> = Index::new("user", |row, keys| {
    row.users.names().filter(|user| ***user != *PREFIX_USER).for_each(|user| keys.add(user));
});

impl Identity {
    /// Queries the identity with an id.
    pub fn by_id(id: u32) -> Query<Identity> {
        Query::primary(id)
    }

    /// Queries the identities of exactly these labels; more than one only if restored from a damaged previous run.
    pub fn by_labels(labels: &LabelArray) -> Query<Identity> {
        BY_LABELS.query(&LabelKey(labels.clone()))
    }

    /// Queries the identities that a user references. Those of prefixes are not in the index: thousands have one user.
    pub fn by_user(user: &str) -> Query<Identity> {
        BY_USER.query(user)
    }

    pub(crate) fn new(id: u32, labels: LabelArray) -> Identity {
        Identity { id, labels, users: Users::default(), unused_since: None, object: None }
    }

    /// Returns the scope in which the identity is valid.
    pub fn scope(&self) -> Scope {
        Scope::of(self.id)
    }

    /// Returns the named ports of all users, and those that are part of its labels: pods of other nodes have them, too. A
    /// name may have several ports.
    pub fn named_ports(&self) -> NamedPorts {
        let mut all = labels::ports_of_labels(self.labels.iter());
        self.users.ports().for_each(|ports| all.extend(ports));
        all
    }

    pub(crate) fn with_user(&self, user: impl Into<Arc<str>>) -> Identity {
        let mut row = Identity { unused_since: None, ..self.clone() };
        let user = user.into();
        if !row.users.contains(&user) {
            row.users.insert(user, NamedPorts::default());
        }
        row
    }

    pub(crate) fn without_user(&self, user: &str, now: Instant) -> Identity {
        let mut row = self.clone();
        row.users.remove(user);
        let stays = !row.users.is_empty() || row.scope() == Scope::Reserved || row.object.is_some();
        row.unused_since = (!stays).then_some(row.unused_since.unwrap_or(now));
        row
    }
}

impl TableSpec for Identity {
    const NAME: &'static str = "identities";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.id
    }

    fn indexes() -> Vec<statedb::IndexDef<Identity>> {
        vec![BY_LABELS.def(), BY_USER.def()]
    }
}

impl TableDisplay for Identity {
    fn columns() -> &'static [&'static str] {
        &["ID", "Labels", "Scope", "Users", "InCluster"]
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.labels.texts().join(","),
            self.scope().name().to_owned(),
            self.users.names().map(|user| &**user).collect::<Vec<_>>().join(","),
            self.object.is_some().to_string(),
        ]
    }
}
