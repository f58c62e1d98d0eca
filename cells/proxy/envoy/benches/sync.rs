//! Measures how long 1,000 endpoints with rules of HTTP need until a client of xDS has their policies and has acknowledged
//! them, over the agent's socket. Prints one row a number (name, measured, unit, goal, met, peer), tab separated.

#[path = "../tests/envoy/client.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod client;
#[path = "../tests/envoy/world.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod world;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use client::Client;
use envoy_api::cilium::NetworkPolicy;
use envoy_api::cluster::Cluster;
use envoy_api::listener::Listener;
use policy::EndpointPolicy;
use proxy_ports::Proxies;
use serde_json::{Value, json};
use world::{World, described, row};

const ENDPOINTS: u16 = 1000;
/// The rules of an endpoint, each with another path.
const RULES: u16 = 5;
/// Changes of all endpoints, and of one.
const ROUNDS: u64 = 5;
const SINGLE_ROUNDS: u64 = 100;
/// Milliseconds.
const SYNC_GOAL: f64 = 1000.0;

/// Returns rules of HTTP that no other endpoint and no other revision has.
fn rules(endpoint: u16, revision: u64) -> Value {
    let rule = |number| {
        let path = format!("/api/v{revision}/of/{endpoint}/{number}/.*");
        json!({"method": "GET", "path": path, "host": format!("service-{number}.shop.svc"),
            "headers": [format!("X-Tenant: {endpoint}")]})
    };
    let http: Vec<Value> = (0..RULES).map(rule).collect();
    json!([{"toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": http}}]}])
}

/// Returns the policies of endpoints at a revision.
fn rows(endpoints: impl Iterator<Item = u16>, revision: u64) -> Vec<EndpointPolicy> {
    endpoints.map(|endpoint| row(1000, endpoint, revision, rules(endpoint, revision))).collect()
}

/// The policies that a client has, as Envoy keeps them: those of the last response, each acknowledged.
struct Envoy {
    policies: Client<NetworkPolicy>,
    held: BTreeMap<u64, NetworkPolicy>,
}

impl Envoy {
    async fn connect(socket: &Path) -> Envoy {
        Envoy { policies: Client::envoy(socket).await, held: BTreeMap::new() }
    }

    /// Takes and acknowledges responses until all these endpoints have rules of a revision.
    async fn hold(&mut self, endpoints: &[u16], revision: u64) {
        let path = format!("/api/v{revision}/of/");
        loop {
            let response = self.policies.next().await;
            self.held = response.into_iter().map(|policy| (policy.endpoint_id, policy)).collect();
            self.policies.ack();
            let has = |endpoint: &u16| {
                let text = format!("{path}{endpoint}/0/");
                self.held
                    .get(&u64::from(*endpoint))
                    .is_some_and(|policy| format!("{policy:?}").contains(&text))
            };
            // The last one first: most responses in between have the others only.
            if endpoints.iter().rev().all(has) {
                return;
            }
        }
    }
}

fn percentile(samples: &mut [f64], hundredths: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[(samples.len() * hundredths).div_ceil(100) - 1]
}

/// Prints a row.
#[expect(clippy::print_stdout, reason = "a benchmark prints its rows")]
fn print(name: &str, measured: f64, peer: &str) {
    let met = if measured <= SYNC_GOAL { "yes" } else { "no" };
    println!("xDS: {name}\t{measured:.2}\tms\t{SYNC_GOAL}\t{met}\t{peer}");
}

async fn measure() {
    let world = World::start(&[], |_, policies, endpoints| {
        let first = rows(1..=ENDPOINTS, 1);
        endpoints.transact(|txn| (1..=ENDPOINTS).for_each(|endpoint| drop(txn.insert(described(endpoint)))));
        policies.transact(|txn| first.into_iter().for_each(|row| drop(txn.insert(row))));
    })
    .await;
    let socket = world.xds().await;
    let all: Vec<u16> = (1..=ENDPOINTS).collect();
    let start = Instant::now();
    let _clusters = Client::<Cluster>::accepting(&socket).await;
    let _listeners = Client::<Listener>::accepting(&socket).await;
    let mut envoy = Envoy::connect(&socket).await;
    envoy.hold(&all, 1).await;
    let connected = start.elapsed().as_secs_f64() * 1e3;
    let bytes: usize = envoy.held.values().map(envoy_api::Message::encoded_len).sum();
    let peer = format!("{RULES} rules each, {} kB", bytes / 1000);
    print("1000 endpoints with rules of HTTP at an Envoy that connects", connected, &peer);

    let name = world::HTTP_EGRESS;
    let row = world.port(name).unwrap();
    world.lead_to(name, row.port);
    let proxies = world.hive.get::<Proxies>();
    let receiver = || proxies.policy_receiver();
    world.hive.until("policy waits for Envoy", || receiver().is_some()).await;
    let mut change = async |endpoints: &[u16], revision: u64| {
        let rows = rows(endpoints.iter().copied(), revision);
        let start = Instant::now();
        world.policies.transact(|txn| rows.into_iter().for_each(|row| drop(txn.insert(row))));
        // As policy does before it writes maps.
        let received = receiver().unwrap().received();
        let ((), ()) = tokio::join!(envoy.hold(endpoints, revision), received);
        start.elapsed().as_secs_f64() * 1e3
    };
    let (mut of_all, mut of_one) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        of_all.push(change(&all, 2 + round).await);
    }
    for round in 0..SINGLE_ROUNDS {
        of_one.push(change(&[1 + round as u16], 100 + round).await);
    }
    let slowest = percentile(&mut of_all, 100);
    print("1000 endpoints with other rules, acknowledged", slowest, "the slowest of 5");
    let peer = format!("p99 {:.2} ms", percentile(&mut of_one, 99));
    print("one of 1000 endpoints with other rules, p50", percentile(&mut of_one, 50), &peer);
    tokio::time::sleep(Duration::from_millis(1)).await;
    world.end().await;
}

fn main() {
    // `cargo test --benches` only shows that it builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    // As many workers as the agent has.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure());
}
