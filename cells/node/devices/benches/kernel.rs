//! Benchmarks of the tables against the kernel: duration of a start, latency of a change, memory per route.
//! Prints a row per value (name, measured, unit, goal, met, peer), tab separated.
#![expect(clippy::print_stdout, reason = "a benchmark prints its rows")]

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use devices::rtnetlink::{VethPeer, VethSpec};
use devices::{Device, Netlink, NodeAddress, Route};
use hive::prelude::*;
use statedb::Table;
use test_kit::Sandbox;

const LINKS: usize = 1000;
const ROUTES: u32 = 100_000;
const CHANGES: usize = 50;

fn main() -> Result<()> {
    if !test_kit::is_root() {
        return Ok(());
    }
    routes()?;
    links()
}

/// Prints a row; `goal` is an upper bound.
fn row(name: &str, measured: f64, unit: &str, goal: f64, peer: &str) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("devices: {name}\t{measured:.2}\t{unit}\t{goal}\t{met}\t{peer}");
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// A started hive, its tables of devices and routes, and the time that the start took.
async fn started() -> (TestHive, Arc<Table<Device>>, Arc<Table<Route>>, Duration) {
    let mut hive = TestHive::new([
        statedb::cell(),
        devices::cell(),
        invoke(|_: Arc<Table<Device>>, _: Arc<Table<Route>>, _: Arc<Table<NodeAddress>>| ()),
    ]);
    let begin = Instant::now();
    hive.start().await;
    let took = begin.elapsed();
    let (devices, routes) = (hive.get(), hive.get());
    (hive, devices, routes, took)
}

fn links() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let pods = sandbox.netns("pods")?;
    let mut nl = Netlink::open()?;
    let names: Vec<(String, String)> = (0..LINKS).map(|i| (format!("lxc{i}"), format!("eth{i}"))).collect();
    let mut add = |(name, peer): &(String, String)| {
        let peer = VethPeer { name: peer, netns: Some(pods.fd()), ..VethPeer::default() };
        nl.add_veth(&VethSpec { name, group: Some(9), peer, ..VethSpec::default() })
    };
    let begin = Instant::now();
    for pair in &names {
        add(pair)?;
    }
    row("veth pair made in its namespace, mean of 1000", ms(begin.elapsed()) / LINKS as f64, "ms", 2.4, "-");
    runtime()?.block_on(async {
        let (mut hive, table, _, took) = started().await;
        row("start with 1000 links", ms(took), "ms", 50.0, "-");
        let mut seen = Vec::new();
        for i in 0..CHANGES {
            let pair = (format!("new{i}"), format!("peer{i}"));
            add(&pair)?;
            let begin = Instant::now();
            loop {
                let snapshot = table.snapshot();
                let (found, watch) = table.get_watch(&snapshot, Device::by_name(&pair.0));
                if found.is_some() {
                    break;
                }
                tokio::time::timeout(Duration::from_secs(5), watch.changed()).await.context("no new link")?;
            }
            seen.push(begin.elapsed());
        }
        seen.sort();
        row("new link in the table, p50", ms(seen[CHANGES / 2]), "ms", 10.0, "100 ms batches in Cilium");
        hive.stop().await;
        anyhow::Ok(())
    })?;
    let begin = Instant::now();
    nl.delete_links_in_group(9)?;
    row("1050 links deleted as a group", ms(begin.elapsed()), "ms", 1000.0, "16-30 ms each");
    Ok(())
}

fn routes() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let host = sandbox.host();
    host.ip("link add ext0 type veth peer name ext1")?;
    host.ip("addr add 192.168.0.1/24 dev ext0")?;
    host.ip("link set ext1 up")?;
    host.ip("link set ext0 up")?;
    let mut lines = String::new();
    for i in 0..ROUTES {
        let (a, b, c) = (i >> 16, (i >> 8) & 255, i & 255);
        writeln!(lines, "route add {}.{b}.{c}.0/24 via 192.168.0.2", 20 + a)?;
    }
    host.ip_batch(&lines)?;
    drop(lines);
    runtime()?.block_on(async {
        let before = resident()?;
        let (mut hive, _, routes, took) = started().await;
        let count = routes.len(&routes.snapshot());
        anyhow::ensure!(count >= ROUTES as usize, "{count} routes");
        row("start with 100000 routes", ms(took), "ms", 1000.0, "-");
        let bytes = (resident()? - before) * 1024.0 / f64::from(ROUTES);
        row("memory of a route", bytes, "B", 1500.0, "-");
        hive.stop().await;
        anyhow::Ok(())
    })
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Anonymous resident memory of this process in KiB.
fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
