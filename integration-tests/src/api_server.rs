//! The behaviour of an API server on which cells may rely: one body of assertions for every implementation.
//!
//! It runs against the tracker and against a real kube-apiserver, so that nothing of Kubernetes is believed because the
//! tracker does it.

mod mirror;

use std::sync::Arc;

use bytes::Bytes;
use k8s_types::{Api, ApiError, Key, Kind, Patch, Preconditions, Selection, Source};
use serde_json::{Value, json};

use mirror::Mirror;

/// An API server with an empty namespace.
#[derive(Clone)]
pub struct ApiServer {
    /// Watches.
    pub source: Arc<dyn Source>,
    /// Requests.
    pub api: Arc<dyn Api>,
    /// The namespace, which no other test uses; names of objects that are in none begin with it.
    pub namespace: String,
}

impl ApiServer {
    /// Runs all assertions below, except those that need a disturbance.
    pub async fn is_one(&self) {
        self.objects_are_made_once().await;
        self.updates_need_the_version_they_name().await;
        self.patches_apply_whole_or_not_at_all().await;
        self.deletions_have_preconditions().await;
        self.a_status_has_requests_of_its_own().await;
        self.kinds_have_rules_of_their_own().await;
        self.watches_tell_everything_in_order().await;
        self.watches_select_by_fields().await;
    }

    async fn objects_are_made_once(&self) {
        let key = self.key("made");
        let absent = self.api.get(Kind::ConfigMap, &key).await.unwrap_err();
        says(absent, &ApiError::NotFound("configmaps \"made\" not found".to_owned()));

        let made = self.create(Kind::ConfigMap, self.config_map("made", "1")).await;
        assert!(!text(&made, "/metadata/uid").is_empty() && !version(&made).is_empty(), "{made}");
        assert_eq!((text(&made, "/kind"), text(&made, "/apiVersion")), ("ConfigMap", "v1"));
        let found = self.get(Kind::ConfigMap, "made").await;
        assert_eq!(found, made);

        let again = self.api.create(Kind::ConfigMap, bytes(&self.config_map("made", "2"))).await.unwrap_err();
        says(again, &ApiError::AlreadyExists("configmaps \"made\" already exists".to_owned()));
        let mut old = self.config_map("other", "1");
        old["metadata"]["resourceVersion"] = version(&made).into();
        let refused = self.api.create(Kind::ConfigMap, bytes(&old)).await.unwrap_err();
        // Servers call it a failure of their own (500).
        let why = "resourceVersion should not be set on objects to be created".to_owned();
        says(refused, &ApiError::Unavailable { message: why, retry_after: None });

        self.delete("made").await;
        let second = self.create(Kind::ConfigMap, self.config_map("made", "3")).await;
        assert_ne!(text(&second, "/metadata/uid"), text(&made, "/metadata/uid"));
    }

    async fn updates_need_the_version_they_name(&self) {
        let absent =
            self.api.update(Kind::ConfigMap, bytes(&self.config_map("updated", "0"))).await.unwrap_err();
        says(absent, &ApiError::NotFound("configmaps \"updated\" not found".to_owned()));
        let first = self.create(Kind::ConfigMap, self.config_map("updated", "1")).await;
        let mut change = first.clone();
        change["data"]["value"] = "2".into();
        let second = self.update(Kind::ConfigMap, &change).await.unwrap();
        assert_eq!(text(&second, "/metadata/uid"), text(&first, "/metadata/uid"));
        assert_ne!(version(&second), version(&first));

        let stale = self.update(Kind::ConfigMap, &change).await.unwrap_err();
        let why = "Operation cannot be fulfilled on configmaps \"updated\": the object has been modified; please apply \
                   your changes to the latest version and try again";
        says(stale, &ApiError::Conflict(why.to_owned()));
        assert_eq!(self.get(Kind::ConfigMap, "updated").await, second, "nothing of it was taken");

        let third = self.update(Kind::ConfigMap, &self.config_map("updated", "3")).await.unwrap();
        assert_eq!(text(&third, "/data/value"), "3", "one that names no version replaces any");
        assert_eq!(text(&third, "/metadata/uid"), text(&first, "/metadata/uid"));
        let same = self.update(Kind::ConfigMap, &third).await.unwrap();
        assert_eq!(version(&same), version(&third), "what changes nothing makes no version");

        let mut other = self.config_map("updated", "4");
        other["metadata"]["uid"] = "00000000-1111-4222-8333-444444444444".into();
        let refused = self.update(Kind::ConfigMap, &other).await.unwrap_err();
        assert!(
            matches!(&refused, ApiError::Conflict(why) if why.contains("UID in precondition")),
            "{refused:?}"
        );
    }

