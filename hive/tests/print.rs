//! The graph as text.

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

fn hive() -> Hive {
    let api =
        module("api", "REST API", [config::<ApiConfig>(), provide(new_api), provide(route), invoke(serve)]);
    let kv =
        module("kv", "Key-value store", [provide(new_etcd), module("deep", "x", provide_private(new_idle))]);
    Hive::builder([decorate(same, api), kv]).build().unwrap()
}

#[test]
fn tree() {
    let text: String = hive()
        .tree()
        .lines()
        .map(|line| match line.split_once(" (hive/tests/print.rs:") {
            Some((before, after)) => {
                format!("{before}{}\n", after.trim_start_matches(|c| c != ')').trim_start_matches(')'))
            }
            None => format!("{line}\n"),
        })
        .collect();
    assert_eq!(
        text,
        "\
built-in built into the hive (not used)
    -> Arc<Events>
built-in built into the hive (not used)
    -> Arc<HealthTree>
built-in built into the hive (not used)
    -> Arc<Jobs>
built-in built into the hive (not used)
    -> Arc<Settings>
built-in built into the hive (not used)
    -> Arc<LiveConfig>
decorated
    decorate same
        <- Arc<dyn Kv>
        -> Arc<dyn Kv>
    module api: REST API
        config ApiConfig
            -> Config<ApiConfig>
        provide new_api
            <- Arc<dyn Kv>, Option<Arc<Idle>>, Group<&str>, Config<ApiConfig>
            -> Arc<Api>
        provide route
            -> Group<&str>
        invoke serve
            <- Arc<Api>
module kv: Key-value store
    provide new_etcd
        -> Arc<dyn Kv>
    module deep: x
        private new_idle (not used)
            -> Arc<Idle>
"
    );
}

#[test]
fn dot() {
    assert_eq!(
        hive().dot(),
        r#"digraph hive {
  rankdir=LR;
  node [shape=box, fontname=monospace];
  n0 [label="built-in\nbuilt into the hive", color=grey, fontcolor=grey];
  n1 [label="built-in\nbuilt into the hive", color=grey, fontcolor=grey];
  n2 [label="built-in\nbuilt into the hive", color=grey, fontcolor=grey];
  n10 [label="built-in\nbuilt into the hive", color=grey, fontcolor=grey];
  n11 [label="built-in\nbuilt into the hive", color=grey, fontcolor=grey];
  subgraph cluster_1 {
    label="decorated";
    n3 [label="decorate\nsame"];
    subgraph cluster_2 {
      label="api";
      n4 [label="config\nApiConfig"];
      n5 [label="provide\nnew_api"];
      n6 [label="provide\nroute"];
      n7 [label="invoke\nserve", style=bold];
    }
  }
  subgraph cluster_3 {
    label="kv";
    n8 [label="provide\nnew_etcd"];
    subgraph cluster_4 {
      label="kv.deep";
      n9 [label="private\nnew_idle", color=grey, fontcolor=grey];
    }
  }
  n8 -> n3 [label="Arc<dyn Kv>"];
  n3 -> n5 [label="Arc<dyn Kv>"];
  "Group<&str>" -> n5;
  n4 -> n5 [label="Config<ApiConfig>"];
  n6 -> "Group<&str>";
  n5 -> n7 [label="Arc<Api>"];
  "Group<&str>" [shape=diamond];
}
"#
    );
}
