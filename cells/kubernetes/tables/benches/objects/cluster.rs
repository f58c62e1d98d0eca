//! A synthetic large cluster. Objects are generated when they are read, so that they take no memory.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::channel::mpsc;
use futures::stream::{self, BoxStream, StreamExt};
use hive::prelude::*;
use k8s_tables::core::{EndpointSlice, Pod, Service};
use k8s_tables::{Kind, Row, Selection, Source, SourceError, WatchEvent, cilium::CiliumIdentity};
use statedb::Table;

/// The number of pods of a ReplicaSet.
const REPLICAS: usize = 10;
/// The number of endpoints of a slice.
const ENDPOINTS: usize = 100;
const NODES: usize = 500;

/// The number of objects of each kind.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) pods: usize,
    pub(crate) services: usize,
    pub(crate) endpoints: usize,
    pub(crate) identities: usize,
}

pub(crate) const LARGE: Size = Size { pods: 50_000, services: 10_000, endpoints: 100_000, identities: 6_000 };

type Changes = mpsc::UnboundedSender<Result<WatchEvent, SourceError>>;

pub(crate) struct Cluster {
    size: Size,
    /// Bytes of JSON that were read.
    pub(crate) bytes: Arc<AtomicU64>,
    pods: Mutex<Option<Changes>>,
    /// The number of changes, and the state of the random number generator.
    changes: Mutex<(usize, u64)>,
}

impl Cluster {
    pub(crate) fn new(size: Size) -> Cluster {
        let changes = Mutex::new((0, 0x9e37_79b9_7f4a_7c15));
        Cluster { size, bytes: Arc::default(), pods: Mutex::default(), changes }
    }

    /// Changes random pods, until `thousands` thousand changes are in the table.
    pub(crate) async fn change(&self, thousands: usize, table: &Table<Row<Pod>>) {
        for _ in 0..thousands {
            let last = (0..1000).map(|_| self.change_one()).last();
            let (pod, version) = last.unwrap();
            followed(table, pod, version).await;
        }
    }

    fn change_one(&self) -> (usize, usize) {
        let mut changes = self.changes.lock().unwrap();
        let (version, number) = &mut *changes;
        *version += 1;
        // Marsaglia's xorshift64.
        *number ^= *number << 13;
        *number ^= *number >> 7;
        *number ^= *number << 17;
        let changed = *number as usize % self.size.pods;
        let json = Bytes::from(pod(changed, *version));
        let event = Ok(WatchEvent::Applied { json, origin: "".into() });
        self.pods.lock().unwrap().as_ref().unwrap().unbounded_send(event).unwrap();
        (changed, *version)
    }
}

impl Source for Cluster {
    fn name(&self) -> &str {
        "daemon-k8s"
    }

    fn has(&self, kind: Kind) -> bool {
        matches!(kind, Kind::Pod | Kind::Service | Kind::EndpointSlice | Kind::CiliumIdentity)
    }

    fn watch(&self, what: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        let (count, make): (usize, fn(usize) -> String) = match what.kind {
            Kind::Pod => (self.size.pods, |n| pod(n, 0)),
            Kind::Service => (self.size.services, service),
            Kind::EndpointSlice => (self.size.endpoints / ENDPOINTS, slice),
            _ => (self.size.identities, identity),
        };
        let bytes = self.bytes.clone();
        let applied = move |n| {
            let json = Bytes::from(make(n));
            bytes.fetch_add(json.len() as u64, Ordering::Relaxed);
            WatchEvent::Applied { json, origin: "".into() }
        };
        let (changes, changed) = mpsc::unbounded();
        if what.kind == Kind::Pod {
            *self.pods.lock().unwrap() = Some(changes);
        }
        let list =
            [WatchEvent::Restart].into_iter().chain((0..count).map(applied)).chain([WatchEvent::Listed]);
        stream::iter(list.map(Ok)).chain(changed).chain(stream::pending()).boxed()
    }
}

/// Provides the tables, with the pods of all nodes.
pub(crate) fn cells(cluster: Arc<Cluster>) -> [Cell; 4] {
    let source: Arc<dyn Source> = cluster;
    let tables = [
        k8s_tables::table::<Pod>(),
        k8s_tables::table::<Service>(),
        k8s_tables::table::<EndpointSlice>(),
        k8s_tables::table::<CiliumIdentity>(),
    ];
    let readers = |_: Arc<Table<Row<Pod>>>,
                   _: Arc<Table<Row<Service>>>,
                   _: Arc<Table<Row<EndpointSlice>>>,
                   _: Arc<Table<Row<CiliumIdentity>>>| ();
    [statedb::cell(), supply(Member(source)), module("k8s-tables", "Tables", tables), invoke(readers)]
}

/// Waits until the last change of a pod is in its table.
async fn followed(pods: &Table<Row<Pod>>, n: usize, version: usize) {
    let (set, version) = (n / REPLICAS, resource_version(n, version));
    let name = Row::<Pod>::by_name(&format!("team-{}", set % 100), &format!("web-{set}-7d9c5b6f4-{n:05}"));
    pods.wait_for(name, |row| row.metadata.resource_version == version).await;
}

fn resource_version(n: usize, version: usize) -> String {
    (1_000_000 + n + version).to_string()
}

/// Waits until all objects are in the tables.
pub(crate) async fn complete(hive: &TestHive) {
    hive.get::<Table<Row<Pod>>>().wait_initialized().await;
    hive.get::<Table<Row<Service>>>().wait_initialized().await;
    hive.get::<Table<Row<EndpointSlice>>>().wait_initialized().await;
    hive.get::<Table<Row<CiliumIdentity>>>().wait_initialized().await;
}

fn uid(kind: usize, n: usize) -> String {
    format!("{kind:08x}-0000-4000-8000-{n:012x}")
}