    async fn patches_apply_whole_or_not_at_all(&self) {
        let mut object = self.config_map("patched", "1");
        object["metadata"]["annotations"] = json!({"x": "1", "y": "2"});
        let first = self.create(Kind::ConfigMap, object).await;
        let patch = |patch| self.patch(Kind::ConfigMap, "patched", false, patch);

        let operations = |expected: &str| {
            let test = json!({"op": "test", "path": "/data/value", "value": expected});
            let replace = json!({"op": "replace", "path": "/data/value", "value": "2"});
            let add = json!({"op": "add", "path": "/data/more", "value": "m"});
            Patch::Json(bytes(&json!([replace, add, test])))
        };
        let failed = patch(operations("1")).await.unwrap_err();
        assert!(matches!(failed, ApiError::Conflict(_)), "{failed:?}");
        assert_eq!(self.get(Kind::ConfigMap, "patched").await, first, "nothing of it was taken");
        let second = patch(operations("2")).await.unwrap();
        assert_eq!(second["data"], json!({"value": "2", "more": "m"}));

        let merge = json!({"metadata": {"annotations": {"x": null, "z": "3"}}, "data": {"more": null}});
        let merged = patch(Patch::Merge(bytes(&merge))).await.unwrap();
        assert_eq!(merged["metadata"]["annotations"], json!({"y": "2", "z": "3"}));
        assert_eq!(merged["data"], json!({"value": "2"}));
        let strategic = json!({"metadata": {"annotations": {"y": null, "z": "4"}}});
        let merged = patch(Patch::Strategic(bytes(&strategic))).await.unwrap();
        assert_eq!(merged["metadata"]["annotations"], json!({"z": "4"}));

        let stale = json!({"metadata": {"resourceVersion": version(&first)}, "data": {"value": "9"}});
        let refused = patch(Patch::Merge(bytes(&stale))).await.unwrap_err();
        assert!(
            matches!(&refused, ApiError::Conflict(why) if why.contains("has been modified")),
            "{refused:?}"
        );
        let broken = patch(Patch::Json(Bytes::from_static(b"{"))).await.unwrap_err();
        assert!(matches!(broken, ApiError::Invalid(_)), "{broken:?}");
        let absent =
            self.patch(Kind::ConfigMap, "absent", false, Patch::Merge(bytes(&merge))).await.unwrap_err();
        says(absent, &ApiError::NotFound("configmaps \"absent\" not found".to_owned()));
    }

