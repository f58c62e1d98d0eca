//! CiliumIdentities: which of them are identities, and the object of an identity.

use k8s_types::Time;
use k8s_types::cilium::CiliumIdentity;
use labels::{Label, LabelArray, LabelRef, POD_NAMESPACE, RESERVED};
use serde_json::{Map, Value, json};

use crate::range::Range;

/// The mark of the operator's garbage collection on identities without a user.
pub const HEARTBEAT: &str = "io.cilium.heartbeat";

/// The facts of a CiliumIdentity besides its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterObject {
    /// When it was created: of several for one label set the oldest counts.
    pub created: Option<Time>,
    /// Whether the operator has marked it as unused.
    pub heartbeat: bool,
}

/// An identity of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterIdentity {
    /// The id.
    pub id: u32,
    /// Its labels.
    pub labels: LabelArray,
    /// The other facts of its object.
    pub object: ClusterObject,
}

/// Why a CiliumIdentity is no identity. Packets with its number have the labels that the agent knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Its name is no id.
    #[error("its name is no decimal number")]
    Name,
    /// Its id is of another cluster.
    #[error("its number is outside of {0}, the identities of this cluster")]
    Range(Range),
    /// It has no labels.
    #[error("it has no security-labels")]
    NoLabels,
    /// It has a label of the agent's own identities.
    #[error("it has the label {0}, which no workload has")]
    Reserved(Label),
}

impl ClusterIdentity {
    /// Reads an object: by its name, in the one form that agents write, and its labels.
    pub fn read(object: &CiliumIdentity, range: Range) -> Result<ClusterIdentity, Fault> {
        let id = number(&object.metadata.name).ok_or(Fault::Name)?;
        if !range.contains(id) {
            return Err(Fault::Range(range));
        }
        let labels: LabelArray =
            object.security_labels.iter().map(|(key, value)| label(key, value)).collect();
        if labels.is_empty() {
            return Err(Fault::NoLabels);
        }
        if let Some(label) = reserved_label(&labels) {
            return Err(Fault::Reserved(label.to_label()));
        }
        let created = object.metadata.creation_timestamp;
        let heartbeat = object.metadata.annotations.get(HEARTBEAT).is_some();
        Ok(ClusterIdentity { id, labels, object: ClusterObject { created, heartbeat } })
    }
}

/// Returns the label by which these are none of a workload: policy takes it for the host, the world, ..., and only the agent's
/// own identities have it.
pub fn reserved_label(labels: &LabelArray) -> Option<LabelRef<'_>> {
    labels.iter().find(|label| label.source == RESERVED && label.key != "init")
}

/// Returns the number of a name; none for other spellings of it, which would be a second object of one identity.
pub fn number(name: &str) -> Option<u32> {
    let id: u32 = name.parse().ok()?;
    (id.to_string() == name).then_some(id)
}

/// `k8s:app` and its value.
fn label(key: &str, value: &str) -> Label {
    let (source, key) = key.split_once(':').unwrap_or(("", key));
    let source = if source.is_empty() { labels::UNSPECIFIED } else { source };
    Label { key: key.to_owned(), value: value.to_owned(), source: source.to_owned() }
}

/// Returns the object of an identity, as Cilium writes it: with the namespace as its only label, for selectors.
pub fn manifest(labels: &LabelArray) -> Value {
    let namespace = labels.iter().find(|label| label.source == labels::K8S && label.key == POD_NAMESPACE);
    let namespace = namespace.map(|label| (POD_NAMESPACE.to_owned(), Value::from(label.value)));
    let all = labels.iter().map(|label| (format!("{}:{}", label.source, label.key), label.value.into()));
    json!({
        "metadata": {"labels": namespace.into_iter().collect::<Map<_, _>>()},
        "security-labels": all.collect::<Map<String, Value>>(),
    })
}
