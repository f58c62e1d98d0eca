mod lone;

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hive::HealthTree;
use hive::prelude::*;
use statedb::Table;
use tempfile::TempDir;

use k8s_types::core::Pod;

use crate::{PolicyObject, Row, SourceFile, Sources};

fn pod(name: &str, app: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{app: \"{app}\"}}\n---\n")
}

struct World {
    hive: TestHive,
    root: TempDir,
    pods: Arc<Table<Row<Pod>>>,
    files: Arc<Table<SourceFile>>,
}

fn cells() -> [Cell; 4] {
    let readers =
        |_: Arc<Table<Row<Pod>>>, _: Arc<Table<PolicyObject>>, _: Arc<Table<SourceFile>>, _: Arc<Sources>| ();
    [statedb::cell(), metrics::cell(), crate::cell(), invoke(readers)]
}

/// Starts a hive with the cluster folder `ROOT/cluster`.
async fn world(prepare: impl FnOnce(&std::path::Path)) -> World {
    let root = tempfile::tempdir().unwrap();
    prepare(root.path());
    let cluster = root.path().join("cluster");
    let mut hive = TestHive::new(cells()).set("cluster-folder", cluster.to_str().unwrap());
    hive.start().await;
    let (pods, files) = (hive.get::<Table<Row<Pod>>>(), hive.get::<Table<SourceFile>>());
    tokio::time::timeout(Duration::from_secs(10), pods.wait_initialized()).await.unwrap();
    World { hive, root, pods, files }
}

impl World {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join("cluster").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Replaces a file atomically: writes a temporary file and renames it.
    fn replace(&self, name: &str, text: &str) {
        let other = self.root.path().join("new");
        fs::write(&other, text).unwrap();
        fs::rename(other, self.path(name)).unwrap();
    }

    /// Returns `name=app` of all pods.
    fn pods(&self) -> String {
        let snapshot = self.pods.snapshot();
        let app = |pod: &Pod| pod.metadata.labels.get("app").map(ToString::to_string).unwrap_or_default();
        let text = |pod: &Pod| format!("{}={}", pod.metadata.name, app(pod));
        self.pods.all(&snapshot).map(|pod| text(pod)).collect::<Vec<_>>().join(" ")
    }

    fn files(&self) -> Vec<String> {
        self.files.all(&self.files.snapshot()).map(|row| row.file.to_string()).collect()
    }

    fn faults(&self) -> String {
        faults(&self.files).join("\n")
    }

    async fn until_pods(&self, pods: &str) {
        self.hive.until(pods, || self.pods() == pods).await;
    }

    /// Asserts continuously that a pod exists, until stopped: changes of a table coalesce a delete and a new insert
    /// into an update.
    fn guard(&self, pod: &'static str) -> Guard {
        let ended = Arc::new(AtomicBool::new(false));
        let (pods, end) = (self.pods.clone(), ended.clone());
        let eyes = tokio::task::spawn_blocking(move || {
            let mut gone = false;
            while !end.load(Ordering::Relaxed) {
                gone |= pods.get(&pods.snapshot(), Row::<Pod>::by_name("default", pod)).is_none();
            }
            gone
        });
        Guard { ended, eyes }
    }