    async fn deletions_have_preconditions(&self) {
        let key = self.key("deleted");
        let delete = |only_if| self.api.delete(Kind::ConfigMap, &key, only_if);
        let object = self.create(Kind::ConfigMap, self.config_map("deleted", "1")).await;
        let uid = |uid: &str| Preconditions { uid: Some(uid.into()), resource_version: None };
        let at = |version: &str| Preconditions { uid: None, resource_version: Some(version.into()) };
        let (other, own) = ("00000000-1111-4222-8333-444444444444", text(&object, "/metadata/uid"));
        let now = version(&object);
        let recreated =
            format!("the UID in record ({own}). The object might have been deleted and then recreated");
        let modified = format!("the ResourceVersion in record ({now}). The object might have been modified");
        for (wrong, why) in [(uid(other), recreated), (at("1"), modified)] {
            let refused = delete(wrong).await.unwrap_err();
            says(refused.clone(), &ApiError::Conflict("fulfilled on ConfigMap \"deleted\": the ".to_owned()));
            says(refused, &ApiError::Conflict(why));
        }
        assert_eq!(self.get(Kind::ConfigMap, "deleted").await, object);
        delete(uid(text(&object, "/metadata/uid"))).await.unwrap();
        let absent = ApiError::NotFound("configmaps \"deleted\" not found".to_owned());
        says(self.api.get(Kind::ConfigMap, &key).await.unwrap_err(), &absent);
        says(delete(Preconditions::default()).await.unwrap_err(), &absent);
        let object = self.create(Kind::ConfigMap, self.config_map("deleted", "2")).await;
        delete(at(version(&object))).await.unwrap();
    }

