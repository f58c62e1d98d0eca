//! With policy maps in the kernel, in a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::RawMap;
use datapath_abi::{NodeConfig, PolicyEntry, PolicyKey};
use datapath_api::{Datapath, EndpointDatapath};
use devices::Netlink;
use loader::{KernelDatapath, KernelOptions, PolicyMap, ProgramSet};
use maps::{FamilyConfig, Maps, MapsConfig};
use policy::{RealizationState, Subject};
use serde_json::{Value, json};
use test_kit::{Sandbox, require_root};

use crate::kit::{Done, World, allow};

fn maps(sandbox: &Sandbox, rows: u32) -> Arc<Maps> {
    let config = MapsConfig {
        bpf_root: sandbox.bpf_root().to_str().unwrap().to_owned(),
        preallocate_bpf_maps: false,
        bpf_policy_map_max: rows,
        ..MapsConfig::default()
    };
    let maps = Maps::new(config, FamilyConfig::default());
    maps.open().unwrap();
    Arc::new(maps)
}

/// Returns a datapath after the steps of an agent's start.
fn datapath(maps: &Arc<Maps>) -> Arc<KernelDatapath> {
    let datapath = KernelDatapath::new(
        maps.clone(),
        KernelOptions { filter_priority: 1, icmp_rules: true, host_firewall: false },
    );
    loader::restore(&datapath).unwrap();
    datapath.pool().tend().unwrap();
    let programs = Arc::new(ProgramSet::load(maps, NodeConfig::default()).unwrap());
    datapath.switch(programs, &mut Netlink::open().unwrap()).unwrap();
    datapath.set_ready();
    Arc::new(datapath)
}

/// Attaches endpoints with interfaces; their peer interfaces are in the same namespace.
fn attach(sandbox: &Sandbox, datapath: &dyn Datapath, ids: std::ops::RangeInclusive<u16>) {
    for id in ids {
        let ifname = format!("lxc{id:05}");
        sandbox.host().ip(&format!("link add {ifname} type veth peer name p{id}")).unwrap();
        let ifindex = Netlink::open().unwrap().link_by_name(&ifname).unwrap().index;
        let endpoint = EndpointDatapath { id, ifindex, ifname, ..EndpointDatapath::default() };
        datapath.attach(&endpoint).unwrap();
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work)
}

/// A reader that looks packets up as a program does: slot, map, row of the peer, row of all peers.
struct Reader {
    maps: Arc<Maps>,
    open: BTreeMap<u32, PolicyMap>,
}

impl Reader {
    fn passes(&mut self, endpoint: u16, peer: u32, port: u16) -> bool {
        let slot = self.maps.ep_config().lookup(&endpoint.into()).unwrap().unwrap().policy_slot;
        let number = self.maps.ep_policies().id(slot).unwrap().unwrap();
        let map = self
            .open
            .entry(number)
            .or_insert_with(|| PolicyMap::new(RawMap::open_id(number).unwrap()).unwrap());
        let row = |sec_label| {
            let key = PolicyKey {
                prefixlen: PolicyKey::FULL_BITS,
                sec_label,
                egress: 0,
                protocol: 6,
                dport: port.to_be(),
            };
            map.lookup(&key).unwrap()
        };
        let (own, all): (Option<PolicyEntry>, Option<PolicyEntry>) = (row(peer), row(0));
        let own_wins = |own: &PolicyEntry, all: &PolicyEntry| {
            own.precedence > all.precedence
                || own.precedence == all.precedence
                    && (own.deny() || own.lpm_prefix_length() >= all.lpm_prefix_length())
        };
        match (own, all) {
            (Some(own), Some(all)) => !if own_wins(&own, &all) { own } else { all }.deny(),
            (own, all) => own.or(all).is_some_and(|row| !row.deny()),
        }
    }
}

