//! The cell alone in a hive: options, hook order, table and REST answers.

use std::sync::Arc;

use api::{Operation, Request, Route};
use datapath_abi::{EndpointInfo, EndpointKey, LbService, LbServiceKey, PolicyEntry, PolicyKey};
use hive::prelude::*;
use maps::{FamilyConfig, MapRow, Maps, MapsConfig, policy_name};
use statedb::Table;
use test_kit::{Sandbox, require_root};

/// A replacement for the REST server that keeps the routes of cells.
#[derive(Object)]
struct Routes(Vec<Route>);

fn cells() -> Vec<Cell> {
    let collect = |routes: Group<Route>| Routes(routes.iter().cloned().collect());
    vec![
        statedb::cell(),
        maps::cell(),
        module("routes", "Collects routes", [provide(collect), invoke(|_: Arc<Routes>| ())]),
    ]
}

async fn get(
    hive: &TestHive,
    operation: Operation,
    params: &[(&'static str, &str)],
) -> (u16, serde_json::Value) {
    let routes: Arc<Routes> = hive.get();
    let route = routes.0.iter().find(|r| r.operation() == operation).unwrap();
    let response = route.call(Request::new(operation, params)).await;
    let status = response.status().as_u16();
    let body = response.body().await;
    (status, serde_json::from_slice(&body).unwrap_or(serde_json::Value::Null))
}

async fn events(hive: &TestHive, map: &str) -> String {
    let routes: Arc<Routes> = hive.get();
    let route = routes.0.iter().find(|r| r.operation() == Operation::GetMapNameEvents).unwrap();
    let response = route.call(Request::new(Operation::GetMapNameEvents, &[("name", map)])).await;
    assert_eq!(response.status().as_u16(), 200);
    String::from_utf8(response.body().await.to_vec()).unwrap()
}

#[test]
fn programs_learn_the_time_and_that_the_agent_runs() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut hive = TestHive::new(cells())
            .set("bpf-root", sandbox.bpf_root().display())
            .set("agent-liveness-update-interval", "10ms")
            .set("preallocate-bpf-maps", "false");
        hive.start().await;
        let maps: Arc<Maps> = hive.get();
        let row = |row: u32| maps.runtime_config().lookup(&row).unwrap().unwrap();
        hive.until("both rows to be written", || row(0) > 0 && row(1) > 0).await;
        let seen = row(1);
        hive.until("another sign of life", || row(1) > seen).await;
        let monotonic = u64::try_from(bpf::monotonic().as_nanos()).unwrap();
        assert!(monotonic - row(1) < 10_000_000_000, "{} at {monotonic}", row(1));
        let utc = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let read = (monotonic >> 9) + row(0);
        assert!(read.abs_diff(u64::try_from(utc.as_nanos() >> 9).unwrap()) < 1_000_000_000 >> 9, "{read}");
        hive.stop().await;
    });
}

#[test]
fn defaults_of_the_options_are_those_of_the_structs() {
    let compare = |maps: Config<MapsConfig>, families: Config<FamilyConfig>| {
        assert_eq!(*maps, MapsConfig::default());
        assert_eq!(*families, FamilyConfig::default());
    };
    let mut all = cells();
    all.push(module("compare", "Compares defaults", [invoke(compare)]));
    let mut hive = hive::Hive::builder(all).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(hive.populate()).unwrap();
}

