//! Commands on links.

use anyhow::{Context, bail};
use hive_command::{Call, Command, Flag};
use serde_json::Value;
use test_kit::NetNs;

use super::Network;

pub(super) fn commands(network: &Network) -> Vec<Command> {
    vec![
        network
            .command("link/add", "name type", "add a link of type dummy or veth", add)
            .flag(Flag::text("peername", "name of the other end of a veth"))
            .flag(Flag::text("peerns", "network namespace of the other end of a veth")),
        network.command("link/set", "name up|down|mtu=N|hwaddr=MAC...", "change a link", set),
        network.command("link/del", "name", "delete a link", delete),
        network.command("link/list", "", "list links", list),
    ]
}

fn add(network: &Network, call: &Call) -> anyhow::Result<String> {
    let [name, kind] = call.exactly()?;
    let namespace = network.namespace(call)?;
    match kind {
        "dummy" => add_dummy(&namespace, name)?,
        "veth" => {
            let peer = match call.flags.text("peername") {
                "" => format!("{name}-peer"),
                peer => peer.to_owned(),
            };
            let peer_namespace = match call.flags.text("peerns") {
                "" => namespace.clone(),
                other => network.named(other)?,
            };
            let far = peer_namespace.path().display();
            namespace.ip(&format!("link add {name} type veth peer name {peer} netns {far}"))?;
        }
        other => bail!("link type {other:?} is not supported"),
    }
    Ok(format!("Created link {name:?} of type {kind}\n"))
}

/// Adds a dummy. On a kernel without them an `ifb` stands in, which has the same flags and drops all packets as well.
fn add_dummy(namespace: &NetNs, name: &str) -> anyhow::Result<()> {
    match namespace.ip(&format!("link add {name} type dummy")) {
        Err(error) if error.to_string().contains("Unknown device type") => {
            namespace.ip(&format!("link add {name} type ifb"))?;
        }
        added => drop(added?),
    }
    Ok(())
}

fn set(network: &Network, call: &Call) -> anyhow::Result<String> {
    let Some((name, changes)) = call.at_least(2)?.split_first() else { bail!("no link") };
    let mut words = vec![];
    for change in changes {
        words.push(match change.split_once('=') {
            None if change == "up" || change == "down" => change.clone(),
            Some(("hwaddr", value)) => format!("address {value}"),
            Some((property @ ("mtu" | "name" | "master" | "txqlen"), value)) => format!("{property} {value}"),
            _ => bail!("{change:?} is no property of a link"),
        });
    }
    network.namespace(call)?.ip(&format!("link set {name} {}", words.join(" ")))?;
    Ok(format!("Set link {name:?} {}\n", changes.join(" ")))
}

fn delete(network: &Network, call: &Call) -> anyhow::Result<String> {
    let [name] = call.exactly()?;
    network.namespace(call)?.ip(&format!("link del {name}"))?;
    Ok(format!("Deleted link {name:?}\n"))
}

/// One line a link: index, name, type, MTU, hardware address, operational status.
fn list(network: &Network, call: &Call) -> anyhow::Result<String> {
    let [] = call.exactly()?;
    let links: Vec<Value> = serde_json::from_str(&network.namespace(call)?.ip("-j -d link show")?)
        .context("output of ip link show")?;
    let line = |link: &Value| {
        let kind = link["linkinfo"]["info_kind"].as_str().unwrap_or("device");
        let text = |field: &str| link[field].as_str().unwrap_or_default().to_owned();
        format!(
            "{}: {} {kind} mtu {} hwaddr {} {}\n",
            link["ifindex"],
            text("ifname"),
            link["mtu"],
            text("address"),
            text("operstate").to_lowercase(),
        )
    };
    Ok(links.iter().map(line).collect())
}
