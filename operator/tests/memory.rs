//! The memory of a large cluster's objects in the operator's tables, counted by the allocator: a tenth of the cluster must take at
//! most a tenth of the limit.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::cilium::CiliumIdentity;
use k8s_types::{Kind, Selection, Source, SourceError, WatchEvent};
use operator_objects::{EndpointRow, Phase, PodRow};
use serde_json::{Value, json};
use statedb::Table;

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

/// The limit for 100,000 pods with endpoints and 60,000 identities in bytes; 108 MB were measured.
const LIMIT: u64 = 112_000_000;

const PODS: usize = 10_000;
const IDENTITIES: usize = 6_000;
const NAMESPACES: usize = 50;

/// Objects as servers send them, generated when they are read.
struct Cluster;

impl Source for Cluster {
    fn name(&self) -> &'static str {
        "cluster"
    }

    fn has(&self, kind: Kind) -> bool {
        matches!(kind, Kind::Pod | Kind::CiliumEndpoint | Kind::CiliumIdentity)
    }

    fn watch(&self, selection: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        let (count, object): (usize, fn(usize) -> Value) = match selection.kind {
            Kind::Pod => (PODS, pod),
            Kind::CiliumEndpoint => (PODS, endpoint),
            _ => (IDENTITIES, identity),
        };
        let applied = move |number| WatchEvent::Applied {
            json: Bytes::from(object(number).to_string()),
            origin: "".into(),
        };
        let list =
            [WatchEvent::Restart].into_iter().chain((0..count).map(applied)).chain([WatchEvent::Listed]);
        stream::iter(list.map(Ok)).chain(stream::pending()).boxed()
    }
}

fn uid(kind: usize, number: usize) -> String {
    format!("{kind:08x}-0000-4000-8000-{number:012x}")
}

fn metadata(kind: usize, number: usize, name: &str) -> Value {
    json!({
        "name": name, "uid": uid(kind, number), "resourceVersion": (1_000_000 + number).to_string(),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "controller", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {}}}}],
    })
}

fn of_pod(kind: usize, number: usize) -> Value {
    let mut metadata = metadata(kind, number, &format!("web-{number:05}-7d9c5b6f4-x2x4z"));
    metadata["namespace"] = json!(format!("team-{}", number % NAMESPACES));
    metadata["labels"] =
        json!({"app": format!("web-{}", number % IDENTITIES), "pod-template-hash": "7d9c5b6f4"});
    metadata
}

fn pod(number: usize) -> Value {
    let mut metadata = of_pod(1, number);
    metadata["annotations"] = json!({"example.org/restarted-at": format!("2026-01-01T00:00:{number}Z")});
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition);
    let address = format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {
            "nodeName": format!("worker-{:04}.compute.example", number % 500), "serviceAccountName": "web",
            "containers": [{
                "name": "web", "image": "registry.example.org/team/web:1.2.3",
                "ports": [{"containerPort": 8080, "protocol": "TCP", "name": "http"}],
                "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            }],
        },
        "status": {
            "phase": "Running", "hostIP": "172.16.0.1", "podIP": address, "podIPs": [{"ip": address}],
            "qosClass": "Burstable", "startTime": "2026-01-01T00:00:00Z",
            "conditions": conditions,
            "containerStatuses": [{
                "name": "web", "containerID": format!("containerd://{number:064x}"),
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }],
        },
    })
}

fn endpoint(number: usize) -> Value {
    let mut metadata = of_pod(2, number);
    let pod = metadata["name"].clone();
    metadata["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid(1, number)}]);
    let namespace = &metadata["namespace"];
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
        "status": {
            "id": 1 + number % 4096, "state": "ready", "encryption": {}, "service-account": "web",
            "external-identifiers": {
                "container-id": format!("{number:064x}"), "k8s-namespace": namespace, "k8s-pod-name": pod,
                "pod-name": format!("{namespace}/{pod}"), "cni-attachment-id": format!("{number:064x}:eth0"),
            },
            "identity": {"id": 5000 + number % IDENTITIES, "labels": [
                format!("k8s:app=web-{}", number % IDENTITIES),
                "k8s:io.cilium.k8s.policy.cluster=default", "k8s:io.cilium.k8s.policy.serviceaccount=web",
                format!("k8s:io.kubernetes.pod.namespace=team-{}", number % NAMESPACES),
            ]},
            "named-ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "networking": {"addressing": [{"ipv4": format!("10.0.{}.{}", number >> 8, number & 255)}], "node": "172.16.0.1"},
            "policy": {"ingress": {"enforcing": true, "state": "enforcing"}, "egress": {"enforcing": false, "state": "<status disabled>"}},
        },
        "metadata": metadata,
    })
}

fn identity(number: usize) -> Value {
    let namespace = format!("team-{}", number % NAMESPACES);
    let mut metadata = metadata(8, number, &(5000 + number).to_string());
    metadata["labels"] = json!({"io.kubernetes.pod.namespace": namespace});
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": metadata,
        "security-labels": {
            "k8s:app": format!("web-{number}"),
            "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": namespace,
            "k8s:io.cilium.k8s.policy.cluster": "default", "k8s:io.cilium.k8s.policy.serviceaccount": "web",
            "k8s:io.kubernetes.pod.namespace": namespace,
        },
    })
}

#[tokio::test]
async fn a_tenth_of_a_large_cluster_takes_a_tenth_of_the_limit() {
    let source: Arc<dyn Source> = Arc::new(Cluster);
    let mut hive = TestHive::new([
        statedb::cell(),
        supply(Member(source)),
        module(
            "k8s-tables",
            "Tables",
            [
                config::<operator_endpoint_slices::EndpointSlicesConfig>(),
                operator::large_tables(),
                k8s_tables::table::<CiliumIdentity>(),
            ],
        ),
        invoke(|_: Arc<Table<PodRow>>, _: Arc<Table<EndpointRow>>, _: Arc<Table<Row<CiliumIdentity>>>| ()),
    ]);
    let allocated = || memory_limit::allocated().unwrap();
    let before = allocated();
    hive.start().await;
    let (pods, endpoints) = (hive.get::<Table<PodRow>>(), hive.get::<Table<EndpointRow>>());
    let identities = hive.get::<Table<Row<CiliumIdentity>>>();
    pods.wait_initialized().await;
    endpoints.wait_initialized().await;
    identities.wait_initialized().await;
    let held = allocated() - before;
    assert!(held <= LIMIT / 10, "{held} bytes");

    // The fields that cells read are kept.
    let (name, snapshot) = ("web-00007-7d9c5b6f4-x2x4z", pods.snapshot());
    let pod = pods.get(&snapshot, PodRow::by_name("team-7", name)).unwrap();
    assert_eq!((pod.uid.to_string(), pod.phase), (uid(1, 7), Phase::Running));
    assert_eq!((&*pod.service_account, pod.labels.len()), ("web", 2));
    let snapshot = endpoints.snapshot();
    let endpoint = endpoints.get(&snapshot, EndpointRow::by_name("team-7", name)).unwrap();
    assert_eq!((endpoint.identity, endpoint.pod(), &endpoint.core), (Some(5007), Some(name), &None));
    hive.stop().await;
}
