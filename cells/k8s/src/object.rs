//! Objects of all kinds that have tables, and their names.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::{DEFAULT_NAMESPACE, Namespace, Pod, PolicyKind, PolicyObject, Refusal};
use k8s_types::Manifest;

/// Kinds that have a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `Namespace`.
    Namespace,
    /// `Pod`.
    Pod,
    /// `CiliumNetworkPolicy` and `CiliumClusterwideNetworkPolicy`.
    Policy(PolicyKind),
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Namespace, Kind::Pod, Kind::POLICIES[0], Kind::POLICIES[1]];

    /// Those of policies.
    pub const POLICIES: [Kind; 2] = [
        Kind::Policy(PolicyKind::CiliumNetworkPolicy),
        Kind::Policy(PolicyKind::CiliumClusterwideNetworkPolicy),
    ];

    /// The kind as manifests write it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Namespace => "Namespace",
            Kind::Pod => "Pod",
            Kind::Policy(kind) => kind.name(),
        }
    }

    fn namespaced(self) -> bool {
        matches!(self, Kind::Pod | Kind::Policy(PolicyKind::CiliumNetworkPolicy))
    }

    /// The name of the object in a manifest, even if other things in it are wrong.
    pub(crate) fn key_of(self, manifest: &Value) -> Option<ObjectKey> {
        let meta = manifest.get("metadata")?;
        let namespace = match (self.namespaced(), meta.get("namespace")) {
            (false, _) => "",
            (true, None | Some(Value::Null)) => DEFAULT_NAMESPACE,
            (true, Some(namespace)) => namespace.as_str()?,
        };
        Some(ObjectKey { kind: self, namespace: namespace.into(), name: meta.get("name")?.as_str()?.into() })
    }

    /// Reads a manifest of this kind.
    pub(crate) fn decode(self, manifest: &Manifest<'_>) -> Result<Object, Refusal> {
        match self {
            Kind::Namespace => Namespace::decode(manifest.value).map(Object::Namespace),
            Kind::Pod => Pod::decode(manifest.value).map(Object::Pod),
            Kind::Policy(kind) => PolicyObject::decode(kind, manifest.value).map(Object::Policy),
        }
    }
}

/// The name of an object among all kinds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The kind.
    pub kind: Kind,
    /// The namespace; empty for kinds that are in none.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.is_empty() {
            true => write!(f, "{} {}", self.kind.name(), self.name),
            false => write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name),
        }
    }
}

/// An object that has a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A row of `k8s-namespaces`.
    Namespace(Namespace),
    /// A row of `k8s-pods`.
    Pod(Pod),
    /// A row of `k8s-policies`.
    Policy(PolicyObject),
}

impl Object {
    /// Its name.
    pub fn key(&self) -> ObjectKey {
        let (kind, namespace, name) = match self {
            Object::Namespace(namespace) => (Kind::Namespace, Arc::default(), &namespace.name),
            Object::Pod(pod) => (Kind::Pod, pod.namespace.clone(), &pod.name),
            Object::Policy(policy) => (Kind::Policy(policy.kind), policy.namespace.clone(), &policy.name),
        };
        ObjectKey { kind, namespace, name: name.clone() }
    }

    /// The same object, read there.
    #[must_use]
    pub fn from_origin(mut self, at: String) -> Object {
        match &mut self {
            Object::Namespace(Namespace { origin, .. })
            | Object::Pod(Pod { origin, .. })
            | Object::Policy(PolicyObject { origin, .. }) => *origin = at,
        }
        self
    }
}
