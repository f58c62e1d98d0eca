//! Identities that come and go by the hundred, with a pod each: a test and a benchmark follow their traces.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipcache::{Claim, IpcacheWriter, Mapping, Source};
use ipnetwork::IpNetwork;
use labels::Labels;
use serde_json::json;
use statedb::Table;

use policy::PeerSelector;

use super::kit::{Agent, World};

/// The number of identities that come and go in a second of the virtual time.
pub(crate) const PER_SECOND: usize = 100;
const ENDPOINT: u16 = 7;
/// Generous: nothing here depends on the time it takes.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The number of objects that identities leave if something leaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inventory {
    identities: usize,
    map_entries: usize,
    ipcache: usize,
    /// The identities that selectors of peers select.
    selected: usize,
    selectors: usize,
}

/// Starts the endpoint whose rules select all of the identities: by one label, by its absence, and all of them.
pub(crate) async fn start(world: &mut World) -> Agent {
    let ports = |port: u16| json!([{"ports": [{"port": port.to_string(), "protocol": "TCP"}]}]);
    let spec = json!({
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "ingress": [
            {"fromEndpoints": [{"matchLabels": {"app": "client"}}], "toPorts": ports(80)},
            {"fromEndpoints": [{"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}], "toPorts": ports(81)},
            {"fromEntities": ["cluster"], "toPorts": ports(82)},
        ],
    });
    world.write(&[("web", spec)], true);
    let agent = world.start().await;
    let web = world.pod(ENDPOINT, "web");
    agent.policies.enforce(web);
    agent.policies.realized(ENDPOINT).await.unwrap();
    agent
}

/// Has identities come and go for seconds of the virtual time. Each second's are in force everywhere before they go, and
/// the last ones are gone at the end.
pub(crate) async fn run(world: &World, agent: &Agent, seconds: usize) {
    let writer = agent.hive.get::<IpcacheWriter>();
    let empty = inventory(world, agent);
    let mut before: Vec<(usize, u32)> = Vec::new();
    for second in 0..=seconds {
        let numbers = (second * PER_SECOND..).take(if second < seconds { PER_SECOND } else { 0 });
        let now: Vec<(usize, u32)> =
            numbers.map(|n| (n, world.allocate(&labels(n), &format!("pod/{n}")))).collect();
        writer.apply(
            now.iter().map(|(n, identity)| ipcache::Change::Upsert(address(*n), claim(*n, *identity))),
        );
        let gone = std::mem::replace(&mut before, now);
        writer.apply(
            gone.iter().map(|(n, _)| {
                ipcache::Change::Delete(address(*n), Source::CustomResource, resource(*n).into())
            }),
        );
        for (n, identity) in gone {
            world.identities.release(identity, &format!("pod/{n}"));
        }
        world.fake.clear_calls();
        // The time of it is not that of the clock.
        identity::testing::end_quarantine(&world.identities);
        let count = before.len();
        let expected = Inventory {
            identities: empty.identities + count,
            // By three rules, a row a port each.
            map_entries: empty.map_entries + 3 * count,
            ipcache: empty.ipcache + count,
            selected: empty.selected + 3 * count,
            ..empty
        };
        let begin = Instant::now();
        while inventory(world, agent) != expected {
            assert!(begin.elapsed() < TIME_LIMIT, "{:?}, expected {expected:?}", inventory(world, agent));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

pub(crate) fn inventory(world: &World, agent: &Agent) -> Inventory {
    let selectors = agent.hive.get::<Table<PeerSelector>>();
    let snapshot = selectors.snapshot();
    Inventory {
        identities: world.identity_table.len(&snapshot),
        map_entries: world.datapath.policy_rows(ENDPOINT).unwrap().len(),
        ipcache: world.ipcache.prefixes().len(),
        selected: selectors.all(&snapshot).map(|row| row.0.identities.len()).sum(),
        selectors: selectors.len(&snapshot),
    }
}

fn labels(n: usize) -> Labels {
    let version = format!("k8s:version={n}");
    let common = [
        "k8s:app=client",
        "k8s:io.kubernetes.pod.namespace=shop",
        "k8s:io.cilium.k8s.policy.cluster=default",
    ];
    Labels::parse(common.into_iter().chain([&*version]))
}

fn address(n: usize) -> IpNetwork {
    IpNetwork::from(IpAddr::from([10, (n >> 16) as u8, (n >> 8) as u8, n as u8]))
}

fn resource(n: usize) -> String {
    format!("cep/shop/pod-{n}")
}

fn claim(n: usize, identity: u32) -> Claim {
    Claim {
        source: Source::CustomResource,
        resource: resource(n).into(),
        mapping: Mapping::identity(identity),
    }
}
