//! The same entries in the kernel's maps.

use std::collections::BTreeMap;

use ::maps::{FamilyConfig, Maps, MapsConfig, Specs};
use test_kit::{Sandbox, require_root};

use super::model::{actual, expected};
use super::*;
use crate::KernelMaps;
use crate::lbmap::rows::{Family, LbMap, LbMaps};

const FAMILIES: FamilyConfig = FamilyConfig { enable_ipv4: true, enable_ipv6: true };

fn opened(sandbox: &Sandbox, rows: u32) -> (Maps, Arc<KernelMaps>) {
    let bpf_root = sandbox.bpf_root().to_str().unwrap().to_owned();
    with_tables(&bpf_root, rows, Some(251))
}

fn with_tables(bpf_root: &str, rows: u32, positions: Option<u32>) -> (Maps, Arc<KernelMaps>) {
    let config = MapsConfig { bpf_root: bpf_root.to_owned(), bpf_lb_map_max: rows, ..MapsConfig::default() };
    let maps = Maps::of(Specs::new(config, FAMILIES).with_maglev(positions));
    maps.open().unwrap();
    let kernel = Arc::new(KernelMaps::open(&maps, &FAMILIES).unwrap());
    (maps, kernel)
}

fn rows(kernel: &KernelMaps) -> BTreeMap<Key, Value> {
    kernel.rows().unwrap().into_iter().collect()
}

fn both_families() -> State {
    state(
        "services:\n- metadata: {name: web}\n  spec: {type: LoadBalancer, clusterIPs: [10.96.0.1, 'fd10::1'], \
         sessionAffinity: ClientIP, externalTrafficPolicy: Local, loadBalancerSourceRanges: [192.0.2.0/24, 'fd00::/8'], \
         ports: [{port: 80}, {port: 80, protocol: UDP}]}\n  \
         status: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: '2001:db8::1'}]}}\n\
         endpoints:\n- metadata: {name: a, labels: {kubernetes.io/service-name: web}}\n  addressType: IPv4\n  \
         ports: [{port: 8080}, {port: 8081, protocol: UDP}]\n  endpoints: [{addresses: [10.0.0.1]}, \
         {addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}}]\n\
         - metadata: {name: b, labels: {kubernetes.io/service-name: web}}\n  addressType: IPv6\n  \
         ports: [{port: 8080}]\n  endpoints: [{addresses: ['fd20::1']}, {addresses: ['fd20::2'], conditions: {ready: false}}]\n",
    )
}

#[test]
fn all_kinds_of_rows_are_written_read_and_deleted() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let (_maps, kernel) = opened(&sandbox, 1024);
    let (writer, content) = (writer(), both_families());
    writer.replace(Source::Api, content.clone());
    let mut balancer = Balancer::restore(kernel.clone()).unwrap();
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    let written = rows(&kernel);
    assert_eq!(actual(&written), expected(&content));
    for (key, value) in &written {
        assert_eq!(kernel.get(key).unwrap(), Some(*value), "{key:?}");
    }
    // The next agent finds all entries and has nothing to write.
    let mut balancer = Balancer::restore(kernel.clone()).unwrap();
    assert_eq!(balancer.restored(), 12);
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    assert_eq!(balancer.prune().unwrap().damaged.len(), 0);
    assert_eq!(rows(&kernel), written);
    let all: Vec<LbAddress> = desired(&writer).iter().map(|desired| desired.address).collect();
    balancer.delete(&all).into_iter().for_each(|result| result.unwrap());
    assert_eq!(rows(&kernel), BTreeMap::new());
}

#[test]
fn bytes_are_those_that_programs_read() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let (maps, kernel) = opened(&sandbox, 64);
    let writer = writer();
    let text = "services:\n- metadata: {name: web}\n  spec: {clusterIP: 10.96.0.1, sessionAffinity: ClientIP, ports: [{port: 80}]}\n\
        endpoints:\n- metadata: {name: a, labels: {kubernetes.io/service-name: web}}\n  addressType: IPv4\n  \
        ports: [{port: 8080}]\n  endpoints: [{addresses: [10.0.0.2]}]\n";
    writer.replace(Source::Api, state(text));
    let mut balancer = Balancer::restore(kernel).unwrap();
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    let dump = |map: LbMap| {
        let raw = bpf::RawMap::open(&maps.path(map.name())).unwrap();
        let (keys, values) = raw.entries().unwrap();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let layout = raw.layout();
        let pairs = keys.chunks(layout.key_size as usize).zip(values.chunks(layout.value_size as usize));
        let mut rows: Vec<String> =
            pairs.map(|(key, value)| format!("{} {}", hex(key), hex(value))).collect();
        rows.sort();
        rows
    };
    assert_eq!(
        dump(LbMap::Services(Family::V4)),
        [
            "0a6000010000000000000000 000000000000000000000000",
            "0a6000010050000006000000 302a00000100000110000000",
            "0a6000010050010006000000 010000000000000110000000",
        ]
    );
    assert_eq!(dump(LbMap::Backends(Family::V4)), ["01000000 0a0000021f90060000000000"]);
    assert_eq!(dump(LbMap::ReverseNat(Family::V4)), ["0001 0a6000010050"]);
    assert_eq!(dump(LbMap::AffinityMatch), ["0100000000010000 01"]);
}

