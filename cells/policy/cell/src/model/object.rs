//! The table `policies`: the status of each policy object.

use std::sync::Arc;

use policy_engine::{Kind, Problem};
use serde::{Serialize, Serializer};
use statedb::{Query, TableDisplay, TableSpec};

/// A policy object by its source: objects of one name from two sources are two policies, both in force.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The source: the option that names it, such as `cluster-folder`.
    pub source: Arc<str>,
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for cluster-wide ones.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// The state of a policy object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ObjectState {
    /// It is in force.
    Applied,
    /// It is invalid; nothing of it is in force.
    Refused,
    /// It is invalid; its previous version is in force.
    RefusedPreviousInForce,
}

/// A row of `policies`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PolicyStatus {
    /// The object.
    #[serde(serialize_with = "name")]
    pub object: ObjectId,
    /// Its origin: file and document.
    pub origin: Arc<str>,
    /// Its state.
    pub state: ObjectState,
    /// The revision at which the version in force was committed, 0 if none is.
    pub revision: u64,
    /// The number of rules of the version in force.
    pub rules: usize,
    /// The labels of each of these rules, as texts.
    #[serde(skip)]
    pub rule_labels: Vec<Arc<[String]>>,
    /// Errors, each with its path in the manifest; for an applied object, fields whose effect differs from what they
    /// suggest, and entries that need a proxy that does not exist.
    #[serde(serialize_with = "texts")]
    pub problems: Vec<Problem>,
}

fn name<S: Serializer>(object: &ObjectId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{}:{}", object.source, object.text()))
}

fn texts<S: Serializer>(problems: &[Problem], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(problems.iter().map(Problem::to_string))
}

impl ObjectId {
    /// Returns the name, as `cnp/shop/web`.
    pub fn text(&self) -> String {
        match self.namespace.is_empty() {
            true => format!("{}/{}", self.kind.short(), self.name),
            false => format!("{}/{}/{}", self.kind.short(), self.namespace, self.name),
        }
    }

    /// Returns the name with the source, as `cluster-folder:cnp/shop/web`.
    pub(crate) fn key(&self) -> String {
        format!("{}:{}", self.source, self.text())
    }
}

impl PolicyStatus {
    /// Queries the status of an object.
    pub fn by_object(object: &ObjectId) -> Query<PolicyStatus> {
        Query::primary(object.key())
    }
}

impl TableSpec for PolicyStatus {
    const NAME: &'static str = "policies";
    const PRIMARY: &'static str = "name";
    type Key<'a> = String;

    fn key(&self) -> String {
        self.object.key()
    }
}

impl TableDisplay for PolicyStatus {
    fn columns() -> &'static [&'static str] {
        &["Kind", "Namespace", "Name", "Source", "Origin", "Status", "Revision", "Rules", "Problems"]
    }

    fn row(&self) -> Vec<String> {
        let state = match self.state {
            ObjectState::Applied => "applied",
            ObjectState::Refused => "refused",
            ObjectState::RefusedPreviousInForce => "refused, previous version in force",
        };
        let problems: Vec<String> = self.problems.iter().map(Problem::to_string).collect();
        vec![
            self.object.kind.name().to_owned(),
            self.object.namespace.to_string(),
            self.object.name.to_string(),
            self.object.source.to_string(),
            self.origin.to_string(),
            state.to_owned(),
            self.revision.to_string(),
            self.rules.to_string(),
            problems.join("; "),
        ]
    }
}