/// Returns variants of one policy: all allow the client to port 80, and none allows port 22; they differ in everything
/// else.
fn forms() -> Vec<Value> {
    let client = json!({"matchLabels": {"app": "client"}});
    let ports = |ports: &[u16]| -> Value {
        let port = |port: &u16| json!({"port": port.to_string(), "protocol": "TCP"});
        json!([{"ports": ports.iter().map(port).collect::<Vec<_>>()}])
    };
    let web = json!({"matchLabels": {"app": "web"}});
    vec![
        json!({"endpointSelector": web, "ingress": [{"fromEndpoints": [client], "toPorts": ports(&[80])}]}),
        json!({
            "endpointSelector": web,
            "ingress": [{"fromEndpoints": [client]}],
            "ingressDeny": [{"toPorts": ports(&[22])}],
        }),
        json!({"endpointSelector": web, "ingress": [{"fromEntities": ["all"], "toPorts": ports(&[80, 443])}]}),
        json!({
            "endpointSelector": web,
            "ingress": [{"fromEntities": ["all"]}],
            "ingressDeny": [{"fromEntities": ["all"], "toPorts": ports(&[22])}],
        }),
        json!({
            "endpointSelector": web,
            "ingress": [{"fromEndpoints": [client], "toPorts": [{"ports": [
                {"port": "64", "endPort": 127, "protocol": "TCP"},
            ]}]}],
        }),
    ]
}

#[test]
fn a_thousand_changes_are_never_open_and_never_closed() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox, 16384);
    let datapath = datapath(&maps);
    attach(&sandbox, &*datapath, 7..=7);
    run(async {
        let mut world = World::of(datapath.clone());
        world.write(&[("web", forms().remove(0))], true);
        let agent = world.start().await;
        let client = world.subject(8, "client").identity;
        agent.policies.enforce(world.subject(7, "web"));
        agent.policies.realized(7).await.unwrap();

        let done = Done::default();
        let (looks, swaps) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reader = Reader { maps: maps.clone(), open: BTreeMap::new() };
                let mut looks = 0;
                while !done.is_over() {
                    assert!(reader.passes(7, client, 80), "denied after {looks} looks");
                    assert!(!reader.passes(7, client, 22), "open after {looks} looks");
                    looks += 1;
                }
                (looks, reader.open.len())
            });
            let ended = done.at_the_end();
            tokio::task::block_in_place(|| {
                let forms = forms();
                // The pool's pause of a second is skipped by the test.
                for round in 1..=1000_usize {
                    let before = agent.policies.revision();
                    world.write(&[("web", forms[(round * 7 + round / 5) % forms.len()].clone())], false);
                    let changed = || agent.row(7).realized > before;
                    tokio::runtime::Handle::current().block_on(agent.hive.until("the change", changed));
                    if round % 50 == 0 {
                        datapath.pool().tend().unwrap();
                    }
                }
            });
            drop(ended);
            reader.join().unwrap()
        });
        assert!(looks > 1000, "{looks} looks");
        assert!(swaps > 10, "other maps took the place of others: {swaps}");
        agent.end().await;
    });
}

#[test]
#[expect(clippy::print_stderr, reason = "a measurement for interactive runs")]
fn a_policy_with_500_ports_on_100_endpoints() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox, 16384);
    let datapath = datapath(&maps);
    attach(&sandbox, &*datapath, 1..=100);
    run(async {
        let mut world = World::of(datapath.clone());
        world.write(&[("web", allow("web", "client", 80))], true);
        let agent = world.start().await;
        for endpoint in 1..=100 {
            agent.policies.enforce(world.subject(endpoint, "web"));
        }
        for endpoint in 1..=100 {
            agent.policies.realized(endpoint).await.unwrap();
        }
        let ports: Vec<Value> =
            (1..=500).map(|port| json!({"port": (port * 2).to_string(), "protocol": "TCP"})).collect();
        let rules: Vec<Value> =
            ports.chunks(40).map(|ports| json!({"toPorts": [{"ports": ports}]})).collect();
        let started = Instant::now();
        world.write(&[("many", json!({"endpointSelector": {}, "ingress": rules}))], false);
        agent
            .policies
            .table()
            .wait_for(policy::EndpointPolicy::by_endpoint(100), |row| row.realized == 3)
            .await;
        let took = started.elapsed();
        assert!((1..=100).all(|endpoint| world.rows(endpoint).len() == 501));
        eprintln!("500 rules on 100 endpoints: {took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
        agent.end().await;
    });
}