    async fn a_status_has_requests_of_its_own(&self) {
        let ingress = |ip: &str| json!({"loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"}]}});
        let mut service = self.object("v1", "Service", "front");
        service["spec"] =
            json!({"type": "LoadBalancer", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]});
        service["status"] = ingress("192.0.2.1");
        let first = self.create(Kind::Service, service).await;
        let addresses = |service: &Value| service.pointer("/status/loadBalancer/ingress").cloned();
        assert_eq!(addresses(&first), None, "a service is made without a status");

        let mut change = first.clone();
        change["status"] = ingress("192.0.2.2");
        change["spec"]["ports"][0]["port"] = 81.into();
        let second = self.update(Kind::Service, &change).await.unwrap();
        assert_eq!((addresses(&second), &second["spec"]["ports"][0]["port"]), (None, &json!(81)));

        let stale = self.api.update_status(Kind::Service, bytes(&change)).await.unwrap_err();
        assert!(matches!(&stale, ApiError::Conflict(why) if why.contains("has been modified")), "{stale:?}");
        change = second.clone();
        change["status"] = ingress("192.0.2.3");
        change["spec"]["ports"][0]["port"] = 82.into();
        let third = value(&self.api.update_status(Kind::Service, bytes(&change)).await.unwrap());
        assert_eq!(addresses(&third), addresses(&change));
        assert_eq!(third["spec"], second["spec"], "the status and nothing else");
        let patch = json!({"status": ingress("192.0.2.4"), "spec": {"ports": []}});
        let fourth = self.patch(Kind::Service, "front", true, Patch::Merge(bytes(&patch))).await.unwrap();
        assert_eq!((addresses(&fourth), &fourth["spec"]), (addresses(&patch), &second["spec"]));

        self.create(Kind::ConfigMap, self.config_map("no-status", "1")).await;
        let none = self
            .api
            .update_status(Kind::ConfigMap, bytes(&self.config_map("no-status", "2")))
            .await
            .unwrap_err();
        assert!(matches!(none, ApiError::NotFound(_)), "{none:?}");
    }

    async fn kinds_have_rules_of_their_own(&self) {
        let name = format!("{}-node", self.namespace);
        let cluster = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": {}});
        let mut node = cluster("v1", "Node");
        node["status"] = json!({"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]});
        let made = self.create(Kind::Node, node.clone()).await;
        assert_eq!(
            made["status"]["addresses"], node["status"]["addresses"],
            "a node is made with its status"
        );
        let condition = |status: &str| {
            let condition = json!({"type": "NetworkUnavailable", "status": status, "reason": "CiliumIsUp"});
            Patch::Strategic(bytes(&json!({"status": {"conditions": [condition]}})))
        };
        let key = Key::new("", &*name);
        let mut patched = Value::Null;
        for status in ["True", "False"] {
            patched = value(&self.api.patch(Kind::Node, &key, true, condition(status)).await.unwrap());
        }
        let conditions = patched["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let own: Vec<&Value> =
            conditions.iter().filter(|found| found["type"] == "NetworkUnavailable").collect();
        assert_eq!(
            (own.len(), &own[0]["status"]),
            (1, &json!("False")),
            "conditions are known by their type"
        );

        let mut cilium = cluster("cilium.io/v2", "CiliumNode");
        cilium["status"] = json!({"ipam": {"operator-status": {"error": "x"}}});
        let made = self.create(Kind::CiliumNode, cilium.clone()).await;
        assert_eq!(made.get("status"), None);
        let refused = self.update(Kind::CiliumNode, &cilium).await.unwrap_err();
        says(refused, &ApiError::Invalid("must be specified for an update".to_owned()));
        let refused = self.api.patch(Kind::CiliumNode, &key, false, condition("True")).await.unwrap_err();
        says(refused, &ApiError::Invalid("the body of the request was in an unknown format".to_owned()));
        cilium["metadata"]["resourceVersion"] = version(&made).into();
        let updated = value(&self.api.update_status(Kind::CiliumNode, bytes(&cilium)).await.unwrap());
        assert_eq!(updated["status"], cilium["status"]);

        let mut endpoint = self.object("cilium.io/v2", "CiliumEndpoint", "endpoint");
        endpoint["status"] = json!({"id": 7});
        let made = self.create(Kind::CiliumEndpoint, endpoint).await;
        assert_eq!(made["status"]["id"], 7, "the status of an endpoint is a field as others");
        let mut changed = made.clone();
        changed["status"]["id"] = 8.into();
        assert_eq!(self.update(Kind::CiliumEndpoint, &changed).await.unwrap()["status"]["id"], 8);
        let none = self.api.update_status(Kind::CiliumEndpoint, bytes(&changed)).await.unwrap_err();
        assert!(matches!(none, ApiError::NotFound(_)), "{none:?}");
    }

    async fn watches_tell_everything_in_order(&self) {
        self.create(Kind::ConfigMap, self.config_map("watched-before", "1")).await;
        let what = Selection::all(Kind::ConfigMap).in_namespace(&self.namespace);
        let mut mirror = Mirror::of(self.source.watch(what));
        mirror.listed().await;
        assert!(mirror.get("watched-before").is_some());
        let names = ["watched-b", "watched-a", "watched-c"];
        for name in names {
            self.create(Kind::ConfigMap, self.config_map(name, "1")).await;
        }
        for name in names {
            assert_eq!(mirror.next().await, format!("applied {name}"));
        }
        let second = self.update(Kind::ConfigMap, &self.config_map("watched-a", "2")).await.unwrap();
        assert_eq!(mirror.next().await, "applied watched-a");
        assert_eq!(version(mirror.get("watched-a").unwrap()), version(&second));
        self.delete("watched-b").await;
        assert_eq!(mirror.next().await, "deleted watched-b");
        self.create(Kind::ConfigMap, self.config_map("watched-b", "3")).await;
        assert_eq!(mirror.next().await, "applied watched-b");
        assert_eq!(text(mirror.get("watched-b").unwrap(), "/data/value"), "3");
    }

    async fn watches_select_by_fields(&self) {
        let what = Selection::all(Kind::ConfigMap).in_namespace(&self.namespace).named("wanted");
        let mut one = Mirror::of(self.source.watch(what));
        one.listed().await;
        assert!(one.objects().next().is_none());
        for name in ["unwanted", "wanted"] {
            self.create(Kind::ConfigMap, self.config_map(name, "1")).await;
        }
        assert_eq!(one.next().await, "applied wanted");
        self.delete("unwanted").await;
        self.delete("wanted").await;
        assert_eq!(one.next().await, "deleted wanted");

        let pods = Selection::all(Kind::Pod).in_namespace(&self.namespace);
        let mut here =
            Mirror::of(self.source.watch(pods.with_fields("spec.nodeName=here,status.phase!=Succeeded")));
        here.listed().await;
        for (name, node) in [("far", "there"), ("near", "here"), ("next", "here")] {
            let mut pod = self.object("v1", "Pod", name);
            pod["spec"] = json!({"nodeName": node, "containers": [{"name": "c", "image": "none"}]});
            self.create(Kind::Pod, pod).await;
        }
        assert_eq!(
            (here.next().await, here.next().await),
            ("applied near".to_owned(), "applied next".to_owned())
        );
        let done = json!({"status": {"phase": "Succeeded"}});
        self.patch(Kind::Pod, "near", true, Patch::Merge(bytes(&done))).await.unwrap();
        assert_eq!(here.next().await, "deleted near", "it is there, but not among those that were asked for");
        assert_eq!(text(&self.get(Kind::Pod, "near").await, "/status/phase"), "Succeeded");
    }

    /// Asserts that an expired watch lists all objects again, so that objects removed meanwhile are gone.
    ///
    /// `disturbed` makes watches lose their resource version or their connection; meanwhile the object `going` is
    /// deleted and the object `coming` is created.
    pub async fn a_lost_place_is_found_again(&self, disturbed: impl AsyncFnOnce(&ApiServer)) {
        for name in ["staying", "going"] {
            self.create(Kind::ConfigMap, self.config_map(name, "1")).await;
        }
        let what = Selection::all(Kind::ConfigMap).in_namespace(&self.namespace);
        let mut mirror = Mirror::of(self.source.watch(what));
        mirror.listed().await;
        disturbed(self).await;
        mirror.until(|seen| seen.get("coming").is_some() && seen.get("going").is_none()).await;
        assert!(mirror.get("staying").is_some());
        self.create(Kind::ConfigMap, self.config_map("after", "1")).await;
        mirror.until(|seen| seen.get("after").is_some()).await;
        for object in mirror.objects() {
            let name = text(object, "/metadata/name");
            assert_eq!(version(object), version(&self.get(Kind::ConfigMap, name).await), "{name}");
        }
    }

    fn key(&self, name: &str) -> Key {
        Key::new(&*self.namespace, name)
    }

    fn object(&self, api_version: &str, kind: &str, name: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": self.namespace, "name": name}})
    }

    /// A ConfigMap with one value.
    #[must_use]
    pub fn config_map(&self, name: &str, value: &str) -> Value {
        let mut object = self.object("v1", "ConfigMap", name);
        object["data"] = json!({"value": value});
        object
    }

    async fn get(&self, kind: Kind, name: &str) -> Value {
        value(&self.api.get(kind, &self.key(name)).await.unwrap())
    }

    /// Makes an object.
    pub async fn create(&self, kind: Kind, object: Value) -> Value {
        value(&self.api.create(kind, bytes(&object)).await.unwrap())
    }

    async fn update(&self, kind: Kind, object: &Value) -> Result<Value, ApiError> {
        self.api.update(kind, bytes(object)).await.map(|object| value(&object))
    }

    async fn patch(&self, kind: Kind, name: &str, status: bool, patch: Patch) -> Result<Value, ApiError> {
        self.api.patch(kind, &self.key(name), status, patch).await.map(|object| value(&object))
    }

    /// Deletes a ConfigMap.
    pub async fn delete(&self, name: &str) {
        self.api.delete(Kind::ConfigMap, &self.key(name), Preconditions::default()).await.unwrap();
    }
}

/// Asserts that it is this error; the server's text may have additions.
#[track_caller]
fn says(error: ApiError, expected: &ApiError) {
    let same = std::mem::discriminant(&error) == std::mem::discriminant(expected);
    assert!(same && error.to_string().contains(&expected.to_string()), "{error:?}, expected {expected:?}");
}

fn bytes(object: &Value) -> Bytes {
    object.to_string().into()
}

fn value(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

fn text<'v>(object: &'v Value, path: &str) -> &'v str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn version(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}
