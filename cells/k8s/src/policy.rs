//! Table `k8s-policies`.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use statedb::{Query, TableSpec, age};

use crate::field::decode;
use crate::{Refusal, meta};

/// Kinds of policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum PolicyKind {
    /// Of a namespace.
    #[default]
    CiliumNetworkPolicy,
    /// Of the whole cluster.
    CiliumClusterwideNetworkPolicy,
}

impl PolicyKind {
    /// The kind as manifests write it.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::CiliumNetworkPolicy => "CiliumNetworkPolicy",
            PolicyKind::CiliumClusterwideNetworkPolicy => "CiliumClusterwideNetworkPolicy",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A row of `k8s-policies`: a policy as it was written. Its rules are checked by those who apply them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyObject {
    /// The source: policies of one name from two sources are two policies, as in the original.
    pub source: Arc<str>,
    /// The kind.
    pub kind: PolicyKind,
    /// The namespace; empty for clusterwide ones.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// What tells it from an earlier policy of that name; empty if the source has no such thing.
    pub uid: Arc<str>,
    /// Where it was read: file and document.
    pub origin: String,
    /// The whole manifest, its namespace filled in.
    pub body: Arc<Value>,
    /// When the row was last written.
    #[serde(serialize_with = "crate::pod::time")]
    pub updated_at: Option<SystemTime>,
}

impl PolicyObject {
    /// Reads a manifest as far as it is no rule.
    pub fn decode(kind: PolicyKind, manifest: &Value) -> Result<PolicyObject, Refusal> {
        let namespaced = kind == PolicyKind::CiliumNetworkPolicy;
        let meta = decode(manifest, |manifest| {
            meta::check_type(manifest, "cilium.io/v2", kind.name());
            manifest.only(&["apiVersion", "kind", "metadata", "spec", "specs", "status"]);
            manifest.get("spec").object();
            manifest.get("specs").each(|spec| spec.object().is_some());
            if !manifest.get("spec").present() && !manifest.get("specs").present() {
                manifest.wrong("has neither spec nor specs; give one of them");
            }
            meta::read(manifest, namespaced, k8s_types::names::dns_subdomain)
        })?;
        let mut body = manifest.clone();
        body["apiVersion"] = "cilium.io/v2".into();
        body["kind"] = kind.name().into();
        if let Some(members) = body["metadata"].as_object_mut() {
            match namespaced {
                true => members.insert("namespace".into(), meta.namespace.clone().into()),
                false => members.remove("namespace"),
            };
        }
        Ok(PolicyObject {
            kind,
            namespace: meta.namespace.into(),
            name: meta.name.into(),
            uid: meta.uid.into(),
            body: Arc::new(body),
            ..PolicyObject::default()
        })
    }

    /// The policy of this source, kind and name.
    pub fn by_name(source: &str, kind: PolicyKind, namespace: &str, name: &str) -> Query<PolicyObject> {
        Query::primary(key(source, kind, namespace, name))
    }
}

fn key(source: &str, kind: PolicyKind, namespace: &str, name: &str) -> String {
    format!("{source}:{kind}/{namespace}/{name}")
}

impl TableSpec for PolicyObject {
    const NAME: &'static str = "k8s-policies";
    const PRIMARY: &'static str = "name";
    type Key<'a> = String;

    fn key(&self) -> String {
        key(&self.source, self.kind, &self.namespace, &self.name)
    }

    fn columns() -> &'static [&'static str] {
        &["Kind", "Namespace", "Name", "Source", "Origin", "Age"]
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.kind.to_string(),
            self.namespace.to_string(),
            self.name.to_string(),
            self.source.to_string(),
            self.origin.clone(),
            self.updated_at.map(age::since).unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_body_is_whole() {
        let manifest = json!({"metadata": {"name": "p"}, "spec": {"endpointSelector": {}, "anything": 1}});
        let policy = PolicyObject::decode(PolicyKind::CiliumNetworkPolicy, &manifest).unwrap();
        assert_eq!(policy.body["metadata"]["namespace"], "default");
        assert_eq!(policy.body["spec"], manifest["spec"]);
        let policy = PolicyObject::decode(
            PolicyKind::CiliumClusterwideNetworkPolicy,
            &json!({"metadata": {"name": "p", "namespace": "x"}, "specs": [{}]}),
        );
        let policy = policy.unwrap();
        assert_eq!((&*policy.namespace, policy.body["metadata"].get("namespace")), ("", None));
    }

    #[test]
    fn a_policy_without_rules_is_refused() {
        let decode = |manifest| {
            PolicyObject::decode(PolicyKind::CiliumNetworkPolicy, &manifest).unwrap_err().to_string()
        };
        assert_eq!(
            decode(json!({"metadata": {"name": "p"}})),
            "has neither spec nor specs; give one of them"
        );
        assert_eq!(
            decode(json!({"metadata": {"name": "p"}, "Spec": {}, "specs": [1]})),
            "Spec: is no field; did you mean spec?; specs[0]: expected an object, found 1"
        );
    }
}