#[test]
fn a_full_map_in_the_kernel_denies_and_recovers() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox, 256);
    let datapath = datapath(&maps);
    attach(&sandbox, &*datapath, 7..=8);
    run(async {
        let mut world = World::of(datapath.clone());
        world.write(&[("web", allow("web", "client", 80))], true);
        let agent = world.start().await;
        let client = world.subject(9, "client").identity;
        agent.policies.enforce(world.subject(7, "web"));
        agent.policies.enforce(world.subject(8, "db"));
        agent.policies.realized(7).await.unwrap();
        let mut reader = Reader { maps: maps.clone(), open: BTreeMap::new() };
        assert!(reader.passes(7, client, 80));
        let many: Vec<Value> = (1..=300)
            .map(|port| json!({"port": (port * 2).to_string(), "protocol": "TCP"}))
            .collect::<Vec<_>>()
            .chunks(40)
            .map(|ports| json!({"toPorts": [{"ports": ports}]}))
            .collect();
        let many = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": many});
        world.write(&[("many", many)], false);
        agent.hive.until("the full map", || agent.row(7).state == RealizationState::Full).await;
        assert!(!reader.passes(7, client, 80) && !reader.passes(7, client, 2));
        assert!(reader.passes(8, client, 80), "the other one is open as before");
        world.write(&[("many", Value::Null)], false);
        agent.policies.realized(8).await.unwrap();
        agent.hive.until("the map to fit", || reader.passes(7, client, 80)).await;
        agent.end().await;
    });
}

#[test]
fn a_restart_keeps_maps_until_sources_are_complete_and_corrects_them_in_place() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox, 16384);
    let first = datapath(&maps);
    attach(&sandbox, &*first, 7..=7);
    let number = |maps: &Maps| {
        let slot = maps.ep_config().lookup(&7).unwrap().unwrap().policy_slot;
        maps.ep_policies().id(slot).unwrap()
    };
    let (web, client): (Subject, u32) = run(async {
        let mut world = World::of(first.clone());
        world.write(&[("web", allow("web", "client", 80))], true);
        let agent = world.start().await;
        let (web, client) = (world.subject(7, "web"), world.subject(8, "client").identity);
        agent.policies.enforce(web.clone());
        agent.policies.realized(7).await.unwrap();
        agent.end().await;
        (web, client)
    });
    let before = number(&maps);
    drop(first);

    let second = datapath(&maps);
    run(async {
        let mut world = World::of(second);
        let mut reader = Reader { maps: maps.clone(), open: BTreeMap::new() };
        let agent = world.start().await;
        // Ids survive a stop.
        assert_eq!(world.subject(7, "web").identity, web.identity);
        assert_eq!(world.subject(8, "client").identity, client);
        agent.policies.enforce(web);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(reader.passes(7, client, 80) && !reader.passes(7, client, 81));
        assert_eq!(agent.row(7).state, RealizationState::Pending);
        // The folder has changed in the meantime.
        let mut both = allow("web", "client", 80);
        let ports = both["ingress"][0]["toPorts"][0]["ports"].as_array_mut().unwrap();
        ports.push(json!({"port": "81", "protocol": "TCP"}));
        world.write(&[("web", both)], true);
        agent.policies.realized(7).await.unwrap();
        assert!(reader.passes(7, client, 80) && reader.passes(7, client, 81));
        assert_eq!(number(&maps), before, "the same map");
        agent.end().await;
    });
}
