//! Lists 50,000 pods, 10,000 services, 100,000 endpoints in slices and 6,000 identities from a generator in another
//! process over HTTP. Measures the time until all are decoded, its processor time, and the peak memory with all objects
//! kept.
//!
//! The generator is this program, called with `serve`.

use std::convert::Infallible;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, stream};
use hive::prelude::*;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_types::cilium::CiliumIdentity;
use k8s_types::core::{EndpointSlice, Pod, Service};
use k8s_types::{Resource, Selection, Source, WatchEvent, decode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The number of objects of a kind, and their generator.
type Objects = (usize, fn(usize) -> Value);

const PODS: Objects = (50_000, pod);
const SERVICES: Objects = (10_000, service);
const SLICES: Objects = (1_000, slice);
const IDENTITIES: Objects = (6_000, identity);

/// Returns `managedFields`, which servers send and readers skip.
fn managed() -> Value {
    let fields: serde_json::Map<String, Value> = (0..20)
        .map(|n| (format!("f:field-of-the-object-{n}"), json!({".": {}, "f:name": {}, "f:value": {}})))
        .collect();
    json!([{"manager": "controller", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}])
}

fn metadata(name: &str, n: usize) -> Value {
    json!({
        "name": name, "namespace": format!("team-{}", n % 50), "uid": format!("11111111-2222-3333-4444-{n:012}"),
        "resourceVersion": (n + 1).to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": format!("web-{n}"), "tier": "front"}, "managedFields": managed(),
    })
}

fn address(n: usize) -> String {
    format!("10.{}.{}.{}", n / 62_500, n / 250 % 250, n % 250)
}

fn pod(n: usize) -> Value {
    let mount = json!({"name": "kube-api-access", "readOnly": true, "mountPath": "/var/run/secrets"});
    json!({
        "metadata": metadata(&format!("web-{n}-7d9f8c6b5-x2x4z"), n),
        "spec": {
            "nodeName": format!("node-{}", n % 500), "serviceAccountName": "default", "restartPolicy": "Always",
            "containers": [{
                "name": "main", "image": "registry/web:1.2.3", "volumeMounts": [mount],
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}
            }],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]
        },
        "status": {
            "phase": "Running", "hostIP": "192.168.0.1", "podIP": address(n), "podIPs": [{"ip": address(n)}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [{"name": "main", "ready": true, "image": "registry/web:1.2.3"}]
        }
    })
}

fn service(n: usize) -> Value {
    json!({
        "metadata": metadata(&format!("web-{n}"), n),
        "spec": {
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            "selector": {"app": format!("web-{n}")}, "clusterIP": address(n), "clusterIPs": [address(n)],
            "type": "ClusterIP", "sessionAffinity": "None"
        },
        "status": {"loadBalancer": {}}
    })
}

fn slice(n: usize) -> Value {
    let endpoint = |i| {
        json!({
            "addresses": [address(n * 100 + i)], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{i}"), "targetRef": {"kind": "Pod", "name": format!("web-{n}-{i}")}, "zone": "a"
        })
    };
    json!({
        "metadata": metadata(&format!("web-{n}-abcde"), n), "addressType": "IPv4",
        "endpoints": (0..100).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]
    })
}