    /// Waits for the time in which an unexpected event would arrive.
    async fn pass(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

struct Guard {
    ended: Arc<AtomicBool>,
    eyes: tokio::task::JoinHandle<bool>,
}

impl Guard {
    async fn was_gone(self) -> bool {
        self.ended.store(true, Ordering::Relaxed);
        self.eyes.await.unwrap()
    }
}

fn with_cluster(root: &std::path::Path) {
    fs::create_dir(root.join("cluster")).unwrap();
}

#[tokio::test]
async fn a_refresh_finds_all_that_existed_before() {
    let mut world = world(with_cluster).await;
    let sources = world.hive.get::<Sources>();
    for i in 0..50 {
        world.replace(&format!("p{i:02}.yaml"), &pod(&format!("p{i:02}"), "1"));
        sources.refresh().await;
        assert_eq!(world.pods.all(&world.pods.snapshot()).count(), i + 1);
    }
    world.hive.stop().await;
    tokio::time::timeout(Duration::from_secs(10), sources.refresh())
        .await
        .expect("sources that ended are not waited for");
}

#[tokio::test]
async fn files_are_read_at_start_and_followed() {
    let mut world = world(|root| {
        with_cluster(root);
        fs::write(root.join("cluster/a.yaml"), pod("a", "1")).unwrap();
        fs::write(root.join("cluster/b.json"), r#"{"kind": "Pod", "metadata": {"name": "b"}}"#).unwrap();
        fs::write(root.join("cluster/.hidden.yaml"), pod("h", "1")).unwrap();
        fs::write(root.join("cluster/README"), "no manifest").unwrap();
    })
    .await;
    assert_eq!(world.pods(), "a=1 b=");
    world.write("c.yml", &pod("c", "1"));
    world.until_pods("a=1 b= c=1").await;
    world.replace("a.yaml", &(pod("a", "2") + &pod("d", "2")));
    world.until_pods("a=2 b= c=1 d=2").await;
    world.write("a.yaml", &pod("d", "3"));
    world.until_pods("b= c=1 d=3").await;
    fs::remove_file(world.path("b.json")).unwrap();
    world.until_pods("c=1 d=3").await;
    world.write("a.yaml", "");
    world.until_pods("c=1").await;
    world.write("a.yaml", &pod("d", "3"));
    world.until_pods("c=1 d=3").await;
    fs::rename(world.path("c.yml"), world.path("c2.yaml")).unwrap();
    world.hive.until("the new name", || world.files() == ["a.yaml", "c2.yaml"]).await;
    assert_eq!((world.pods().as_str(), world.faults().as_str()), ("c=1 d=3", ""));
    world.hive.stop().await;
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_read() {
    use std::io::Write;
    let mut world = world(with_cluster).await;
    let mut file = fs::File::create(world.path("a.yaml")).unwrap();
    file.write_all(pod("a", "1").as_bytes()).unwrap();
    world.write("b.yaml", &pod("b", "1"));
    world.until_pods("b=1").await;
    // An event of another file does not cause it to be read.
    symlink("nowhere", world.path("c.yaml")).unwrap();
    fs::remove_file(world.path("b.yaml")).unwrap();
    world.until_pods("").await;
    file.write_all(pod("a2", "1").as_bytes()).unwrap();
    drop(file);
    world.until_pods("a=1 a2=1").await;
    // A file is rewritten in place: its objects are kept until it is closed.
    let mut file = fs::File::create(world.path("a.yaml")).unwrap();
    world.pass(250).await;
    assert_eq!(world.pods(), "a=1 a2=1");
    file.write_all(pod("a", "2").as_bytes()).unwrap();
    drop(file);
    world.until_pods("a=2").await;
    world.hive.stop().await;
}

#[tokio::test]
async fn a_file_replaced_in_two_steps_keeps_its_objects() {
    let mut world = world(with_cluster).await;
    world.write("a.yaml", &pod("a", "0"));
    world.until_pods("a=0").await;
    let guard = world.guard("a");
    for n in 1..20 {
        fs::rename(world.path("a.yaml"), world.path("a.yaml~")).unwrap();
        world.pass(5).await;
        world.write("a.yaml", &pod("a", &n.to_string()));
        world.until_pods(&format!("a={n}")).await;
    }
    assert!(!guard.was_gone().await);
    world.hive.stop().await;
}

#[tokio::test]
async fn the_folder_is_created_removed_and_replaced() {
    let mut world = world(|_| ()).await;
    assert_eq!(world.pods(), "");
    let cluster = world.root.path().join("cluster");
    fs::create_dir(&cluster).unwrap();
    world.write("a.yaml", &pod("a", "1"));
    world.until_pods("a=1").await;
    // By two renames, between which the folder does not exist.
    let (old, new) = (world.root.path().join("old"), world.root.path().join("next"));
    fs::create_dir(&new).unwrap();
    fs::write(new.join("a.yaml"), pod("a", "2")).unwrap();
    fs::write(new.join("b.yaml"), pod("b", "2")).unwrap();
    let guard = world.guard("a");
    fs::rename(&cluster, &old).unwrap();
    world.pass(50).await;
    fs::rename(&new, &cluster).unwrap();
    world.until_pods("a=2 b=2").await;
    assert!(!guard.was_gone().await);
    // Changes of the old folder are ignored.
    fs::write(old.join("x.yaml"), pod("x", "1")).unwrap();
    world.write("b.yaml", &pod("b", "3"));
    world.until_pods("a=2 b=3").await;
    fs::remove_dir_all(&cluster).unwrap();
    world.until_pods("").await;
    fs::create_dir(&cluster).unwrap();
    world.write("c.yaml", &pod("c", "1"));
    world.until_pods("c=1").await;
    world.hive.stop().await;
}

#[tokio::test]
async fn links_are_followed_as_in_a_mounted_config_map() {
    let mut world = world(|root| {
        let cluster = root.join("cluster");
        fs::create_dir_all(cluster.join("..1")).unwrap();
        fs::write(cluster.join("..1/a.yaml"), pod("a", "1")).unwrap();
        symlink("..1", cluster.join("..data")).unwrap();
        symlink("..data/a.yaml", cluster.join("a.yaml")).unwrap();
    })
    .await;
    assert_eq!(world.pods(), "a=1");
    for n in 2..5 {
        fs::create_dir(world.path(&format!("..{n}"))).unwrap();
        fs::write(world.path(&format!("..{n}/a.yaml")), pod("a", &n.to_string())).unwrap();
        symlink(format!("..{n}"), world.path("..tmp")).unwrap();
        fs::rename(world.path("..tmp"), world.path("..data")).unwrap();
        world.until_pods(&format!("a={n}")).await;
    }
    // A link to another folder; its target is replaced, then written in place.
    let target = world.root.path().join("target");
    fs::write(&target, pod("b", "1")).unwrap();
    symlink(&target, world.path("b.yaml")).unwrap();
    world.until_pods("a=4 b=1").await;
    let other = world.root.path().join("other");
    fs::write(&other, pod("b", "2")).unwrap();
    fs::rename(&other, &target).unwrap();
    world.until_pods("a=4 b=2").await;
    fs::write(&target, pod("b", "3")).unwrap();
    world.until_pods("a=4 b=3").await;
    // A cycle of links is only reported.
    symlink("d.yaml", world.path("c.yaml")).unwrap();
    symlink("c.yaml", world.path("d.yaml")).unwrap();
    world.hive.until("the cycle is reported", || world.faults().contains("c.yaml: cannot be read")).await;
    assert_eq!(world.pods(), "a=4 b=3");
    world.hive.stop().await;
}

#[tokio::test]
async fn a_folder_that_is_a_link_can_be_redirected() {
    let mut world = world(|root| {
        for version in ["v1", "v2"] {
            fs::create_dir(root.join(version)).unwrap();
            fs::write(root.join(version).join("a.yaml"), pod("a", version)).unwrap();
        }
        symlink("v1", root.join("cluster")).unwrap();
    })
    .await;
    assert_eq!(world.pods(), "a=v1");
    let guard = world.guard("a");
    symlink("v2", world.root.path().join("tmp")).unwrap();
    fs::rename(world.root.path().join("tmp"), world.root.path().join("cluster")).unwrap();
    world.until_pods("a=v2").await;
    assert!(!guard.was_gone().await);
    world.hive.stop().await;
}

#[tokio::test]
async fn a_refused_manifest_is_reported_and_its_object_kept() {
    let mut world = world(with_cluster).await;
    let good = pod("a", "1") + &pod("b", "1");
    world.write("x.yaml", &good);
    world.until_pods("a=1 b=1").await;
    world.replace("x.yaml", &(pod("a", "-") + &pod("b", "2")));
    world.until_pods("a=1 b=2").await;
    // Health is updated last.
    world.hive.until("health", || world.hive.health("k8s.cluster-folder").level == Level::Degraded).await;
    assert_eq!(
        world.faults(),
        "x.yaml: document 1, line 5: Pod default/a: metadata.labels.app: \"-\" is wrong; give at most 63 letters, \
         digits, '-', '_' and '.' with a letter or digit at both ends"
    );
    let health = world.hive.health("k8s.cluster-folder");
    assert!(
        health.error.contains("1 files have faults; the first: x.yaml: document 1, line 5"),
        "{}",
        health.error
    );
    let metrics = world.hive.get::<metrics::Metrics>().text();
    assert!(metrics.contains("cilium_k8s_manifest_faults{source=\"cluster-folder\"} 1"), "{metrics}");
    assert!(
        metrics.contains("cilium_k8s_manifest_objects{source=\"cluster-folder\",kind=\"Pod\"} 2"),
        "{metrics}"
    );
    world.replace("x.yaml", &good);
    world.hive.until("all is well", || world.hive.health("k8s.cluster-folder").level == Level::Ok).await;
    world.until_pods("a=1 b=1").await;
    world.hive.stop().await;
}

#[tokio::test]
async fn hostile_files_are_refused_and_the_rest_applies() {
    let mut world = world(with_cluster).await;
    world.write("good.yaml", &pod("a", "1"));
    world.write("binary.yaml", "");
    fs::write(world.path("binary.yaml"), [0xff, 0xfe, 0, 1]).unwrap();
    fs::create_dir(world.path("folder.yaml")).unwrap();
    let big = fs::File::create(world.path("big.json")).unwrap();
    big.set_len(crate::MAX_FILE + 1).unwrap();
    drop(big);
    world.write("kinds.yaml", "kind: Deployment\n---\nkind: pod\n---\n- 1\n---\nkind: [\n");
    world
        .hive
        .until("all are reported", || {
            ["binary.yaml", "folder.yaml", "big.json", "kinds.yaml"]
                .iter()
                .all(|name| world.faults().contains(name))
        })
        .await;
    let faults = world.faults();
    for part in [
        "binary.yaml: document 1, line 1: is not UTF-8",
        "folder.yaml: is no regular file",
        "big.json: has more than 16 MiB",
        "kinds.yaml: document 1, line 1: kind: Deployment is not read from here; give a kind that the agent",
        "kinds.yaml: document 2, line 3: kind: pod is no kind; did you mean Pod?",
        "kinds.yaml: document 3, line 5: kind: is missing",
        "kinds.yaml: document 4, line 8: is no YAML",
    ] {
        assert!(faults.contains(part), "{part} is not in\n{faults}");
    }
    world.until_pods("a=1").await;
    world.hive.stop().await;
}

#[tokio::test]
async fn policies_have_a_separate_folder() {
    let root = tempfile::tempdir().unwrap();
    let (cluster, policies) = (root.path().join("cluster"), root.path().join("policies"));
    for folder in [&cluster, &policies] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("p.yaml"), "kind: CiliumNetworkPolicy\nmetadata: {name: p}\nspec: {}\n")
            .unwrap();
        fs::write(folder.join("a.yaml"), pod("a", "1")).unwrap();
    }
    let mut hive = TestHive::new(cells())
        .set("cluster-folder", cluster.to_str().unwrap())
        .set("static-cnp-path", policies.to_str().unwrap());
    hive.start().await;
    let table = hive.get::<Table<PolicyObject>>();
    table.wait_initialized().await;
    let snapshot = table.snapshot();
    let keys: Vec<String> =
        table.all(&snapshot).map(|row| format!("{} {}", row.source, row.origin)).collect();
    assert_eq!(keys, ["cluster-folder p.yaml, document 1", "static-cnp-path p.yaml, document 1"]);
    let health = hive.get::<HealthTree>();
    let degraded = || health.at("k8s.static-cnp-path").is_some_and(|status| status.level == Level::Degraded);
    // Health is updated after the other objects are applied.
    hive.until("the pod is refused here", degraded).await;
    hive.stop().await;
}

#[tokio::test]
async fn an_overflow_of_the_queue_loses_nothing() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let mut world = world(with_cluster).await;
    world.write("a.yaml", &pod("a", "1"));
    world.write("b.yaml", &pod("b", "1"));
    world.until_pods("a=1 b=1").await;
    let mut file = fs::File::create(world.path("c.yaml")).unwrap();
    world.pass(50).await;
    // The job shares the test's thread, so it does not read the queue meanwhile.
    for _ in 0..limit {
        symlink("nowhere", world.path("x")).unwrap();
        fs::remove_file(world.path("x")).unwrap();
    }
    world.replace("a.yaml", &pod("a", "2"));
    fs::remove_file(world.path("b.yaml")).unwrap();
    std::io::Write::write_all(&mut file, pod("c", "1").as_bytes()).unwrap();
    drop(file);
    world.until_pods("a=2 c=1").await;
    world.write("a.yaml", &pod("a", "3"));
    world.until_pods("a=3 c=1").await;
    world.hive.stop().await;
}

/// Returns all faults with the names of their files.
fn faults(files: &Table<SourceFile>) -> Vec<String> {
    let snapshot = files.snapshot();
    let of = |row: &SourceFile| -> Vec<String> {
        row.faults.iter().map(|fault| format!("{}: {fault}", row.file)).collect()
    };
    files.all(&snapshot).flat_map(|row| of(row)).collect()
}

/// A file is rewritten in place repeatedly, with a pause in the middle, while refreshes are requested: the final state
/// is correct. (A partially written file may be read in the moment before the kernel reports the change; only a rename
/// is atomic.)
#[tokio::test(flavor = "multi_thread")]
async fn a_file_rewritten_in_place_converges() {
    use std::io::Write;
    let mut world = world(with_cluster).await;
    world.write("a.yaml", &(pod("a", "0") + &pod("b", "0")));
    world.until_pods("a=0 b=0").await;
    let sources = world.hive.get::<Sources>();
    let path = world.path("a.yaml");
    let writer = tokio::task::spawn_blocking(move || {
        for n in 1..200 {
            let mut file = fs::File::create(&path).unwrap();
            file.write_all(pod("a", &n.to_string()).as_bytes()).unwrap();
            std::thread::sleep(Duration::from_micros(300));
            file.write_all(pod("b", &n.to_string()).as_bytes()).unwrap();
        }
    });
    while !writer.is_finished() {
        sources.refresh().await;
    }
    writer.await.unwrap();
    world.until_pods("a=199 b=199").await;
    assert_eq!(world.faults(), "");
    world.hive.stop().await;
}