#[test]
fn a_full_map_of_the_kernel_refuses_whole_services() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    // Each service has a wildcard, a master and a slot.
    let (_maps, kernel) = opened(&sandbox, 7);
    let text = |count: usize| {
        let service = |n| {
            format!("- metadata: {{name: s{n}}}\n  spec: {{clusterIP: 10.96.0.{n}, ports: [{{port: 80}}]}}\n")
        };
        let slice = |n| {
            format!(
                "- metadata: {{name: s{n}, labels: {{kubernetes.io/service-name: s{n}}}}}\n  addressType: IPv4\n  \
                 ports: [{{port: 8080}}]\n  endpoints: [{{addresses: [10.0.0.1]}}]\n"
            )
        };
        let services: String = (1..=count).map(service).collect();
        let slices: String = (1..=count).map(slice).collect();
        state(&format!("services:\n{services}endpoints:\n{slices}"))
    };
    let writer = writer();
    writer.replace(Source::Api, text(3));
    let mut balancer = Balancer::restore(kernel.clone()).unwrap();
    let results = balancer.update(&desired(&writer));
    let refused = results[2].as_ref().unwrap_err().to_string();
    assert!(
        refused.starts_with("map cilium_lb4_services_v2 is full: it holds at most 7 entries"),
        "{refused}"
    );
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 2);
    assert_eq!(actual(&rows(&kernel)), expected(&text(2)));
    // Capacity is free again.
    let mut fewer = text(3);
    fewer.services.remove(0);
    fewer.backends.remove(0);
    let gone = desired(&writer)[0].address;
    writer.replace(Source::Api, fewer.clone());
    balancer.delete(&[gone]).into_iter().for_each(|result| result.unwrap());
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    assert_eq!(actual(&rows(&kernel)), expected(&fewer));
}

#[test]
fn tables_are_maps_of_their_own_and_of_the_size_of_the_option() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let (maps, kernel) = opened(&sandbox, 64);
    let shares = [("10.55.0.1:9696/TCP", 7), ("10.55.0.2:9696/TCP", 9)].map(|(address, id)| {
        crate::lbmap::maglev::Share { address: address.parse().unwrap(), weight: 100, id }
    });
    let table: Arc<[u32]> = tables().table(&shares).into();
    let keys = [Key::Maglev(Family::V4, 3), Key::Maglev(Family::V6, 0x102)];
    kernel.put_tables(&keys.map(|key| (key, table.clone()))).unwrap();
    for key in keys {
        assert_eq!(kernel.table(&key).unwrap(), Some(table.clone()));
    }
    let digest = Value::Maglev(crate::lbmap::maglev::digest(&table));
    assert_eq!(rows(&kernel), BTreeMap::from(keys.map(|key| (key, digest))));
    let raw = bpf::RawMap::open(&maps.path("cilium_lb6_maglev")).unwrap();
    assert_eq!(raw.entries().unwrap().0, [1, 2], "numbers are big endian");
    kernel.delete(&[keys[0]]).unwrap();
    assert_eq!(kernel.table(&keys[0]).unwrap(), None);
    drop(kernel);
    // The next agent finds them; one with larger tables finds none, but can write its own.
    let bpf_root = sandbox.bpf_root().to_str().unwrap().to_owned();
    let pinned = || bpf::RawMap::open(&maps.path("cilium_lb6_maglev")).unwrap().id();
    let (_, again) = with_tables(&bpf_root, 64, Some(251));
    assert_eq!(again.table(&keys[1]).unwrap(), Some(table.clone()));
    assert_eq!(pinned(), raw.id());
    let (_, larger) = with_tables(&bpf_root, 64, Some(509));
    assert_eq!(rows(&larger), BTreeMap::new());
    assert_ne!(pinned(), raw.id());
    larger.put_tables(&[(keys[0], vec![7; 509].into())]).unwrap();
    // Without tables there is no map, either.
    with_tables(&bpf_root, 64, None);
    assert!(!maps.path("cilium_lb4_maglev").exists());
}
