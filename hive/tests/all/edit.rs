//! Modules that a program leaves out of somebody else's bundle, or replaces in it.

use std::sync::Arc;

use hive::Service;
use hive::prelude::*;
use parking_lot::Mutex;

struct Store(&'static str);

#[derive(hive::Config)]
struct DiskConfig {
    /// Keep things on disk
    #[flag(default = true)]
    disk: bool,
}

type Log = Arc<Mutex<Vec<&'static str>>>;

/// A bundle as others publish it: a store that an option switches, in a module inside, and something that runs.
fn library(log: &Log) -> Cell {
    let log = log.clone();
    let disk = module("disk", "x", [config::<DiskConfig>(), provide(|| Arc::new(Store("disk")))]);
    let banner = move |store: Option<Arc<Store>>| log.lock().push(store.map_or("none", |store| store.0));
    bundle([
        module("library", "x", [disk.when(|config: &DiskConfig| config.disk)]),
        module("banner", "x", [invoke(banner)]),
    ])
}

fn memory() -> Cell {
    module("disk", "The same name", [provide(|| Arc::new(Store("memory")))])
}

async fn ran(cells: impl Fn(&Log) -> Cell) -> Vec<&'static str> {
    let log = Log::default();
    let mut hive = Hive::builder(cells(&log)).build().unwrap();
    hive.populate().await.unwrap();
    std::mem::take(&mut *log.lock())
}

#[tokio::test]
async fn a_module_is_left_out_with_its_condition_or_replaced() {
    assert_eq!(ran(library).await, ["disk"]);
    // The condition looks at a struct that only the module declares: it goes, too.
    assert_eq!(ran(|log| library(log).without("disk")).await, ["none"]);
    assert_eq!(ran(|log| library(log).without("library.disk")).await, ["none"]);
    assert_eq!(ran(|log| library(log).without("library")).await, ["none"]);
    assert_eq!(ran(|log| library(log).replace_module("disk", memory())).await, ["memory"]);
    // The outer edit is of what the inner one has put there.
    assert_eq!(ran(|log| library(log).replace_module("disk", memory()).without("disk")).await, ["none"]);
    let module_outside =
        |log: &Log| module("outside", "x", library(log)).replace_module("library.disk", memory());
    assert_eq!(ran(module_outside).await, ["memory"]);
    assert!(ran(|log| library(log).without("banner")).await.is_empty());
}

#[test]
fn a_module_that_is_not_there_is_named_with_the_nearest() {
    let text =
        hive::validate(library(&Log::default()).without("bannner").without("isk")).unwrap_err().to_string();
    assert!(text.contains("2 faults in the graph"), "{text}");
    assert!(
        text.contains("no module `bannner` to leave out or replace, asked for at hive/tests/all/edit.rs:"),
        "{text}"
    );
    assert!(text.contains("did you mean `banner`?"), "{text}");
    assert!(text.contains("no module `isk`"), "the end of a word is not the end of a path: {text}");
}

#[tokio::test]
async fn an_object_is_started_and_stopped_by_its_methods() {
    struct Server(Log);
    impl Service for Server {
        async fn start(&self, _cx: HookCx) -> anyhow::Result<()> {
            self.0.lock().push("start");
            Ok(())
        }
        async fn stop(&self, _cx: HookCx) -> anyhow::Result<()> {
            self.0.lock().push("stop");
            Ok(())
        }
    }
    let log = Log::default();
    let ours = log.clone();
    let mut hive = TestHive::new(invoke(move |lifecycle: Lifecycle| {
        let server = Arc::new(Server(ours.clone()));
        lifecycle.service("server", &server).add();
        lifecycle
            .hook("after")
            .on_start_with(&server, |server, _| async move {
                server.0.lock().push("after");
                Ok(())
            })
            .add();
    }));
    hive.start().await;
    assert_eq!(hive.hook_order(), ["server", "after"]);
    hive.stop().await;
    assert_eq!(*log.lock(), ["start", "after", "stop"]);
}

#[tokio::test]
async fn an_object_is_bound_to_its_interface() {
    trait Shop: Send + Sync {
        fn name(&self) -> String;
    }
    #[derive(Object)]
    struct Bakery(String);
    impl Shop for Bakery {
        fn name(&self) -> String {
            self.0.clone()
        }
    }
    let bakery =
        module("bakery", "x", [provide_private(|| Bakery("bread".into())), bind!(Bakery => dyn Shop)]);
    let mut hive = Hive::builder([bakery, invoke(|_: Arc<dyn Shop>| ())]).build().unwrap();
    hive.populate().await.unwrap();
    assert_eq!(hive.get::<dyn Shop>().unwrap().name(), "bread");
    assert!(hive.get::<Bakery>().is_none(), "only the interface is exported");
}
