//! The ranges of a file of ip-masq-agent in real maps, through its changes and those of the agent.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use bpf::Map;
use datapath_abi::{IpMasqKey4, IpMasqKey6};
use hive::prelude::*;
use maps::Maps;
use test_kit::{Sandbox, require_root};

const JOB: &str = "ip-masq-agent.job-ranges";

fn hive(sandbox: &Sandbox, file: &Path) -> TestHive {
    let all = [
        statedb::cell(),
        metrics::cell(),
        maps::cell(),
        tunnel::cell(),
        masquerade::cell(),
        masquerade::ip_masq_agent(),
    ];
    TestHive::new(all)
        .set("bpf-root", sandbox.bpf_root().display())
        .set("bpf-map-dynamic-size-ratio", "0")
        .set("preallocate-bpf-maps", "false")
        .set("enable-bpf-masquerade", "true")
        .set("enable-ip-masq-agent", "true")
        .set("ip-masq-agent-config-path", file.display())
}

/// Returns the ranges of both maps.
fn ranges(hive: &TestHive) -> Vec<String> {
    let maps: Arc<Maps> = hive.get();
    let mut found = Vec::new();
    if let Some(map) = maps.shared("cilium_ipmasq_v4").unwrap() {
        let map: Map<IpMasqKey4, u8> = Map::new(map).unwrap();
        let text =
            |key: IpMasqKey4| format!("{}/{}", Ipv4Addr::from(key.address.to_ne_bytes()), key.prefixlen);
        found.extend(map.keys().unwrap().into_iter().map(text));
    }
    if let Some(map) = maps.shared("cilium_ipmasq_v6").unwrap() {
        let map: Map<IpMasqKey6, u8> = Map::new(map).unwrap();
        let text = |key: IpMasqKey6| {
            let octets: Vec<u8> = key.address.iter().flat_map(|word| word.to_ne_bytes()).collect();
            format!("{}/{}", Ipv6Addr::from(<[u8; 16]>::try_from(octets).unwrap()), key.prefixlen)
        };
        found.extend(map.keys().unwrap().into_iter().map(text));
    }
    found.sort_unstable();
    found
}

async fn until_ranges(hive: &TestHive, desired: &[&str]) {
    let mut desired: Vec<&str> = desired.to_vec();
    desired.sort_unstable();
    hive.until(&format!("the ranges {desired:?}"), || ranges(hive) == desired).await;
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
}

#[test]
fn a_file_is_followed_through_errors_and_restarts() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    // The folder is mounted later than the agent starts.
    let file = sandbox.dir().join("config/ranges");
    block_on(async {
        let mut hive = hive(&sandbox, &file);
        hive.start().await;
        let masquerading: Arc<masquerade::BpfMasquerading> = hive.get();
        masquerading.ranges().await;
        let defaults = ranges(&hive);
        assert_eq!(defaults.len(), 13, "{defaults:?}");
        assert!(defaults.contains(&"10.0.0.0/8".to_owned()) && defaults.contains(&"fe80::/10".to_owned()));

        fs::create_dir(sandbox.dir().join("config")).unwrap();
        fs::write(&file, "nonMasqueradeCIDRs: [10.1.0.0/16, 'fd00::/8']\nmasqLinkLocal: true\n").unwrap();
        until_ranges(&hive, &["10.1.0.0/16", "fd00::/8", "fe80::/10"]).await;

        // A wrong file is named and changes nothing.
        fs::write(&file, "nonMasqueradeCIDRs:\n- 10.2.0.0/16\n- 10.3.0.0\n").unwrap();
        hive.until("the fault to be reported", || hive.health(JOB).level == Level::Degraded).await;
        let error = hive.health(JOB).error;
        let place = format!("{}: line 3: nonMasqueradeCIDRs[1]: '10.3.0.0' is wrong; give", file.display());
        assert!(error.starts_with(&place), "{error}");
        assert_eq!(ranges(&hive), ["10.1.0.0/16", "fd00::/8", "fe80::/10"]);
        hive.stop().await;
    });
    block_on(async {
        // A restart with the faulty file keeps them as well, and the programs need not wait for another one.
        let mut hive = hive(&sandbox, &file);
        hive.start().await;
        let masquerading: Arc<masquerade::BpfMasquerading> = hive.get();
        masquerading.ranges().await;
        assert_eq!(ranges(&hive), ["10.1.0.0/16", "fd00::/8", "fe80::/10"]);
        fs::write(
            &file,
            "{\"nonMasqueradeCIDRs\": [\"10.1.0.0/16\"], \"masqLinkLocalIPv6\": true, \"more\": 1}",
        )
        .unwrap();
        until_ranges(&hive, &["10.1.0.0/16", "169.254.0.0/16"]).await;
        hive.until("the key to be reported", || hive.health(JOB).error.contains(": more: unknown")).await;
        fs::remove_file(&file).unwrap();
        let defaults: Vec<String> = {
            hive.until("the defaults", || ranges(&hive).len() == 13).await;
            ranges(&hive)
        };
        assert!(defaults.contains(&"192.168.0.0/16".to_owned()));
        hive.until("all to be well", || hive.health(JOB).level == Level::Ok).await;
        hive.stop().await;
    });
    block_on(async {
        // Ranges of a previous run, or of another process, that the file does not have go at the start.
        let mut hive = hive(&sandbox, &file).set("enable-ipv6", "false");
        hive.start().await;
        fs::write(&file, "nonMasqueradeCIDRs: ['fd00::/8']\n").unwrap();
        until_ranges(&hive, &["169.254.0.0/16"]).await;
        hive.stop().await;
    });
}

#[test]
fn a_mounted_config_map_is_followed() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let mount = sandbox.dir().join("mount");
    fs::create_dir(&mount).unwrap();
    let publish = |data: &str, content: &str| {
        fs::create_dir(mount.join(data)).unwrap();
        fs::write(mount.join(data).join("config"), content).unwrap();
        symlink(data, mount.join("..next")).unwrap();
        fs::rename(mount.join("..next"), mount.join("..data")).unwrap();
    };
    publish("..1", "nonMasqueradeCIDRs: [10.1.0.0/16]\nmasqLinkLocalIPv6: true\n");
    symlink("..data/config", mount.join("config")).unwrap();
    block_on(async {
        let mut hive = hive(&sandbox, &mount.join("config"));
        hive.start().await;
        until_ranges(&hive, &["10.1.0.0/16", "169.254.0.0/16"]).await;
        publish("..2", "nonMasqueradeCIDRs: [10.2.0.0/16]\nmasqLinkLocalIPv6: true\n");
        until_ranges(&hive, &["10.2.0.0/16", "169.254.0.0/16"]).await;
        // A full map has no room for other ranges beside its own.
        let list = |first: usize| {
            let range = |at: usize| format!("{}.{}.{}.0/24", first, at >> 8, at & 0xff);
            let list: Vec<String> = (0..16_383).map(range).collect();
            format!("nonMasqueradeCIDRs: [{}]\nmasqLinkLocalIPv6: true\n", list.join(","))
        };
        for (data, first) in [("..3", 10), ("..4", 11)] {
            publish(data, &list(first));
            let known = format!("{first}.0.7.0/24");
            hive.until("all ranges", || {
                let found = ranges(&hive);
                found.len() == 16_384 && found.contains(&known)
            })
            .await;
        }
        assert_eq!(hive.health(JOB).level, Level::Ok, "{:?}", hive.health(JOB));
        hive.stop().await;
    });
}
