//! The desired CiliumEndpoint of an endpoint: a pure function of its row and of its pod.

use std::net::IpAddr;

use endpoints::{Endpoint, EndpointId, State};
use k8s_tables::Key;
use k8s_tables::core::Pod;
use k8s_types::cilium::{
    AddressPair, CiliumEndpoint, EndpointIdentifiers, EndpointIdentity, EndpointNetworking, EndpointStatus,
    NamedPort,
};
use k8s_types::{OwnerReference, SmolStr, StringMap};
use k8s_writer::Step;
use serde_json::{Map, Value, json};

/// The property with the object's name, which Cilium stores in the records of endpoints.
const NAME_PROPERTY: &str = "cep-name";

/// The protocols of named ports.
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// The fields that this agent owns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Desired {
    /// The endpoint.
    pub(crate) endpoint: EndpointId,
    /// Its pod, which owns the object.
    pub(crate) pod_name: SmolStr,
    pub(crate) pod_uid: SmolStr,
    /// The uid of the object by the endpoint's record; empty if none is stored.
    pub(crate) stored_uid: SmolStr,
    /// Whether the pod runs on this node by its object: an object of its name is adopted then.
    pub(crate) may_adopt: bool,
    pub(crate) labels: StringMap,
    pub(crate) status: EndpointStatus,
}

/// Returns the name of the endpoint's object; none if it has none: the host, the health endpoint, and others without a pod.
pub(crate) fn key(endpoint: &Endpoint) -> Option<Key> {
    let record = &endpoint.record;
    if record.k8s_pod_name.is_empty() || record.is_host() || record.is_health() {
        return None;
    }
    let property = record.properties.get(NAME_PROPERTY).and_then(Value::as_str);
    let name = match property.filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        // The pod's first interface has the name of the pod.
        None if record.disable_legacy_identifiers => {
            format!("{}-{}", record.k8s_pod_name, record.container_if_name)
        }
        None => record.k8s_pod_name.clone(),
    };
    Some(Key::new(record.k8s_namespace.as_str(), name))
}

impl Desired {
    /// Returns the object of an endpoint with its pod, on a node with an address; none before it has an identity.
    /// `is_here`: whether the pod runs on this node by its object.
    pub(crate) fn new(endpoint: &Endpoint, pod: &Pod, node: IpAddr, is_here: bool) -> Option<Desired> {
        let record = &*endpoint.record;
        let identity = record.sec_label.as_ref().filter(|label| label.id != 0)?;
        let mut labels: Vec<SmolStr> = identity.labels.texts().into_iter().map(SmolStr::from).collect();
        labels.sort_unstable();
        let address = |address: Option<IpAddr>| address.map(|ip| ip.to_string().into()).unwrap_or_default();
        let pair = AddressPair {
            ipv4: address(record.ipv4.map(Into::into)),
            ipv6: address(record.ipv6.map(Into::into)),
        };
        let named_ports = endpoint.named_ports.iter().filter_map(|(name, protocol, port)| {
            let protocol =
                PROTOCOLS.into_iter().find(|name| labels::port_protocol(name) == Some(protocol))?;
            Some(NamedPort { name: name.into(), port, protocol: protocol.into() })
        });
        let status = EndpointStatus {
            id: record.id.into(),
            external_identifiers: Some(Box::new(EndpointIdentifiers {
                cni_attachment_id: record.cni_attachment_id().into(),
                container_id: record.container_id.as_str().into(),
                k8s_namespace: record.k8s_namespace.as_str().into(),
                k8s_pod_name: record.k8s_pod_name.as_str().into(),
                pod_name: record.pod_name().into(),
                ..EndpointIdentifiers::default()
            })),
            identity: Some(EndpointIdentity { id: identity.id.into(), labels }),
            networking: Some(EndpointNetworking {
                addressing: [pair].into(),
                node_ip: node.to_string().into(),
            }),
            named_ports: named_ports.collect(),
            service_account: pod.spec.service_account_name.clone(),
            state: state(endpoint.state).into(),
            ..EndpointStatus::default()
        };
        Some(Desired {
            endpoint: endpoint.id(),
            pod_name: record.k8s_pod_name.as_str().into(),
            pod_uid: pod.metadata.uid.clone(),
            stored_uid: record.cilium_endpoint_uid.as_str().into(),
            may_adopt: is_here,
            labels: pod.metadata.labels.clone(),
            status,
        })
    }