fn identity(n: usize) -> Value {
    let mut metadata = metadata(&(n + 1000).to_string(), n);
    metadata.as_object_mut().map(|metadata| metadata.remove("namespace"));
    json!({
        "metadata": metadata,
        "security-labels": {"k8s:app": format!("web-{n}"), "k8s:io.kubernetes.pod.namespace": format!("team-{}", n % 50)}
    })
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Returns the prepared response of a streaming list, followed by a watch without changes.
fn listed((count, object): Objects) -> Vec<Bytes> {
    let event = |kind: &str, object: Value| json!({"type": kind, "object": object}).to_string() + "\n";
    let numbers: Vec<usize> = (0..count).collect();
    let texts =
        numbers.chunks(20).map(|chunk| chunk.iter().map(|n| event("ADDED", object(*n))).collect::<String>());
    let end = json!({"metadata": {"resourceVersion": "900000", "annotations": {"k8s.io/initial-events-end": "true"}}});
    texts.chain([event("BOOKMARK", end)]).map(Bytes::from).collect()
}

fn endless(chunks: &[Bytes]) -> Body {
    let chunks = stream::iter(chunks.to_vec()).map(|chunk| Ok(Frame::data(chunk)));
    StreamBody::new(chunks.chain(stream::pending())).boxed_unsync()
}

async fn serve() -> io::Result<()> {
    let definition = |_| json!({"metadata": {"name": "ciliumidentities.cilium.io", "resourceVersion": "1"}});
    let lists: Arc<Vec<(&str, Vec<Bytes>)>> = Arc::new(vec![
        ("/api/v1/pods", listed(PODS)),
        ("/api/v1/services", listed(SERVICES)),
        ("/apis/discovery.k8s.io/v1/endpointslices", listed(SLICES)),
        ("/apis/cilium.io/v2/ciliumidentities", listed(IDENTITIES)),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", listed((1, definition))),
    ]);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    loop {
        let (socket, _) = listener.accept().await?;
        let lists = lists.clone();
        let answers = service_fn(move |request: Request<Incoming>| {
            let list = lists.iter().find(|(path, _)| *path == request.uri().path());
            let version = r#"{"major":"1","minor":"34","gitVersion":"v1.34.4","platform":"linux/amd64"}"#;
            let body = list.map_or_else(|| Full::from(version).boxed_unsync(), |(_, chunks)| endless(chunks));
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        });
        #[expect(clippy::disallowed_methods, reason = "the generator is no cell")]
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), answers),
        );
    }
}

/// Returns all decoded objects of a kind, and their size in bytes.
async fn list<T: Resource>(source: Arc<dyn Source>, count: usize) -> (Vec<T>, usize) {
    let (mut events, mut objects, mut bytes) = (source.watch(Selection::all(T::KIND)), Vec::new(), 0);
    while let Some(event) = events.next().await {
        match event {
            Ok(WatchEvent::Applied { json, .. }) => {
                bytes += json.len();
                objects.push(decode(&json).unwrap());
            }
            Ok(WatchEvent::Listed) => break,
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(objects.len(), count);
    (objects, bytes)
}

/// Returns a field of `/proc/self/status` in MB.
fn memory(what: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

/// Returns the processor time of this process, with the kernel's resolution of 10 ms.
fn processor() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let ticks = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    Duration::from_millis(ticks.map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum())
}

async fn measure(server: &str) {
    let taken: Arc<Mutex<Option<Arc<dyn Source>>>> = Arc::default();
    let given = taken.clone();
    let take = move |sources: Group<Arc<dyn Source>>| *given.lock().unwrap() = sources.first().cloned();
    let mut hive = TestHive::new([k8s_client::cell(), module("reader", "Takes the source", [invoke(take)])])
        .set("k8s-api-server-urls", server)
        .set("crd-wait-timeout", "0s");
    hive.start().await;
    let source = taken.lock().unwrap().take().unwrap();
    let (rest, begun, used) = (memory("VmRSS:"), Instant::now(), processor());
    let (pods, services, slices, identities) = tokio::join!(
        list::<Pod>(source.clone(), PODS.0),
        list::<Service>(source.clone(), SERVICES.0),
        list::<EndpointSlice>(source.clone(), SLICES.0),
        list::<CiliumIdentity>(source.clone(), IDENTITIES.0),
    );
    let (took, used) = (begun.elapsed().as_secs_f64(), (processor() - used).as_secs_f64());
    let megabytes = (pods.1 + services.1 + slices.1 + identities.1) as f64 / 1e6;
    let peak = memory("VmHWM:") - rest;
    let yes = |good: bool| if good { "yes" } else { "no" };
    let lines = [
        format!(
            "API server: {megabytes:.0} MB of objects listed and decoded\t{took:.2}\ts\t6\t{}\t",
            yes(took <= 6.0)
        ),
        format!("the same, processor time\t{used:.2}\ts\t\t-\t"),
        format!("the same, peak of memory with all of them\t{peak:.0}\tMB\t120\t{}\t", yes(peak <= 120.0)),
    ];
    lines.iter().for_each(|line| drop(writeln!(io::stdout(), "{line}")));
    drop((source, pods, services, slices, identities));
    hive.stop().await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if std::env::args().any(|argument| argument == "serve") {
        return runtime.block_on(serve()).unwrap();
    }
    let mut generator =
        Command::new(std::env::current_exe().unwrap()).arg("serve").stdout(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(generator.stdout.take().unwrap()).read_line(&mut address).unwrap();
    runtime.block_on(measure(&format!("http://{}", address.trim())));
    generator.kill().unwrap();
    generator.wait().unwrap();
}
