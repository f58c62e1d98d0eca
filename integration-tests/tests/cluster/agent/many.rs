//! Thousands of objects while connections and servers fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster_stage::User;
use futures::{StreamExt, stream};
use hive::prelude::*;
use integration_tests::Cluster;
use k8s_types::schema::custom_resource_definitions;
use k8s_types::{Api, ApiError, Key, Kind, Patch, Preconditions};
use test_kit::{require_root, wait_until};

use super::LIMIT;
use super::objects::{KINDS, object};

/// Objects of each kind.
const MANY: usize = 2000;
/// Minimum duration in which watches are cut.
const CUTS: Duration = Duration::from_secs(60);
/// Number of concurrent requests.
const AT_ONCE: usize = 16;

/// An operation on an object.
#[derive(Clone, Copy)]
enum Act {
    Create,
    Change,
    Delete,
}

impl Act {
    fn of(self, number: usize) -> bool {
        match self {
            Act::Create => true,
            Act::Change => number.is_multiple_of(10),
            Act::Delete => number.is_multiple_of(7),
        }
    }

    async fn request(self, api: &dyn Api, kind: Kind, number: usize) -> Result<(), ApiError> {
        let json = |version| object(kind, number, version);
        let bytes = |version| Bytes::from(json(version).to_string());
        let name = json(0)["metadata"]["name"].as_str().unwrap().to_owned();
        let key = Key::new(if kind.namespaced() { "default" } else { "" }, name);
        match self {
            Act::Create => api.create(kind, in_default(kind, json(0))).await.map(drop),
            Act::Change => api.patch(kind, &key, false, Patch::Merge(bytes(1))).await.map(drop),
            Act::Delete => api.delete(kind, &key, Preconditions::default()).await,
        }
    }

    /// Applies it to one object. Retries requests that a restarting server does not accept yet.
    async fn on(self, api: &dyn Api, kind: Kind, number: usize) {
        let begin = Instant::now();
        while let Err(error) = self.request(api, kind, number).await {
            assert!(error.is_temporary() && begin.elapsed() < LIMIT, "{kind:?} {number}: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Applies it to all objects.
    async fn on_all(self, api: &Arc<dyn Api>) {
        let kinds = [&KINDS[..], &[Kind::Namespace, Kind::Node]].concat();
        let numbers = (0..MANY).filter(|number| self.of(*number));
        let all = numbers.flat_map(|number| kinds.iter().map(move |kind| (*kind, number)));
        stream::iter(all).for_each_concurrent(AT_ONCE, |(kind, number)| self.on(&**api, kind, number)).await;
    }
}

/// The object in its namespace, as requests have it.
fn in_default(kind: Kind, mut object: serde_json::Value) -> Bytes {
    if kind.namespaced() {
        object["metadata"]["namespace"] = "default".into();
    }
    object.to_string().into()
}

/// Sets the flag when dropped.
struct Done<'d>(&'d AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn many_objects_of_each_kind_while_watches_are_cut_every_second() {
    require_root!();
    let mut cluster = Cluster::new(&custom_resource_definitions());
    cluster.start();
    let begin = Instant::now();
    let (done, cuts) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        // Also set when an assertion fails.
        let _done = Done(&done);
        let (stage, gate) = (&cluster.stage, &cluster.gate);
        let cut = || {
            while !done.load(Ordering::Relaxed) || begin.elapsed() < CUTS {
                thread::sleep(Duration::from_secs(1));
                cuts.fetch_add(gate.cut(), Ordering::Relaxed);
            }
        };
        thread::Builder::new().spawn_scoped(scope, cut).unwrap();
        // A separate connection, which is never cut.
        let writers = stage.gate().unwrap();
        let kubeconfig = writers.kubeconfig(User::Admin).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = module("server", "The API server", [invoke(|_: Option<Arc<dyn Api>>| ())]);
            let mut hive = TestHive::new([k8s_client::cell(), server])
                .set("k8s-kubeconfig-path", kubeconfig.display())
                .set("k8s-client-qps", 0);
            hive.start().await;
            let api = hive.get::<dyn Api>();
            Act::Create.on_all(&api).await;
            // Compaction removes the history, then etcd dies.
            stage.compact().unwrap();
            stage.kill_etcd().unwrap();
            stage.start_etcd().unwrap();
            wait_until("the API server has etcd again", LIMIT, || {
                stage.kubectl(&["get", "--raw", "/readyz"]).is_ok()
            });
            Act::Change.on_all(&api).await;
            Act::Delete.on_all(&api).await;
            drop(api);
            hive.stop().await;
        });
        // Namespaces go when their last finalizer does, which the test has to remove.
        for number in [0, 7, 14] {
            let mut namespace = object(Kind::Namespace, number, 0);
            namespace["spec"] = serde_json::json!({"finalizers": []});
            let path = format!("/api/v1/namespaces/o-{number}/finalize");
            stage.kubectl_with(&["replace", "--raw", &path, "-f", "-"], &namespace.to_string()).unwrap();
        }
    });
    let counts = cluster.until_equal();
    let left = (0..MANY).filter(|number| !number.is_multiple_of(7)).count();
    let wanted = [
        ("k8s-ciliumcidrgroups", left),
        ("k8s-ciliumendpoints", left),
        ("k8s-ciliumidentities", left),
        ("k8s-ciliumnodes", left + 1),
        ("k8s-endpointslices", left),
        ("k8s-namespaces", MANY - 3 + 4),
        ("k8s-networkpolicies", left),
        ("k8s-nodes", 1),
        ("k8s-pods", left),
        ("k8s-policies", 2 * left),
        ("k8s-services", left + 1),
    ];
    assert_eq!(counts, wanted.into(), "and those that the server and the agent create");
    let cuts = cuts.into_inner();
    assert!(cuts > 300, "every second all watches were cut: {cuts}");
}
