//! Writes of the agent's cells: its node, its endpoints, identities, annotations of its node. The test bodies are
//! generic over the server, so that they also run against a real one.

use std::sync::Arc;
use std::time::Duration;

use k8s_types::{Api, Key, Kind, Preconditions, SmolStr};
use k8s_writer::{Mutation, NotWritten, Step, Target, Writer};
use parking_lot::Mutex;
use serde_json::{Value, json};

// ---- The mutations.

/// Returns the mutation of the node's object: sets this agent's fields, keeps all others; 10 attempts, 500 ms apart.
pub(crate) fn node(addresses: Value, labels: Value) -> Mutation {
    Mutation::edit(move |node| {
        node["spec"]["addresses"] = addresses.clone();
        node["metadata"]["labels"] = labels.clone();
    })
    .tries(10, Duration::from_millis(500))
}

/// The pod of an endpoint.
#[derive(Clone)]
pub(crate) struct Pod {
    pub(crate) name: SmolStr,
    pub(crate) uid: SmolStr,
}

/// Returns the mutation of an endpoint: creates it, or replaces its status. `uid` is that of its object, if known. The
/// object of a previous pod with the same name is replaced.
pub(crate) fn endpoint(pod: Pod, uid: Option<SmolStr>, status: Value) -> Mutation {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid});
    let object = json!({"metadata": {"ownerReferences": [owner]}, "status": status});
    let first = match uid {
        Some(uid) => Step::replace_status(&uid, &status),
        None => Step::Create(object.clone()),
    };
    let decide = move |present: Option<&Value>| {
        let Some(present) = present else { return Step::Create(object.clone()) };
        let uid = present["metadata"]["uid"].as_str().unwrap_or_default();
        match present["metadata"]["ownerReferences"][0]["uid"] == pod.uid.as_str() {
            true if present["status"] == status => Step::Done,
            true => Step::replace_status(uid, &status),
            false => Step::Recreate { uid: uid.into(), object: object.clone() },
        }
    };
    Mutation::new(decide).at_first(first)
}

/// Returns the mutation of an identity with these labels. An object of the id with other labels is not changed.
pub(crate) fn identity(labels: Value, known: impl Fn() -> Option<Value> + Send + Sync + 'static) -> Mutation {
    let object = json!({
        "metadata": {"labels": {"io.kubernetes.pod.namespace": labels["k8s:io.kubernetes.pod.namespace"]}},
        "security-labels": labels,
    });
    let first = Step::Create(object.clone());
    let decide = move |present: Option<&Value>| match present {
        None => Step::Create(object.clone()),
        Some(present) if present["security-labels"] == labels => Step::Done,
        Some(_) => Step::GiveUp("the number belongs to other labels".into()),
    };
    Mutation::new(decide).read_from_cache(known).at_first(first)
}

/// Returns the mutation of an identity in use: removes the mark of its garbage collection.
pub(crate) fn identity_in_use(known: impl Fn() -> Option<Value> + Send + Sync + 'static) -> Mutation {
    let decide = |present: Option<&Value>| {
        let Some(present) = present else { return Step::GiveUp("the identity is gone".into()) };
        let mut object = present.clone();
        let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        match annotations.and_then(|annotations| annotations.remove("io.cilium.heartbeat")) {
            Some(_) => Step::Update(object),
            None => Step::Done,
        }
    };
    Mutation::new(decide).read_from_cache(known)
}

// ---- The test bodies: they check the server's objects by `api`, which is also the other client.

pub(crate) struct Stage {
    pub(crate) writer: Arc<Writer>,
    pub(crate) api: Arc<dyn Api>,
    pub(crate) namespace: SmolStr,
}

impl Stage {
    async fn get(&self, kind: Kind, key: &Key) -> Option<Value> {
        let object = self.api.get(kind, key).await.ok()?;
        Some(serde_json::from_slice(&object).unwrap())
    }

    async fn enqueue(&self, kind: Kind, key: &Key, mutation: Mutation) -> Option<SmolStr> {
        let target = Target::new(kind, key.clone());
        let written =
            tokio::time::timeout(Duration::from_secs(60), self.writer.enqueue(target, mutation).done());
        written.await.unwrap().unwrap().uid()
    }