fn node(n: usize) -> String {
    format!("worker-{:04}.compute.example", n % NODES)
}

/// Returns `managedFields` as a server sends them: half of an object's JSON.
fn managed() -> String {
    let fields = r#""f:metadata":{"f:labels":{".":{},"f:app.kubernetes.io/name":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{}}"#;
    format!(
        r#"[{{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{{{fields}}}}}]"#
    )
}

fn pod(n: usize, version: usize) -> String {
    let set = n / REPLICAS;
    let mut conditions = String::new();
    for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        let comma = if conditions.is_empty() { "" } else { "," };
        _ = write!(
            conditions,
            r#"{comma}{{"type":"{kind}","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:{:02}:{:02}Z"}}"#,
            n / 60 % 60,
            n % 60
        );
    }
    let (a, b) = (n / 250 % 250, n % 250);
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"web-{set}-7d9c5b6f4-{n:05}","generateName":"web-{set}-7d9c5b6f4-","namespace":"team-{}","uid":"{}","resourceVersion":"{}","creationTimestamp":"2026-01-01T00:00:00Z","labels":{{"app.kubernetes.io/name":"web-{set}","app.kubernetes.io/part-of":"a-rather-long-name-of-a-product","pod-template-hash":"7d9c5b6f4","team":"team-{}","tier":"frontend"}},"annotations":{{"prometheus.io/scrape":"true","prometheus.io/port":"8080"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-{set}-7d9c5b6f4","uid":"{}","controller":true,"blockOwnerDeletion":true}}],"managedFields":{}}},"spec":{{"volumes":[{{"name":"kube-api-access","projected":{{"defaultMode":420}}}}],"containers":[{{"name":"web","image":"registry.example/team/web:v1.{set}.0","ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],"resources":{{"requests":{{"cpu":"100m","memory":"128Mi"}}}},"volumeMounts":[{{"name":"kube-api-access","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}}],"terminationMessagePath":"/dev/termination-log","imagePullPolicy":"IfNotPresent"}}],"restartPolicy":"Always","serviceAccountName":"web","serviceAccount":"web","nodeName":"{}","schedulerName":"default-scheduler"}},"status":{{"phase":"Running","conditions":[{conditions}],"hostIP":"192.168.{}.10","podIP":"10.{}.{a}.{b}","podIPs":[{{"ip":"10.{}.{a}.{b}"}}],"startTime":"2026-01-01T00:00:00Z","qosClass":"Burstable"}}}}"#,
        set % 100,
        uid(1, n),
        resource_version(n, version),
        set % 100,
        uid(2, set),
        managed(),
        node(n),
        n % NODES / 4,
        n / 62_500,
        n / 62_500,
    )
}

fn service(n: usize) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"web-{n}","namespace":"team-{}","uid":"{}","resourceVersion":"{n}","labels":{{"app.kubernetes.io/name":"web-{n}","team":"team-{}"}},"managedFields":{}}},"spec":{{"ports":[{{"name":"http","protocol":"TCP","port":80,"targetPort":"http"}},{{"name":"metrics","protocol":"TCP","port":9090,"targetPort":9090}}],"selector":{{"app.kubernetes.io/name":"web-{n}"}},"clusterIP":"10.96.{}.{}","clusterIPs":["10.96.{}.{}"],"type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster"}},"status":{{"loadBalancer":{{}}}}}}"#,
        n % 100,
        uid(3, n),
        n % 100,
        managed(),
        n / 250,
        n % 250,
        n / 250,
        n % 250,
    )
}

fn slice(n: usize) -> String {
    let mut endpoints = String::new();
    for e in 0..ENDPOINTS {
        let comma = if e == 0 { "" } else { "," };
        let at = n * ENDPOINTS + e;
        _ = write!(
            endpoints,
            r#"{comma}{{"addresses":["10.{}.{}.{}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"nodeName":"{}","zone":"zone-{}","targetRef":{{"kind":"Pod","namespace":"team-1","name":"web-{at}","uid":"{}"}}}}"#,
            at / 62_500,
            at / 250 % 250,
            at % 250,
            node(at),
            at % 3,
            uid(1, at),
        );
    }
    format!(
        r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"web-{n}-x7k2p","generateName":"web-{n}-","namespace":"team-{}","uid":"{}","resourceVersion":"{n}","labels":{{"kubernetes.io/service-name":"web-{n}","endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io"}},"ownerReferences":[{{"apiVersion":"v1","kind":"Service","name":"web-{n}","uid":"{}","controller":true}}],"managedFields":{}}},"addressType":"IPv4","endpoints":[{endpoints}],"ports":[{{"name":"http","protocol":"TCP","port":8080}}]}}"#,
        n % 100,
        uid(4, n),
        uid(3, n),
        managed(),
    )
}

fn identity(n: usize) -> String {
    format!(
        r#"{{"apiVersion":"cilium.io/v2","kind":"CiliumIdentity","metadata":{{"name":"{}","uid":"{}","resourceVersion":"{n}","labels":{{"io.kubernetes.pod.namespace":"team-{}"}},"managedFields":{}}},"security-labels":{{"k8s:app.kubernetes.io/name":"web-{n}","k8s:app.kubernetes.io/part-of":"a-rather-long-name-of-a-product","k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name":"team-{}","k8s:io.cilium.k8s.policy.cluster":"default","k8s:io.cilium.k8s.policy.serviceaccount":"web","k8s:io.kubernetes.pod.namespace":"team-{}","k8s:team":"team-{}","k8s:tier":"frontend"}}}}"#,
        10_000 + n,
        uid(5, n),
        n % 100,
        managed(),
        n % 100,
        n % 100,
        n % 100,
    )
}
