//! The graph and a start as pictures.

use std::sync::Arc;

use hive::prelude::*;

trait Kv: Send + Sync {}
#[derive(Object)]
struct Etcd;
impl Kv for Etcd {}
#[derive(Object)]
struct Api;
#[derive(Object)]
struct Idle;

#[derive(hive::Config)]
struct ApiConfig {
    #[flag(default = 80)]
    port: u16,
}

fn new_etcd() -> Arc<dyn Kv> {
    Arc::new(Etcd)
}
fn new_api(
    _: Arc<dyn Kv>,
    _: Option<Arc<Idle>>,
    routes: Group<&'static str>,
    config: Config<ApiConfig>,
) -> Api {
    assert!(config.port > 0 && !routes.is_empty());
    Api
}
fn route() -> Member<&'static str> {
    Member("/v1")
}
fn same(kv: Arc<dyn Kv>) -> Arc<dyn Kv> {
    kv
}
fn serve(_: Arc<Api>) {}
fn new_idle() -> Idle {
    Idle
}

#[derive(hive::Config)]
struct LbConfig {
    enable_lb: bool,
}
#[derive(Object)]
struct Lb;
fn new_lb(_: Arc<dyn Kv>) -> Lb {
    Lb
}

fn hive() -> Hive {
    let api = module(
        "api",
        "REST API",
        [config::<ApiConfig>(), provide(new_api), provide(route), invoke(serve), provide(|| Arc::new(7_u8))],
    );
    let kv =
        module("kv", "Key-value store", [provide(new_etcd), module("deep", "x", provide_private(new_idle))]);
    let lb = module("lb", "Load balancer", [config::<LbConfig>(), provide(new_lb)]);
    let look = invoke(|_: Arc<hive::HealthTree>, _: Option<Arc<Lb>>, _: Arc<u8>| ());
    Hive::builder([decorate(same, api), kv, lb.when(|c: &LbConfig| c.enable_lb), look]).build().unwrap()
}

/// Returns a text without the line numbers of this file.
fn unnumbered(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("picture.rs:") {
        out += before;
        out += "picture.rs:_";
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    out + rest
}

/// Compares with a file of `tests/pictures`; `UPDATE=1` writes it.
fn same_as(file: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures").join(file);
    let text = unnumbered(text);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{file}; UPDATE=1 writes it");
}

#[test]
fn every_format() {
    let hive = hive();
    same_as("tree.txt", &hive.tree());
    same_as("graph.dot", &hive.dot());
    same_as("graph.mmd", &hive.mermaid());
    same_as("graph.json", &hive.json());
}

/// A moved line, or an additional constructor, changes nothing else in the JSON.
#[test]
fn json_differs_where_the_graph_does() {
    let graph = |cells: Vec<Cell>| Hive::builder(cells).build().unwrap().json();
    let needing = || invoke(|_: Group<&'static str>| ());
    let before = graph(vec![module("m", "x", provide(route)), needing()]);
    let moved = graph(vec![module("m", "x", provide(route)), needing()]);
    let after = graph(vec![module("m", "x", [provide(new_idle), provide(route)]), needing()]);
    // The closure is another one in each call.
    assert_eq!(before, moved);
    let lines: std::collections::HashSet<&str> = before.lines().collect();
    let new: Vec<&str> = after.lines().filter(|line| !lines.contains(line)).map(str::trim).collect();
    assert_eq!(new, ["\"Arc<Idle>\"", "\"name\": \"m/new_idle\",", "\"state\": \"not used\""]);
}

/// Hooks with known durations on a paused clock, drawn to scale.
#[tokio::test(start_paused = true)]
async fn timeline() {
    use std::time::Duration;

    async fn slow_etcd(lifecycle: Lifecycle) -> Etcd {
        tokio::time::sleep(Duration::from_millis(100)).await;
        lifecycle
            .hook("connect")
            .on_start(|_| async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok(())
            })
            .add();
        Etcd
    }
    fn serve(_: Arc<Etcd>, lifecycle: Lifecycle) {
        lifecycle
            .hook("listen & <serve>")
            .on_start(|_| async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                anyhow::bail!("address \"in use\"")
            })
            .add();
    }
    let cells = [module("kv", "x", provide(slow_etcd)), module("api", "x", invoke(serve))];
    let seen: Arc<parking_lot::Mutex<Option<Arc<hive::Timeline>>>> = Arc::default();
    let see = seen.clone();
    let mut hive = TestHive::new([
        bundle(cells),
        invoke(move |timeline: Arc<hive::Timeline>| *see.lock() = Some(timeline)),
    ]);
    hive.try_start().await.unwrap_err();
    let timeline = seen.lock().take().unwrap();
    assert_eq!(timeline.duration(), Some(Duration::from_millis(500)));
    same_as("start.svg", &timeline.svg());
}