    /// Changes an object as another client.
    async fn change_elsewhere(&self, kind: Kind, key: &Key, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(kind, key).await.unwrap();
        change(&mut object);
        self.api.update(kind, object.to_string().into()).await.unwrap();
    }

    async fn clean(&self, kind: Kind, key: &Key) {
        let _ = self.api.delete(kind, key, Preconditions::default()).await;
    }
}

pub(crate) async fn a_node_is_made_then_changed_and_the_fields_of_others_stay(stage: &Stage) {
    let key = Key::new("", "apiary-writer-n1");
    stage.clean(Kind::CiliumNode, &key).await;
    let address = |ip: &str| json!([{"type": "InternalIP", "ip": ip}]);
    stage.enqueue(Kind::CiliumNode, &key, node(address("10.0.0.1"), json!({"zone": "a"}))).await;
    let made = stage.get(Kind::CiliumNode, &key).await.unwrap();
    assert_eq!(
        (&made["spec"]["addresses"], &made["metadata"]["labels"]["zone"]),
        (&address("10.0.0.1"), &json!("a"))
    );

    stage
        .change_elsewhere(Kind::CiliumNode, &key, |node| {
            node["spec"]["ipam"] = json!({"podCIDRs": ["10.1.0.0/24"]})
        })
        .await;
    stage.enqueue(Kind::CiliumNode, &key, node(address("10.0.0.2"), json!({"zone": "a"}))).await;
    let changed = stage.get(Kind::CiliumNode, &key).await.unwrap();
    assert_eq!(changed["spec"]["addresses"], address("10.0.0.2"));
    assert_eq!(changed["spec"]["ipam"]["podCIDRs"], json!(["10.1.0.0/24"]));
    assert_eq!(changed["metadata"]["uid"], made["metadata"]["uid"]);

    stage.enqueue(Kind::CiliumNode, &key, node(address("10.0.0.2"), json!({"zone": "a"}))).await;
    let same = stage.get(Kind::CiliumNode, &key).await.unwrap();
    assert_eq!(
        same["metadata"]["resourceVersion"], changed["metadata"]["resourceVersion"],
        "nothing is written"
    );

    let used = Mutation::edit_status(|node| {
        node["status"]["ipam"] = json!({"used": {"10.1.0.5": {"owner": "shop/web-0"}}})
    });
    stage.enqueue(Kind::CiliumNode, &key, used).await;
    let ended = stage.get(Kind::CiliumNode, &key).await.unwrap();
    assert_eq!(ended["status"]["ipam"]["used"]["10.1.0.5"]["owner"], "shop/web-0");
    assert_eq!(ended["spec"], changed["spec"]);
    stage.clean(Kind::CiliumNode, &key).await;
}

pub(crate) async fn an_endpoint_is_made_patched_and_deleted_by_its_uid(stage: &Stage) {
    let key = Key::new(stage.namespace.clone(), "web-0");
    let kind = Kind::CiliumEndpoint;
    stage.clean(kind, &key).await;
    let pod = |uid: &str| Pod { name: "web-0".into(), uid: uid.into() };
    let status = |state: &str| json!({"id": 17, "state": state});
    let uid = stage.enqueue(kind, &key, endpoint(pod("pod-1"), None, status("not-ready"))).await.unwrap();
    stage.change_elsewhere(kind, &key, |object| object["metadata"]["labels"] = json!({"app": "web"})).await;

    stage.enqueue(kind, &key, endpoint(pod("pod-1"), Some(uid.clone()), status("ready"))).await;
    let present = stage.get(kind, &key).await.unwrap();
    assert_eq!(
        (&present["status"], &present["metadata"]["labels"]["app"]),
        (&status("ready"), &json!("web"))
    );
    assert_eq!(present["metadata"]["uid"], uid.as_str());

    // The object has another uid than the known one: it is read, and its status replaced.
    stage.enqueue(kind, &key, endpoint(pod("pod-1"), Some("another".into()), status("restoring"))).await;
    assert_eq!(stage.get(kind, &key).await.unwrap()["status"], status("restoring"));

    // The object was deleted: it is created again.
    stage.clean(kind, &key).await;
    let again =
        stage.enqueue(kind, &key, endpoint(pod("pod-1"), Some(uid.clone()), status("ready"))).await.unwrap();
    assert_ne!(again, uid);

    // A new pod with the same name.
    let new = stage.enqueue(kind, &key, endpoint(pod("pod-2"), None, status("ready"))).await.unwrap();
    assert_ne!(new, again);
    assert_eq!(stage.get(kind, &key).await.unwrap()["metadata"]["ownerReferences"][0]["uid"], "pod-2");

    // The deletion of the previous pod does not delete the object of the new one.
    stage.enqueue(kind, &key, Mutation::delete(Some(again))).await;
    assert_eq!(stage.get(kind, &key).await.unwrap()["metadata"]["uid"], new.as_str());
    stage.enqueue(kind, &key, Mutation::delete(Some(new.clone()))).await;
    assert_eq!(stage.get(kind, &key).await, None);
    stage.enqueue(kind, &key, Mutation::delete(Some(new))).await;
}