    /// Whether the statuses differ only in the endpoint's state.
    pub(crate) fn differs_in_state_alone(&self, other: &Desired) -> bool {
        let status = EndpointStatus { state: other.status.state.clone(), ..self.status.clone() };
        self.labels == other.labels && self.status != other.status && status == other.status
    }

    /// Returns the fields in which an object differs.
    pub(crate) fn differences(&self, object: &CiliumEndpoint) -> Vec<&'static str> {
        let owners = &object.metadata.owner_references;
        let fields = [
            ("/metadata/ownerReferences", !owners.iter().any(|owner| self.is_owner(owner))),
            ("/metadata/labels", object.metadata.labels != self.labels),
            ("/status", object.status != self.status),
        ];
        fields.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field).collect()
    }

    fn is_owner(&self, owner: &OwnerReference) -> bool {
        owner.kind == "Pod" && owner.uid == self.pod_uid
    }

    /// Whether the object with this uid is this endpoint's, or becomes so.
    pub(crate) fn owns(&self, uid: &str) -> bool {
        self.may_adopt || !self.stored_uid.is_empty() && self.stored_uid == uid
    }

    fn owner(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "name": self.pod_name, "uid": self.pod_uid})
    }

    fn status_json(&self) -> Value {
        serde_json::to_value(&self.status).unwrap_or_default()
    }

    fn labels_json(&self) -> Value {
        serde_json::to_value(&self.labels).unwrap_or_default()
    }

    /// Returns the object to create.
    pub(crate) fn object(&self) -> Value {
        let mut metadata = Map::new();
        if !self.labels.is_empty() {
            metadata.insert("labels".into(), self.labels_json());
        }
        metadata.insert("ownerReferences".into(), json!([self.owner()]));
        json!({"metadata": metadata, "status": self.status_json()})
    }

    /// Returns the patch of the object with exactly this uid. Labels are added, which replaces present ones: a server
    /// refuses to replace a member that is missing.
    pub(crate) fn patch(&self, uid: &str, status: bool, labels: bool) -> Step {
        let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": uid})];
        if status {
            operations.push(json!({"op": "replace", "path": "/status", "value": self.status_json()}));
        }
        if labels {
            operations.push(json!({"op": "add", "path": "/metadata/labels", "value": self.labels_json()}));
        }
        Step::json_patch(&Value::Array(operations))
    }

    /// Returns the next step to make the server's object as desired.
    pub(crate) fn step(&self, present: Option<&Value>) -> Step {
        let Some(present) = present else { return Step::Create(self.object()) };
        let uid = present["metadata"]["uid"].as_str().unwrap_or_default();
        if !self.owns(uid) {
            return Step::GiveUp(format!(
                "the object has uid {uid}, which is not that of endpoint {}, and by its status.hostIP its pod is not on \
                 this node; delete it if nothing else needs it",
                self.endpoint
            ));
        }
        let owners = present["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let is_owned = |owner: &Value| owner["kind"] == "Pod" && owner["uid"] == self.pod_uid.as_str();
        // The object of a former pod of this name: it goes with its owner.
        if !owners.into_iter().any(is_owned) {
            return Step::Recreate { uid: uid.into(), object: self.object() };
        }
        let labels = match &present["metadata"]["labels"] {
            Value::Null => !self.labels.is_empty(),
            labels => *labels != self.labels_json(),
        };
        match (present["status"] != self.status_json(), labels) {
            (false, false) => Step::Done,
            (status, labels) => self.patch(uid, status, labels),
        }
    }
}

