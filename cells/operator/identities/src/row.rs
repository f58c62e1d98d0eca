//! The table `pod-identities`: label sets of pods, each with its identity.

use identity_core::label_key;
use labels::LabelArray;
use serde::{Serialize, Serializer};
use statedb::{Query, TableDisplay, TableSpec, age};
use tokio::time::Instant;

/// A label set that at least one pod has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PodIdentity {
    /// The labels.
    pub labels: LabelArray,
    /// The number of its pods.
    pub pods: usize,
    /// Its identity: one that exists, or that is being created.
    pub id: Option<u32>,
    /// Whether the identity has an object.
    pub is_created: bool,
    /// Why it has none and none is being created. What the API server answers is in the table `k8s-writes`.
    pub error: String,
    /// Since when it has pods.
    #[serde(rename = "Age", serialize_with = "seconds")]
    pub since: Instant,
}

fn seconds<S: Serializer>(since: &Instant, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(since.elapsed().as_secs())
}

impl PodIdentity {
    /// Queries the row of exactly these labels.
    pub fn by_labels(labels: &LabelArray) -> Query<PodIdentity> {
        PodIdentity::by_key(&label_key(labels))
    }

    pub(crate) fn by_key(set: &str) -> Query<PodIdentity> {
        Query::primary(set.to_owned())
    }
}

impl TableSpec for PodIdentity {
    const NAME: &'static str = "pod-identities";
    const PRIMARY: &'static str = "labels";
    type Key<'a> = String;

    fn key(&self) -> String {
        label_key(&self.labels)
    }
}

impl TableDisplay for PodIdentity {
    fn columns() -> &'static [&'static str] {
        &["Labels", "Pods", "ID", "Created", "Error", "Age"]
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.labels.texts().join(","),
            self.pods.to_string(),
            self.id.map(|id| id.to_string()).unwrap_or_default(),
            self.is_created.to_string(),
            self.error.clone(),
            age::of(self.since.elapsed()),
        ]
    }
}
