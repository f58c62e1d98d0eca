//! Signals of the real programs: full maps to conntrack garbage collection, identities that must authenticate.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::tc::Tc;
use bpf::{Direction, Map, MapFlags, MapSpec, MapType, ObjectFile, ObjectMap, RawMap, UpdateMode};
use datapath_abi::signal::{AuthEntry, AuthKey};
use datapath_abi::{CtEntry, CtTuple4, NodeConfig, Pod, PolicyEntry, PolicyKey, identity};
use datapath_api::{Datapath, EndpointDatapath};
use hive::prelude::*;
use maps::Maps;
use metrics::Metrics;
use test_kit::{Sandbox, require_root};

mod kit;

use devices::Netlink;
use kit::{allow_all, furnish, maps, node_config, pod_with_namespace, start};
use loader::ProgramSet;
use signals::Signals;

/// Our programs with plain hash maps, which refuse entries as a kernel does that finds none to evict: the map of IPv4
/// connections other than TCP has one entry and is full.
struct Full {
    collection: bpf::Collection,
    _connections: Map<CtTuple4, CtEntry>,
}

impl Full {
    fn load(maps: &Maps) -> Full {
        // BTF encodes the type of a map as the length of an array: replace LRU hash by hash.
        let mut bytes = datapath_object::datapath().to_vec();
        let is_lru_hash = |at: &usize| {
            let word = |index: usize| u32::from_le_bytes(bytes[at + 4 * index..][..4].try_into().unwrap());
            const BTF_KIND_ARRAY: u32 = 3 << 24;
            [word(0), word(1), word(2), word(5)] == [0, BTF_KIND_ARRAY, 0, 9]
        };
        let found: Vec<usize> = (0..bytes.len() - 24).step_by(4).filter(is_lru_hash).collect();
        let [at] = found[..] else { panic!("{} definitions", found.len()) };
        bytes[at + 20] = 1;
        let mut object = ObjectFile::parse("datapath", &bytes).unwrap();
        object.set_global(datapath_object::NODE_CONFIG, node_config().as_bytes()).unwrap();
        let connections: Map<CtTuple4, CtEntry> =
            Map::create(&MapSpec::new("full", MapType::Hash, 14, 56, 1, MapFlags::NONE)).unwrap();
        connections.update_mode(&CtTuple4::default(), &CtEntry::default(), UpdateMode::Create).unwrap();
        let map = |spec: MapSpec| -> Option<(String, RawMap)> {
            let name = spec.name.clone().into_owned();
            if !datapath_object::MAPS.contains(&&*name) {
                return None;
            }
            let is_hash = spec.layout.map_type == MapType::Hash;
            let map = match maps.shared(&name).unwrap() {
                _ if name == "cilium_ct_any4_global" => connections.raw().try_clone().unwrap(),
                Some(map) if !(is_hash && map.layout().map_type == MapType::LruHash) => map,
                _ => {
                    let mut spec = spec;
                    spec.layout.max_entries = 1;
                    RawMap::create(&spec).unwrap()
                }
            };
            Some((name, map))
        };
        let shared: Vec<(String, RawMap)> = object.maps().into_iter().filter_map(map).collect();
        let shared: Vec<(&str, &RawMap)> = shared.iter().map(|(name, map)| (&**name, map)).collect();
        let collection = object.load(&shared, 2).unwrap();
        let calls = collection.maps.get(datapath_object::CALLS).unwrap().try_clone().unwrap();
        let calls = ObjectMap::new(calls).unwrap();
        for program in datapath_object::PROGRAMS {
            if let (Some(slot), Some(loaded)) = (program.slot, collection.programs.get(program.name)) {
                calls.set(slot, loaded).unwrap();
            }
        }
        Full { collection, _connections: connections }
    }

    fn attach(&self, pod: &EndpointDatapath) {
        let name = datapath_object::FROM_CONTAINER;
        let program = self.collection.program(name).unwrap();
        let filter = format!("{name}-{}", pod.ifname);
        Tc::new().unwrap().attach(pod.ifindex, Direction::Ingress, 1, &filter, program).unwrap();
    }
}

fn insertion_failures(maps: &Maps) -> u64 {
    let rows = maps.metrics().entries().unwrap();
    let failed = rows.iter().filter(|(key, _)| key.reason == datapath_abi::drop::CT_MAP_INSERTION_FAILED);
    failed.flat_map(|(_, cpus)| cpus).map(|value| value.count).sum()
}

