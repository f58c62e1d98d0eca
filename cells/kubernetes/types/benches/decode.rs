//! Speed of decoding objects in an API server's JSON: one row per line, `name measured unit goal met peer`, separated
//! by tabs. Measures processor time, which other load on the machine does not affect.

#![expect(clippy::print_stdout, reason = "a benchmark's output")]

use std::hint::black_box;

use k8s_types::core::{EndpointSlice, Pod, Service};
use k8s_types::{Resource, decode};
use serde_json::{Value, json};

/// The number of objects of each kind; their JSON exceeds the processor's caches.
const OBJECTS: usize = 2_000;

fn main() {
    row::<Pod>("pods", pod);
    row::<Service>("services", service);
    row::<EndpointSlice>("slices of 100 endpoints", slice);
}

fn row<T: Resource>(name: &str, object: fn(usize) -> Value) {
    let count = if T::KIND.plural() == "endpointslices" { OBJECTS / 20 } else { OBJECTS };
    let texts: Vec<Vec<u8>> = (0..count).map(|at| object(at).to_string().into_bytes()).collect();
    let bytes: usize = texts.iter().map(Vec::len).sum();
    let round = || {
        let before = cpu_nanos();
        for text in &texts {
            black_box(decode::<T>(text).unwrap());
        }
        cpu_nanos() - before
    };
    let best = (0..20).map(|_| round()).min().unwrap();
    let speed = bytes as f64 * 1e3 / best as f64;
    let met = if speed >= 150.0 { "yes" } else { "no" };
    println!("k8s: {name} decoded, {} bytes each\t{speed:.0}\tMB/s\t150\t{met}\t-", bytes / count);
}