pub(crate) async fn an_identity_is_made_once_and_kept_from_collection(stage: &Stage) {
    let (kind, key) = (Kind::CiliumIdentity, Key::new("", "51966"));
    stage.clean(kind, &key).await;
    let cache: Arc<Mutex<Option<Value>>> = Arc::default();
    let known = || {
        let cache = cache.clone();
        move || cache.lock().clone()
    };
    let labels = |app: &str| json!({"k8s:app": app, "k8s:io.kubernetes.pod.namespace": "shop"});
    stage.enqueue(kind, &key, identity(labels("web"), known())).await;
    let made = stage.get(kind, &key).await.unwrap();
    assert_eq!(made["security-labels"], labels("web"));
    assert_eq!(made["metadata"]["labels"], json!({"io.kubernetes.pod.namespace": "shop"}));

    // The watch has reported an object of the id: with these labels, with others.
    *cache.lock() = Some(made);
    stage.enqueue(kind, &key, identity(labels("web"), known())).await;
    let other =
        stage.writer.enqueue(Target::new(kind, key.clone()), identity(labels("db"), known())).done().await;
    assert!(matches!(&other, Err(NotWritten::GaveUp { .. })), "{other:?}");
    assert_eq!(stage.get(kind, &key).await.unwrap()["security-labels"], labels("web"));

    stage
        .change_elsewhere(kind, &key, |object| {
            object["metadata"]["annotations"] =
                json!({"io.cilium.heartbeat": "2026-01-01T00:00:00Z", "kept": "yes"});
        })
        .await;
    *cache.lock() = stage.get(kind, &key).await;
    stage.enqueue(kind, &key, identity_in_use(known())).await;
    let kept = stage.get(kind, &key).await.unwrap();
    assert_eq!(kept["metadata"]["annotations"], json!({"kept": "yes"}));
    assert_eq!(kept["security-labels"], labels("web"));
    stage.clean(kind, &key).await;
}

pub(crate) async fn annotations_of_a_node_are_merged(stage: &Stage) {
    let (kind, key) = (Kind::Node, Key::new("", "apiary-writer-n2"));
    stage.clean(kind, &key).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": key.name, "annotations": {"kept": "yes"}}});
    stage.api.create(kind, node.to_string().into()).await.unwrap();
    let annotations =
        json!({"metadata": {"annotations": {"network.cilium.io/ipv4-pod-cidr": "10.1.0.0/24"}}});
    let patch = k8s_types::Patch::Strategic(annotations.to_string().into());
    stage.enqueue(kind, &key, Mutation::request(Step::Patch { patch, status: true })).await;
    let present = stage.get(kind, &key).await.unwrap();
    assert_eq!(
        present["metadata"]["annotations"],
        json!({"kept": "yes", "network.cilium.io/ipv4-pod-cidr": "10.1.0.0/24"})
    );
    stage.clean(kind, &key).await;
}