#[test]
fn maps_are_open_in_the_hooks_of_users_and_shown_by_the_api() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let user = |maps: Arc<Maps>, _: Arc<Table<MapRow>>, lifecycle: Lifecycle| {
            lifecycle
                .hook("user")
                .on_start(move |_| async move {
                    let key = EndpointKey::v4("10.0.0.7".parse()?);
                    let info = EndpointInfo { lxc_id: 7, ifindex: 3, sec_id: 5, ..EndpointInfo::default() };
                    Ok(maps.lxc().update(&key, &info)?)
                })
                .add();
        };
        let mut all = cells();
        all.push(module("user", "Uses the maps in its hook", [invoke(user)]));
        let mut hive = TestHive::new(all)
            .set("bpf-root", sandbox.bpf_root().display())
            .set("preallocate-bpf-maps", "false")
            .set("enable-ipv6", "false");
        hive.start().await;
        let maps: Arc<Maps> = hive.get();
        let policy = bpf::RawMap::create(&maps.policy_spec(7)).unwrap();
        policy.pin(&maps.path(&policy_name(7))).unwrap();
        let policy: bpf::Map<PolicyKey, PolicyEntry> = bpf::Map::new(policy).unwrap();
        policy.update(&PolicyKey::any(true), &PolicyEntry::allow(0)).unwrap();

        let table: Arc<Table<MapRow>> = hive.get();
        hive.until("the table to be filled", || table.len(&table.snapshot()) >= 30).await;
        let snapshot = table.snapshot();
        let row = table.get(&snapshot, MapRow::by_name("cilium_lxc")).unwrap();
        assert_eq!((row.map_type.as_str(), row.value_size, row.flags), ("hash", 48, 0x81));

        let path = |name: &str| sandbox.bpf_root().join("tc/globals").join(name).display().to_string();
        let (status, one) = get(&hive, Operation::GetMapName, &[("name", "cilium_lxc")]).await;
        assert_eq!(status, 200);
        assert_eq!(one["path"], path("cilium_lxc"));
        assert_eq!(one["cache"][0]["key"], "10.0.0.7:0");
        assert_eq!(one["cache"][0]["desired-action"], "sync");
        let (status, list) = get(&hive, Operation::GetMap, &[]).await;
        assert_eq!(status, 200);
        let find =
            |name: &str| list["maps"].as_array().unwrap().iter().find(|m| m["path"] == path(name)).cloned();
        assert_eq!(find("cilium_policy_v2_00007").unwrap()["cache"][0]["key"], "Egress: 0 ANY");
        assert_eq!(find("cilium_ct4_global").unwrap()["cache"], serde_json::json!([]));
        assert_eq!(find("cilium_metrics").unwrap()["cache"], serde_json::Value::Null);
        assert!(
            find("cilium_ct6_global").is_none()
                && find("ep_config").is_none()
                && find("cilium_events").is_none()
        );
        // Entries of the load balancer's maps, and the last writes to them through any handle.
        let services = maps.shared("cilium_lb4_services_v2").unwrap().unwrap();
        let services: bpf::Map<LbServiceKey<u32>, LbService> = bpf::Map::new(services).unwrap();
        let service = LbServiceKey {
            address: u32::from_ne_bytes([10, 96, 0, 1]),
            dport: 80_u16.to_be(),
            proto: 6,
            ..LbServiceKey::default()
        };
        services.update_batch(&[(service, LbService::default())]).unwrap();
        let (_, rows) = get(&hive, Operation::GetMapName, &[("name", "cilium_lb4_services_v2")]).await;
        assert_eq!(rows["cache"][0]["key"], "10.96.0.1:80/TCP (0)");
        services.delete_batch(&[service]).unwrap();
        let (_, rows) = get(&hive, Operation::GetMapName, &[("name", "cilium_lb4_services_v2")]).await;
        assert_eq!(rows["cache"], serde_json::json!([]));
        let events = events(&hive, "cilium_lb4_services_v2").await;
        assert_eq!(events.lines().count(), 2, "{events}");
        assert!(events.lines().last().unwrap().starts_with("{\"action\":\"delete\","), "{events}");
        assert!(self::events(&hive, "cilium_lxc").await.contains("\"key\":\"10.0.0.7:0\""));
        assert_eq!(get(&hive, Operation::GetMapNameEvents, &[("name", "cilium_metrics")]).await.0, 404);
        assert_eq!(get(&hive, Operation::GetMapName, &[("name", "none")]).await.0, 404);
        assert_eq!(get(&hive, Operation::GetMapName, &[("name", "../globals")]).await.0, 404);
        hive.stop().await;
    });
}

#[test]
fn a_size_out_of_range_is_refused_before_anything_is_touched() {
    let mut hive = TestHive::new(cells()).set("bpf-policy-map-max", "100").set("bpf-root", "/nonexistent");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(hive.try_start()).unwrap_err().to_string();
    assert!(error.contains("option bpf-policy-map-max is 100, it must be between 256 and 65536"), "{error}");
}