/// Returns the step to delete an object if a pod owns it, and no other pod of the name.
pub(crate) fn delete_owned(pod_uid: &str, present: Option<&Value>) -> Step {
    let Some(present) = present else { return Step::Done };
    let owners = present["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    match owners.into_iter().any(|owner| owner["uid"] == pod_uid) {
        true => Step::delete(present["metadata"]["uid"].as_str().unwrap_or_default()),
        false => Step::Done,
    }
}

/// Returns the reported state: regenerations are not reported, since each would be a write to all nodes of the cluster.
fn state(state: State) -> &'static str {
    match state {
        State::Restoring
        | State::WaitingToRegenerate
        | State::Regenerating
        | State::Ready
        | State::Disconnecting
        | State::Disconnected => State::Ready.name(),
        State::WaitingForIdentity | State::Invalid => state.name(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::SystemTime;

    use endpoints::{Record, SecurityLabel};
    use labels::Labels;

    use super::*;

    /// The endpoint of the pod `default/p1`, as the recorded agent had it.
    pub(crate) fn endpoint(id: u16) -> Endpoint {
        let labels = Labels::parse([
            "k8s:app=p1",
            "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=default",
            "k8s:io.cilium.k8s.policy.cluster=default",
            "k8s:io.kubernetes.pod.namespace=default",
            "gen:io.cilium.k8s.named-ports=http.TCP.8080",
        ]);
        let record = Record {
            id,
            container_id: "cid-p1".into(),
            container_if_name: "eth0".into(),
            k8s_pod_name: "p1".into(),
            k8s_namespace: "default".into(),
            k8s_uid: "pod-1".into(),
            ipv4: Some([10, 244, 0, 2].into()),
            sec_label: Some(SecurityLabel { id: 6126, labels }),
            ..Record::default()
        };
        let named_ports = [("http", 6, 8080)].into_iter().collect();
        let created = Endpoint::created(record, SystemTime::UNIX_EPOCH);
        Endpoint { state: State::Ready, named_ports, ..created }
    }

    pub(crate) fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = "default".into();
        pod.metadata.name = "p1".into();
        pod.metadata.uid = "pod-1".into();
        pod.metadata.labels = [("app", "p1")].into_iter().collect();
        pod.status.host_ip = "10.99.0.1".into();
        pod
    }

    pub(crate) fn desired(endpoint: &Endpoint) -> Desired {
        Desired::new(endpoint, &pod(), [10, 99, 0, 1].into(), true).unwrap()
    }

    fn with_record(endpoint: &Endpoint, change: impl FnOnce(&mut Record)) -> Endpoint {
        let mut record = (*endpoint.record).clone();
        change(&mut record);
        endpoint.with_record(record)
    }

    /// As recorded from Cilium 1.20.
    #[test]
    fn the_object_has_the_shape_of_cilium() {
        let expected = json!({
            "metadata": {
                "labels": {"app": "p1"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p1", "uid": "pod-1"}],
            },
            "status": {
                "encryption": {},
                "external-identifiers": {
                    "cni-attachment-id": "cid-p1:eth0", "container-id": "cid-p1", "k8s-namespace": "default",
                    "k8s-pod-name": "p1", "pod-name": "default/p1",
                },
                "id": 1772,
                "identity": {"id": 6126, "labels": [
                    "gen:io.cilium.k8s.named-ports=http.TCP.8080",
                    "k8s:app=p1",
                    "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=default",
                    "k8s:io.cilium.k8s.policy.cluster=default",
                    "k8s:io.kubernetes.pod.namespace=default",
                ]},
                "named-ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "networking": {"addressing": [{"ipv4": "10.244.0.2"}], "node": "10.99.0.1"},
                "state": "ready",
            },
        });
        assert_eq!(desired(&endpoint(1772)).object(), expected);
        let mut with_account = pod();
        with_account.spec.service_account_name = "web".into();
        with_account.metadata.labels = StringMap::default();
        let both = with_record(&endpoint(1772), |record| record.ipv6 = Some("fd00::2".parse().unwrap()));
        let object = Desired::new(&both, &with_account, [10, 99, 0, 1].into(), true).unwrap().object();
        assert_eq!(object["status"]["service-account"], "web");
        assert_eq!(
            object["status"]["networking"]["addressing"],
            json!([{"ipv4": "10.244.0.2", "ipv6": "fd00::2"}])
        );
        assert!(object["metadata"].get("labels").is_none(), "{object}");
    }

    #[test]
    fn regenerations_are_not_reported_and_an_endpoint_without_identity_has_no_object() {
        use State::*;
        for state in [Restoring, WaitingToRegenerate, Regenerating, Ready, Disconnecting, Disconnected] {
            assert_eq!(desired(&Endpoint { state, ..endpoint(7) }).status.state, "ready", "{state}");
        }
        let waiting = Endpoint { state: WaitingForIdentity, ..endpoint(7) };
        assert_eq!(desired(&waiting).status.state, "waiting-for-identity");
        assert!(desired(&waiting).differs_in_state_alone(&desired(&endpoint(7))));
        assert!(!desired(&endpoint(8)).differs_in_state_alone(&desired(&endpoint(7))));
        let unidentified = with_record(&endpoint(7), |record| record.sec_label = None);
        assert!(Desired::new(&unidentified, &pod(), [10, 99, 0, 1].into(), true).is_none());
    }

    #[test]
    fn objects_are_named_after_the_pod_its_interface_or_the_property() {
        let key =
            |change: fn(&mut Record)| key(&with_record(&endpoint(7), change)).map(|key| key.to_string());
        assert_eq!(key(|_| ()).as_deref(), Some("default/p1"));
        assert_eq!(key(|r| r.disable_legacy_identifiers = true).as_deref(), Some("default/p1-eth0"));
        let named = key(|r| drop(r.properties.insert(NAME_PROPERTY.into(), "other".into())));
        assert_eq!(named.as_deref(), Some("default/other"));
        assert_eq!(key(|record| record.k8s_pod_name.clear()), None);
        let health = |record: &mut Record| {
            record.op_labels.orchestration_identity = Labels::parse(["reserved:health"]);
        };
        assert_eq!(key(health), None);
    }

    #[test]
    fn an_object_is_created_adopted_patched_recreated_or_left() {
        let desired = desired(&endpoint(7));
        assert_eq!(desired.step(None), Step::Create(desired.object()));
        let mut present = desired.object();
        present["metadata"]["uid"] = "u-1".into();
        assert_eq!(desired.step(Some(&present)), Step::Done);

        let mut edited = present.clone();
        edited["status"]["identity"]["id"] = 7.into();
        assert_eq!(desired.step(Some(&edited)), desired.patch("u-1", true, false));
        edited["status"] = present["status"].clone();
        edited["metadata"]["labels"] = json!({"app": "other"});
        assert_eq!(desired.step(Some(&edited)), desired.patch("u-1", false, true));

        let mut former = present.clone();
        former["metadata"]["ownerReferences"][0]["uid"] = "pod-0".into();
        let recreate = Step::Recreate { uid: "u-1".into(), object: desired.object() };
        assert_eq!(desired.step(Some(&former)), recreate, "of a former pod of the name");
        assert_eq!(delete_owned("pod-1", Some(&former)), Step::Done, "of another pod");
        assert_eq!(delete_owned("pod-1", Some(&present)), Step::delete("u-1"));
        assert_eq!(delete_owned("pod-1", None), Step::Done);

        let elsewhere = Desired { may_adopt: false, ..desired.clone() };
        let Step::GiveUp(reason) = elsewhere.step(Some(&present)) else { panic!("it was taken") };
        assert!(reason.starts_with("the object has uid u-1, which is not that of endpoint 7"), "{reason}");
        let stored = Desired { stored_uid: "u-1".into(), ..elsewhere };
        assert_eq!(stored.step(Some(&present)), Step::Done, "the record has its uid");
    }
}
