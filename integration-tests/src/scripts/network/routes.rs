//! Commands on routes.

use std::fmt::Write;
use std::net::IpAddr;

use anyhow::{Context, ensure};
use hive_command::{Call, Command, Flag};
use ipnetwork::IpNetwork;
use serde::Deserialize;
use test_kit::NetNs;

use super::Network;

pub(super) fn commands(network: &Network) -> Vec<Command> {
    let path = |command: Command| {
        command
            .flag(Flag::text("gateway", "next hop"))
            .flag(Flag::text("dev", "device"))
            .flag(Flag::text("table", "routing table"))
    };
    let change =
        |name: &'static str, summary: &'static str, run: fn(&Network, &Call) -> anyhow::Result<String>| {
            path(network.command(name, "destination", summary, run))
                .flag(Flag::text("mtu", "MTU"))
                .flag(Flag::text("proto", "routing protocol"))
        };
    vec![
        change("route/add", "add a route", add),
        change("route/replace", "add a route, or replace the one to the same destination", replace),
        path(network.command("route/del", "destination", "delete the route that matches", delete)),
        network
            .command("route/list", "", "list routes", list)
            .flag(Flag::text("table", "main, local, default, all or a number; main if absent")),
    ]
}

fn add(network: &Network, call: &Call) -> anyhow::Result<String> {
    let [destination] = call.exactly()?;
    change(network, call, "add", destination)?;
    Ok(format!("Added route {destination}\n"))
}

fn replace(network: &Network, call: &Call) -> anyhow::Result<String> {
    let [destination] = call.exactly()?;
    change(network, call, "replace", destination)?;
    Ok(format!("Replaced route {destination}\n"))
}

fn change(network: &Network, call: &Call, verb: &str, destination: &str) -> anyhow::Result<()> {
    let mut line = format!("route {verb} {destination}");
    for (flag, word) in
        [("gateway", "via"), ("dev", "dev"), ("table", "table"), ("mtu", "mtu"), ("proto", "proto")]
    {
        let value = call.flags.text(flag);
        if !value.is_empty() {
            write!(line, " {word} {value}")?;
        }
    }
    network.namespace(call)?.ip(&line)?;
    Ok(())
}

fn delete(network: &Network, call: &Call) -> anyhow::Result<String> {
    let [destination] = call.exactly()?;
    let prefix: IpNetwork = destination.parse().with_context(|| destination.to_owned())?;
    let namespace = network.namespace(call)?;
    let [gateway, device, table] = ["gateway", "dev", "table"].map(|flag| call.flags.text(flag));
    let gateway: Option<IpAddr> = if gateway.is_empty() { None } else { Some(gateway.parse()?) };
    let matching: Vec<Listed> = routes(&namespace, table)?
        .into_iter()
        .filter(|route| route.destination() == Some(prefix))
        .filter(|route| gateway.is_none() || route.gateway == gateway)
        .filter(|route| device.is_empty() || route.dev.as_deref() == Some(device))
        .collect();
    let [route] = &*matching else {
        anyhow::bail!("{} routes match {destination}, not exactly one", matching.len())
    };
    let mut line = format!("route del {prefix} table {}", route.table.as_deref().unwrap_or("main"));
    for (word, value) in [
        ("via", route.gateway.map(|ip| ip.to_string())),
        ("dev", route.dev.clone()),
        ("metric", route.metric.map(|metric| metric.to_string())),
    ] {
        if let Some(value) = value {
            write!(line, " {word} {value}")?;
        }
    }
    namespace.ip(&line)?;
    Ok(format!("Deleted route {destination}\n"))
}

fn list(network: &Network, call: &Call) -> anyhow::Result<String> {
    let [] = call.exactly()?;
    let routes = routes(&network.namespace(call)?, call.flags.text("table"))?;
    routes.iter().map(|route| Ok(format!("{}\n", route.line()?))).collect()
}

/// Returns the routes of a table in the kernel's order, those of IPv4 first.
fn routes(namespace: &NetNs, table: &str) -> anyhow::Result<Vec<Listed>> {
    let table = if table.is_empty() { "main" } else { table };
    let mut all: Vec<Listed> = vec![];
    for family in ["-4", "-6"] {
        let text = match namespace.ip(&format!("{family} -j -d route show table {table}")) {
            Ok(text) => text,
            // A table comes into being with its first route.
            Err(error) if error.to_string().contains("does not exist") => continue,
            Err(error) => return Err(error.into()),
        };
        if text.trim().is_empty() {
            continue;
        }
        let mut found: Vec<Listed> = serde_json::from_str(&text).context("output of ip route show")?;
        for route in &mut found {
            route.is_v6 = family == "-6";
            // Named only where routes of several tables are listed.
            if route.table.is_none() && table != "all" {
                route.table = Some(table.to_owned());
            }
        }
        all.extend(found);
    }
    ensure!(all.iter().all(|route| route.destination().is_some()), "a route without a destination");
    Ok(all)
}

/// A route as `ip` prints it.
#[derive(Debug, Deserialize)]
struct Listed {
    dst: String,
    #[serde(skip)]
    is_v6: bool,
    gateway: Option<IpAddr>,
    via: Option<Via>,
    dev: Option<String>,
    scope: Option<String>,
    prefsrc: Option<IpAddr>,
    #[serde(default)]
    metrics: Vec<Metrics>,
    table: Option<String>,
    metric: Option<u32>,
    #[serde(default)]
    nexthops: Vec<NextHop>,
}

/// A next hop of the other family.
#[derive(Debug, Deserialize)]
struct Via {
    family: String,
    host: IpAddr,
}

#[derive(Debug, Deserialize)]
struct Metrics {
    mtu: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct NextHop {
    gateway: Option<IpAddr>,
    via: Option<Via>,
    dev: Option<String>,
}

impl Listed {
    fn destination(&self) -> Option<IpNetwork> {
        match (&*self.dst, self.is_v6) {
            ("default", false) => "0.0.0.0/0".parse().ok(),
            ("default", true) => "::/0".parse().ok(),
            (text, _) => text.parse().ok(),
        }
    }

    fn line(&self) -> anyhow::Result<String> {
        let mut line = self.destination().map(|prefix| prefix.to_string()).unwrap_or_default();
        if let Some(gateway) = self.gateway {
            write!(line, " via {gateway}")?;
        }
        if let Some(Via { family, host }) = &self.via {
            write!(line, " via {family} {host}")?;
        }
        if let Some(dev) = &self.dev {
            write!(line, " dev {dev}")?;
        }
        let scope = match self.scope.as_deref() {
            None | Some("global") => "universe",
            Some(scope) => scope,
        };
        write!(line, " scope {scope}")?;
        if let Some(src) = self.prefsrc {
            write!(line, " src {src}")?;
        }
        if let Some(mtu) = self.metrics.iter().find_map(|metrics| metrics.mtu) {
            write!(line, " mtu {mtu}")?;
        }
        write!(line, " table {}", self.table.as_deref().unwrap_or("main"))?;
        if let Some(metric) = self.metric {
            write!(line, " priority {metric}")?;
        }
        for hop in &self.nexthops {
            line.push_str("\n    nexthop");
            let via = hop.gateway.or_else(|| hop.via.as_ref().map(|via| via.host));
            if let Some(gateway) = via {
                write!(line, " via {gateway}")?;
            }
            if let Some(dev) = &hop.dev {
                write!(line, " dev {dev}")?;
            }
        }
        Ok(line)
    }
}
