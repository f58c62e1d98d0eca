//! The cell in a hive, on the kernel of a namespace.

use std::sync::Arc;

use desired_devices::{DesiredDevice, DesiredDevices};
use hive::prelude::*;
use statedb::TableDisplay;
use test_kit::{Sandbox, require_root};

/// Skips a test where the kernel has no VLAN devices (module 8021q).
macro_rules! require_vlans {
    ($sandbox:expr) => {
        if $sandbox.host().ip("link add link eth0 name probe type vlan id 1").is_err() {
            test_kit::skip!("the kernel has no VLAN devices");
        }
        $sandbox.host().ip("link del probe").unwrap();
    };
}

fn in_sandbox(work: impl AsyncFnOnce(&Sandbox)) {
    let sandbox = Sandbox::new().unwrap();
    sandbox
        .host()
        .ip_batch("link add eth0 type veth peer name peer\nlink set eth0 up\nlink set peer up\n")
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&sandbox));
}

async fn started(sandbox: &Sandbox) -> (TestHive, Arc<DesiredDevices>) {
    let state = config::<local_node::StateConfig>();
    let cells = [statedb::cell(), devices::cell(), state, desired_devices::cell()];
    let mut hive = TestHive::needing::<DesiredDevices>(cells).set("state-dir", sandbox.state_dir().display());
    hive.start().await;
    let handle = hive.get::<DesiredDevices>();
    (hive, handle)
}

fn vlan(name: &str, id: u16) -> DesiredDevice {
    DesiredDevice::vlan(name, "eth0", id).unwrap()
}

/// The VLAN id and state of a device in the kernel; empty without one.
fn kernel(sandbox: &Sandbox, name: &str) -> String {
    let text = sandbox.host().ip(&format!("-d link show {name}")).unwrap_or_default();
    let id = text.split_once(" id ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
    let state = if text.contains(",UP") { " up" } else { "" };
    format!("{id}{state}")
}

fn row(handle: &DesiredDevices, owner: &str, name: &str) -> Vec<String> {
    let table = handle.table();
    let snapshot = table.snapshot();
    table.get(&snapshot, DesiredDevice::by_id(owner, name)).map(|row| row.row()).unwrap_or_default()
}

#[test]
fn lost_devices_return_and_those_of_others_stay() {
    require_root!();
    in_sandbox(async |sandbox| {
        require_vlans!(sandbox);
        let host = sandbox.host();
        host.ip("link add link eth0 name foreign type vlan id 9").unwrap();
        let (mut hive, handle) = started(sandbox).await;
        handle.upsert("a", vlan("d7", 7)).unwrap();
        handle.upsert("a", vlan("foreign", 9)).unwrap();
        handle.upsert("a", DesiredDevice::vlan("d8", "eth1", 8).unwrap()).unwrap();
        hive.until("the device", || kernel(sandbox, "d7") == "7 up").await;
        hive.until("its row", || row(&handle, "a", "d7")[3].starts_with("Done ")).await;
        let index = host.exec("cat /sys/class/net/eth0/ifindex").unwrap();
        let properties = format!("Type=vlan, ParentDevice=eth0 ({}), VLAN=7", index.trim());
        assert_eq!(row(&handle, "a", "d7")[..3], ["a", "d7", &properties]);
        hive.until("a refusal", || row(&handle, "a", "foreign")[3].contains("made by another process")).await;
        hive.until("no parent", || row(&handle, "a", "d8")[3].contains("no parent device eth1")).await;
        let error = handle.upsert("b", vlan("d7", 7)).unwrap_err().to_string();
        assert_eq!(error, "device d7: a desires one of this name already");

        host.ip("link del d7").unwrap();
        hive.until("the deleted device", || kernel(sandbox, "d7") == "7 up").await;
        handle.upsert("a", vlan("d7", 17)).unwrap();
        hive.until("the other id", || kernel(sandbox, "d7") == "17 up").await;
        host.ip_batch("link add eth1 type veth peer name peer1\nlink set eth1 up\n").unwrap();
        hive.until("the device of the parent that came late", || kernel(sandbox, "d8").starts_with('8'))
            .await;

        handle.remove_owner("a");
        hive.until("the deletion", || kernel(sandbox, "d7").is_empty() && kernel(sandbox, "d8").is_empty())
            .await;
        assert_eq!(kernel(sandbox, "foreign"), "9", "never touched");
        hive.stop().await;
    });
}

#[test]
fn a_restart_keeps_devices_and_prunes_after_its_sources() {
    require_root!();
    in_sandbox(async |sandbox| {
        require_vlans!(sandbox);
        let (mut hive, handle) = started(sandbox).await;
        for (name, id) in [("d1", 1), ("d2", 2), ("d3", 3)] {
            handle.upsert("a", vlan(name, id)).unwrap();
            hive.until("the device", || kernel(sandbox, name).starts_with(&id.to_string())).await;
        }
        hive.stop().await;
        let index = || sandbox.host().exec("cat /sys/class/net/d1/ifindex").unwrap();
        let before = index();

        let (mut hive, handle) = started(sandbox).await;
        let source = handle.register_initializer("test");
        handle.upsert("a", vlan("d1", 1)).unwrap();
        // Another owner takes a name over.
        handle.upsert("b", vlan("d2", 22)).unwrap();
        hive.until("the row", || row(&handle, "a", "d1")[3].starts_with("Done ")).await;
        hive.until("the other owner's", || kernel(sandbox, "d2") == "22 up").await;
        assert_eq!(kernel(sandbox, "d3"), "3 up", "a source is not complete");
        handle.finish(source);
        hive.until("the prune", || kernel(sandbox, "d3").is_empty()).await;
        assert_eq!((index(), kernel(sandbox, "d2")), (before, "22 up".to_owned()), "the same device");
        hive.stop().await;
    });
}
