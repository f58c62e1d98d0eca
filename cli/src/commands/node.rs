//! `node` and `nodeid`: the nodes of the cluster, as known to the agent, and their ids in the datapath.

use crate::client::Agent;
use crate::commands::list::Listing;
use crate::output::table;
use anyhow::Context as _;
use api_models::{ClusterNodeStatus, NodeElement, NodeId};
use std::fmt::Write as _;
use std::io::Write;

pub(crate) fn list(agent: &mut Agent, options: &Listing, out: &mut dyn Write) -> anyhow::Result<()> {
    let cluster: ClusterNodeStatus = agent.get("/cluster/nodes").context("cannot get nodes")?;
    if options.output.write(&cluster.nodes_added, out)? {
        return Ok(());
    }
    let mut lines: Vec<String> = cluster.nodes_added.iter().map(node_line).collect();
    lines.sort();
    let header = "Name\tIPv4 Address\tEndpoint CIDR\tIPv6 Address\tEndpoint CIDR\tSource\n";
    Ok(table(&(header.to_owned() + &lines.concat()), 0, out)?)
}

/// Runs `nodeid list`.
pub(crate) fn ids(agent: &mut Agent, options: &Listing, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut nodes: Vec<NodeId> = agent.get("/node/ids").context("cannot get ids of nodes")?;
    if options.output.write(&nodes, out)? {
        return Ok(());
    }
    nodes.sort_by_key(|node| node.id.0);
    let mut text = "NODE ID\tIP ADDRESSES\tSPI\n".to_owned();
    for node in &nodes {
        for (n, address) in node.ips.iter().enumerate() {
            let id = if n == 0 { format!("{:#x}", node.id.0) } else { String::new() };
            let _ = writeln!(text, "{id}\t{address}");
        }
    }
    Ok(table(&text, 5, out)?)
}

fn node_line(node: &NodeElement) -> String {
    let primary = node.primary_address.clone().unwrap_or_default();
    let (ipv4, ipv6) = (primary.ipv4.unwrap_or_default(), primary.ipv6.unwrap_or_default());
    let NodeElement { name, source, .. } = node;
    format!("{name}\t{}\t{}\t{}\t{}\t{source}\n", ipv4.ip, ipv4.alloc_range, ipv6.ip, ipv6.alloc_range)
}