/// Cilium triggers garbage collection on `SignalCTFillUp`. A burst of signals is one run, for the family that is full.
#[test]
fn a_full_conntrack_table_triggers_one_collection() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let own_maps = maps(&sandbox);
    let datapath = start(&own_maps);
    let (a, a_ns) = pod_with_namespace(&sandbox, 1);
    let (b, b_ns) = pod_with_namespace(&sandbox, 2);
    for (endpoint, ns) in [(&a, &a_ns), (&b, &b_ns)] {
        datapath.attach(endpoint).unwrap();
        allow_all(&datapath, endpoint.id);
        datapath.up(endpoint).unwrap();
        furnish(endpoint, ns);
    }
    let target = b.ipv4.unwrap();

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cells = vec![statedb::cell(), metrics::cell(), maps::cell(), signals::cell(), conntrack_gc::cell()];
        let mut hive = TestHive::new(cells)
            .set("bpf-root", sandbox.bpf_root().display())
            .set("preallocate-bpf-maps", "false")
            .set("conntrack-gc-interval", "1h");
        hive.start().await;
        let started = Instant::now();
        let numbers: Arc<Metrics> = hive.get();
        let rounds = |family: &str, protocol: &str| {
            let labels = format!(
                "cilium_datapath_conntrack_gc_runs_total{{family=\"{family}\",protocol=\"{protocol}\",status=\"completed\"}} "
            );
            let text = numbers.text();
            let line = text.lines().find_map(|line| line.strip_prefix(&labels));
            line.map_or(0, |count| count.parse::<u32>().unwrap())
        };
        let all = || [rounds("ipv4", "TCP"), rounds("ipv4", "non-TCP"), rounds("ipv6", "TCP")];
        let reads = || {
            let status = hive.hive().health().at("signals.job-signals");
            status.is_some_and(|status| status.message.contains("CPU"))
        };
        hive.until("the reader of signals", reads).await;

        // The control: a map with free capacity causes no signal.
        let socket = a_ns.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        socket.send_to(b"x", (target, 9)).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!((all(), insertion_failures(&own_maps)), ([0; 3], 0));

        let full = Full::load(&own_maps);
        full.attach(&a);
        for port in 0..5000u16 {
            socket.send_to(b"x", (IpAddr::V4(target), 10_000 + port)).unwrap();
        }
        hive.until("a round", || all() != [0; 3]).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(insertion_failures(&own_maps) >= 5000, "each would have been a signal");
        assert!(started.elapsed() < Duration::from_secs(10), "the first round of all would come by itself");
        assert_eq!(all(), [1, 1, 0], "one round, of IPv4");
        // Further signals wait until ten seconds after that run.
        socket.send_to(b"x", (IpAddr::V4(target), 9)).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(all(), [1, 1, 0]);
        hive.until("the next round", || rounds("ipv4", "TCP") > 1).await;
        hive.stop().await;
    });
}

/// proxy.md, scenario 74, with real packets: the first one is dropped and signalled; the next ones pass once the map has
/// the pair.
#[test]
fn identities_that_must_authenticate_are_signalled() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let own_maps = maps(&sandbox);
    let datapath = start(&own_maps);
    let (a, a_ns) = pod_with_namespace(&sandbox, 1);
    let (b, b_ns) = pod_with_namespace(&sandbox, 2);
    for (endpoint, ns) in [(&a, &a_ns), (&b, &b_ns)] {
        datapath.attach(endpoint).unwrap();
        allow_all(&datapath, endpoint.id);
        datapath.up(endpoint).unwrap();
        furnish(endpoint, ns);
    }
    let authenticated = PolicyEntry { auth_type: 1, ..PolicyEntry::allow(0) };
    datapath.swap_policy(a.id, &[(PolicyKey::any(true), authenticated)]).unwrap();
    let programs = ProgramSet::load(&own_maps, NodeConfig { mesh_auth: 1, ..node_config() }).unwrap();
    datapath.switch(Arc::new(programs), &mut Netlink::open().unwrap()).unwrap();
    let target = b.ipv4.unwrap();

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cells =
            vec![statedb::cell(), metrics::cell(), maps::cell(), signals::cell(), conntrack_gc::cell()];
        let mut hive = TestHive::new(cells)
            .set("bpf-root", sandbox.bpf_root().display())
            .set("preallocate-bpf-maps", "false");
        hive.start().await;
        let mut required = hive.get::<Signals>().authentications(1000);
        let reads = || {
            let status = hive.hive().health().at("signals.job-signals");
            status.is_some_and(|status| status.message.contains("CPU"))
        };
        hive.until("the reader of signals", reads).await;
        let receiver = b_ns.run(|| UdpSocket::bind((target, 9))).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let sender = a_ns.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        let arrives = || {
            sender.send_to(b"x", (target, 9)).unwrap();
            receiver.recv(&mut [0; 8]).is_ok()
        };
        assert!(!arrives());
        let (local_identity, remote_identity) = (a.identity, identity::WORLD_IPV4);
        let key = AuthKey { local_identity, remote_identity, remote_node: 0, auth_type: 1, pad: 0 };
        assert_eq!(required.recv().await, Some(key));
        let map: Map<AuthKey, AuthEntry> =
            Map::new(own_maps.shared("cilium_auth_map").unwrap().unwrap()).unwrap();
        map.update(&key, &AuthEntry { expiration: 1 }).unwrap();
        assert!(!arrives(), "expired");
        map.update(&key, &AuthEntry { expiration: u64::MAX }).unwrap();
        assert!(arrives());
        hive.stop().await;
    });
}
