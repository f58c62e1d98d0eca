//! Table `k8s-ciliumendpoints`.

use hive::Param;
use hive::prelude::*;
use k8s_tables::{Pool, Projected, Projection};
use k8s_types::cilium::{CiliumEndpoint, CoreCiliumEndpoint};
use k8s_types::{Kind, ObjectMeta, SmolStr};
use serde::Serialize;

use crate::Uid;

/// A row of the table `k8s-ciliumendpoints`.
pub type EndpointRow = Projected<Endpoint>;

/// Provides the table of CiliumEndpoints. A function returns whether they are put into slices, for its dependency of the hive;
/// otherwise the table does not have the fields for these.
pub fn endpoints<P: Param>(are_sliced: impl Fn(P) -> bool + Send + Sync + 'static) -> Cell {
    k8s_tables::projected::<Endpoint, P>(move |options| match are_sliced(options) {
        true => |_| (),
        false => |endpoint| endpoint.core = None,
    })
}

/// The fields of a CiliumEndpoint that cells of the operator read.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The namespace.
    pub namespace: SmolStr,
    /// The name.
    pub name: SmolStr,
    /// Distinguishes it from earlier endpoints of the name.
    pub uid: Uid,
    /// The object whose end is its own.
    pub owner: Owner,
    /// The id of its identity.
    pub identity: Option<i64>,
    /// Its fields in a slice; none without addresses or identity, and without slices.
    pub core: Option<Box<CoreCiliumEndpoint>>,
}

/// The object whose end is that of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Owner {
    /// The pod of its name, as an owner or because it has none.
    PodOfName,
    /// A pod of another name.
    Pod(Box<str>),
    /// None that is a pod.
    Other,
}

impl Owner {
    fn of(metadata: &ObjectMeta) -> Owner {
        let owners = &metadata.owner_references;
        match owners.iter().find(|owner| owner.kind == Kind::Pod.name()) {
            Some(owner) if owner.name != metadata.name => Owner::Pod(owner.name.as_str().into()),
            None if !owners.is_empty() => Owner::Other,
            Some(_) | None => Owner::PodOfName,
        }
    }
}

impl Endpoint {
    /// Returns the name of its pod; `None` if it has only owners of other kinds.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        match &self.owner {
            Owner::PodOfName => Some(&self.name),
            Owner::Pod(name) => Some(name),
            Owner::Other => None,
        }
    }
}

impl From<CiliumEndpoint> for Endpoint {
    fn from(endpoint: CiliumEndpoint) -> Endpoint {
        let CiliumEndpoint { metadata, status } = endpoint;
        let identity = status.identity.map(|identity| identity.id);
        let pod = metadata.owner_references.iter().find(|owner| owner.kind == Kind::Pod.name());
        let core = identity.zip(status.networking).map(|(identity_id, networking)| {
            Box::new(CoreCiliumEndpoint {
                name: metadata.name.clone(),
                identity_id,
                pod_uid: pod.map(|pod| pod.uid.clone()).unwrap_or_default(),
                networking: Some(networking),
                encryption: status.encryption,
                named_ports: status.named_ports,
                service_account: status.service_account,
            })
        });
        Endpoint {
            owner: Owner::of(&metadata),
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid.into(),
            identity,
            core,
        }
    }
}

impl Projection for Endpoint {
    type Object = CiliumEndpoint;

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn columns() -> &'static [&'static str] {
        &["Name", "UID", "Identity", "Pod"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            format!("{}/{}", self.namespace, self.name),
            self.uid.to_string(),
            self.identity.map(|id| id.to_string()).unwrap_or_default(),
            self.pod().unwrap_or_default().to_owned(),
        ]
    }

    fn share(&mut self, pool: &mut Pool) {
        pool.text(&mut self.namespace);
        if let Some(core) = &mut self.core {
            if let Some(networking) = &mut core.networking {
                pool.text(&mut networking.node_ip);
            }
            pool.text(&mut core.service_account);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn endpoint(metadata: &Value, status: &Value) -> Endpoint {
        let mut object = json!({"metadata": metadata, "status": status});
        (object["metadata"]["namespace"], object["metadata"]["name"]) = ("shop".into(), "web".into());
        k8s_types::decode::<CiliumEndpoint>(object.to_string().as_bytes()).unwrap().into()
    }

    #[test]
    fn the_pod_of_an_endpoint_is_its_owner_or_has_its_name() {
        let of = |owners: &[(&str, &str)]| {
            let owner = |(kind, name): &(&str, &str)| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"});
            let owners: Vec<Value> = owners.iter().map(owner).collect();
            endpoint(&json!({"ownerReferences": owners}), &json!({})).pod().map(str::to_owned)
        };
        assert_eq!(of(&[]).as_deref(), Some("web"));
        assert_eq!(of(&[("Pod", "web")]).as_deref(), Some("web"));
        assert_eq!(of(&[("ServiceAccount", "a"), ("Pod", "db"), ("Pod", "web")]).as_deref(), Some("db"));
        assert_eq!(of(&[("ServiceAccount", "web")]), None);
    }

    #[test]
    fn an_endpoint_with_identity_and_addresses_has_the_fields_of_a_slice() {
        let metadata = json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "of-the-pod"}]});
        let status = json!({
            "identity": {"id": 300, "labels": ["k8s:app=web"]}, "networking": {"addressing": [{"ipv4": "10.0.0.7"}], "node": "192.0.2.1"},
            "encryption": {"key": 3}, "service-account": "cook", "named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        });
        let core = endpoint(&metadata, &status).core.unwrap();
        assert_eq!(
            json!(core),
            json!({
                "name": "web", "id": 300, "pod-uid": "of-the-pod", "encryption": {"key": 3}, "service-account": "cook",
                "networking": {"addressing": [{"ipv4": "10.0.0.7"}], "node": "192.0.2.1"},
                "named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
            })
        );
        for missing in ["identity", "networking"] {
            let mut status = status.clone();
            status[missing] = Value::Null;
            let endpoint = endpoint(&metadata, &status);
            assert_eq!((endpoint.core, endpoint.identity), (None, (missing != "identity").then_some(300)));
        }
    }
}
