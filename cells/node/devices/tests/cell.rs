//! The cell alone in a hive, on the real kernel.

use std::sync::Arc;

use devices::{Device, NodeAddress, Route};
use hive::prelude::*;
use statedb::{Db, Table};
use test_kit::{Sandbox, require_root};

type Tables = (Arc<Table<Device>>, Arc<Table<Route>>, Arc<Table<NodeAddress>>);

fn hive(tables: Arc<parking_lot::Mutex<Option<Tables>>>) -> TestHive {
    TestHive::new([
        provide(|| Arc::new(Db::new())),
        devices::cell(),
        invoke(
            move |devices: Arc<Table<Device>>,
                  routes: Arc<Table<Route>>,
                  addresses: Arc<Table<NodeAddress>>,
                  lifecycle: Lifecycle| {
                let (found, slot) = (Arc::clone(&devices), Arc::clone(&tables));
                lifecycle
                    .hook("user")
                    .on_start(move |_| async move {
                        // Start hooks of cells that need a table find it filled.
                        let snapshot = found.snapshot();
                        anyhow::ensure!(found.initialized(&snapshot));
                        anyhow::ensure!(found.get(&snapshot, Device::by_name("lo")).is_some());
                        *slot.lock() = Some((devices, routes, addresses));
                        Ok(())
                    })
                    .add();
            },
        ),
    ])
}

fn in_sandbox(work: impl AsyncFnOnce(&Sandbox)) {
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&sandbox));
}

fn rows(addresses: &Table<NodeAddress>) -> Vec<String> {
    let snapshot = addresses.snapshot();
    let rows = addresses.all(&snapshot).map(|row| row.row().join(" "));
    rows.collect()
}

#[test]
fn tables_are_filled_at_the_start_and_followed_afterwards() {
    require_root!();
    in_sandbox(async |sandbox| {
        let world = sandbox.netns("world").unwrap();
        sandbox.host().veth("ext0", &world, "peer0").unwrap();
        sandbox.host().ip("addr add 10.99.0.1/24 dev ext0").unwrap();
        let slot = Arc::default();
        let mut hive = hive(Arc::clone(&slot)).set("devices", "ext+");
        hive.start().await;
        let (devices, routes, addresses) = slot.lock().take().unwrap();
        let snapshot = devices.snapshot();
        let ext0 = devices.get(&snapshot, Device::by_name("ext0")).unwrap();
        assert!(ext0.selected, "{}", ext0.not_selected_reason);
        assert!(routes.initialized(&snapshot) && addresses.initialized(&snapshot));
        let start = rows(&addresses);
        assert!(start.contains(&"10.99.0.1 true true ext0".to_owned()), "{start:?}");

        sandbox.host().ip("addr add 10.98.0.1/24 dev ext0").unwrap();
        let second = "10.98.0.1 true true ext0".to_owned();
        hive.until("the second address", || rows(&addresses).contains(&second)).await;
        sandbox.host().ip("link del ext0").unwrap();
        let lo = ["::1 false true *", "127.0.0.1 false true *"];
        hive.until("the addresses to be gone", || rows(&addresses) == lo).await;
        let health = hive.health("devices-controller.job-devices-controller");
        assert_eq!(health.message, "Running");
        hive.stop().await;
    });
}

#[test]
fn a_bad_option_stops_the_start() {
    require_root!();
    in_sandbox(async |_| {
        let mut hive = hive(Arc::default()).set("devices", "eth0,a/b");
        let error = hive.try_start().await.unwrap_err().to_string();
        assert!(error.contains("option devices: 'a/b' is wrong"), "{error}");
    });
}