/// Returns the CPU time of this thread.
fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn metadata(name: &str, at: usize, labels: Value, managed: Value) -> Value {
    json!({
        "name": format!("{name}-{at}"),
        "namespace": format!("team-{}", at % 50),
        "uid": format!("3b1f6b70-52d5-4c1e-9d0f-{at:012x}"),
        "resourceVersion": (1_000_000 + at).to_string(),
        "creationTimestamp": "2026-11-22T09:12:33Z",
        "labels": labels,
        "annotations": {"kubectl.kubernetes.io/restartedAt": "2026-11-20T11:02:01Z", "prometheus.io/scrape": "true"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{name}-5d8f7c9b6"), "uid": "8f14e45f-ceea-467f-9b9b-0a2d6f4f1c11", "controller": true, "blockOwnerDeletion": true}],
        "managedFields": [
            {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": "2026-11-22T09:12:33Z", "fieldsType": "FieldsV1", "fieldsV1": managed},
            {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-11-22T09:12:37Z", "fieldsType": "FieldsV1", "subresource": "status",
             "fieldsV1": {"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {}}}, "f:hostIP": {}, "f:phase": {}, "f:podIP": {}, "f:podIPs": {".": {}, "k:{\"ip\":\"10.0.3.17\"}": {".": {}, "f:ip": {}}}, "f:startTime": {}}}},
        ],
    })
}

fn pod(at: usize) -> Value {
    let managed = json!({"f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}}, "f:ownerReferences": {".": {}, "k:{\"uid\":\"8f14e45f-ceea-467f-9b9b-0a2d6f4f1c11\"}": {}}}, "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {".": {}, "f:env": {".": {}, "k:{\"name\":\"MODE\"}": {".": {}, "f:name": {}, "f:value": {}}}, "f:image": {}, "f:imagePullPolicy": {}, "f:livenessProbe": {".": {}, "f:failureThreshold": {}, "f:httpGet": {".": {}, "f:path": {}, "f:port": {}, "f:scheme": {}}, "f:periodSeconds": {}, "f:successThreshold": {}, "f:timeoutSeconds": {}}, "f:name": {}, "f:ports": {".": {}, "k:{\"containerPort\":8080,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:name": {}, "f:protocol": {}}}, "f:resources": {".": {}, "f:limits": {".": {}, "f:memory": {}}, "f:requests": {".": {}, "f:cpu": {}, "f:memory": {}}}, "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}}}, "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {}, "f:terminationGracePeriodSeconds": {}}});
    let labels = json!({"app": "web", "pod-template-hash": "5d8f7c9b6", "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("web-{at}"), "topology.kubernetes.io/zone": "eu-central-1a"});
    let ip = format!("10.{}.{}.{}", at / 65536, at / 256 % 256, at % 256);
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-11-22T09:12:37Z"});
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": metadata("web", at, labels, managed),
        "spec": {
            "volumes": [
                {"name": "config", "configMap": {"name": "web-config", "defaultMode": 420}},
                {"name": "kube-api-access-x7k2p", "projected": {"sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}, {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}, {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}], "defaultMode": 420}},
            ],
            "containers": [{
                "name": "web", "image": "registry.example.org/shop/web:v1.42.0",
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}, {"name": "metrics", "containerPort": 9090, "protocol": "TCP"}],
                "env": [{"name": "MODE", "value": "production"}, {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
                "resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "256Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}, {"name": "kube-api-access-x7k2p", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent",
            }],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "serviceAccountName": "web", "serviceAccount": "web",
            "nodeName": format!("node-{}", at % 500), "securityContext": {}, "schedulerName": "default-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}, {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "priority": 0, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {
            "phase": "Running",
            "conditions": [condition("PodReadyToStartContainers"), condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")],
            "hostIP": "192.168.7.11", "hostIPs": [{"ip": "192.168.7.11"}], "podIP": ip, "podIPs": [{"ip": ip}], "startTime": "2026-11-22T09:12:33Z",
            "containerStatuses": [{"name": "web", "state": {"running": {"startedAt": "2026-11-22T09:12:36Z"}}, "lastState": {}, "ready": true, "restartCount": 0, "image": "registry.example.org/shop/web:v1.42.0", "imageID": "registry.example.org/shop/web@sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945", "containerID": "containerd://9b2f4d5c7e8a1b3c5d7e9f0a2b4c6d8e0f1a3b5c7d9e1f2a4b6c8d0e2f4a6b8c", "started": true}],
            "qosClass": "Burstable",
        },
    })
}

fn service(at: usize) -> Value {
    let managed = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:internalTrafficPolicy": {}, "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}}, "f:selector": {}, "f:sessionAffinity": {}, "f:type": {}}});
    let ip = format!("10.96.{}.{}", at / 256, at % 256);
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": metadata("web", at, json!({"app": "web", "app.kubernetes.io/name": "web"}), managed),
        "spec": {
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "http", "nodePort": 30080}, {"name": "metrics", "protocol": "TCP", "port": 9090, "targetPort": 9090}],
            "selector": {"app": "web", "app.kubernetes.io/instance": format!("web-{at}")},
            "clusterIP": ip, "clusterIPs": [ip], "type": "NodePort", "sessionAffinity": "None", "externalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
        },
        "status": {"loadBalancer": {}},
    })
}

fn slice(at: usize) -> Value {
    let managed = json!({"f:addressType": {}, "f:endpoints": {}, "f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:endpointslice.kubernetes.io/managed-by": {}, "f:kubernetes.io/service-name": {}}}, "f:ports": {}});
    let endpoint = |n: usize| {
        json!({
            "addresses": [format!("10.{}.{}.{}", at % 256, n / 256, n % 256)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "namespace": format!("team-{}", at % 50), "name": format!("web-{at}-{n}"), "uid": format!("3b1f6b70-52d5-4c1e-9d0f-{n:012x}")},
            "nodeName": format!("node-{}", n % 500), "zone": "eu-central-1a",
        })
    };
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": metadata("web", at, json!({"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io", "kubernetes.io/service-name": format!("web-{at}")}), managed),
        "addressType": "IPv4",
        "endpoints": (0..100).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}, {"name": "metrics", "protocol": "TCP", "port": 9090}],
    })
}
