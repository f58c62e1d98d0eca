//! The work of the jobs: the node's address follows the devices, the router's is stored in a file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use devices::NodeAddress;
use statedb::{Snapshot, Table};

use crate::derive::node_ips;
use crate::settings::Settings;
use crate::{AddressSource, LocalNode, LocalNodeStore, restore};

/// Replaces the node's address when it was removed from the devices. While it exists it stays, even if a new one is
/// better: peers and tunnels know it. An address of the Node object follows that object alone.
pub(crate) fn addresses(
    settings: &Settings,
    table: &Table<NodeAddress>,
    snapshot: &Snapshot,
    store: &LocalNodeStore,
) {
    let rows: Vec<&NodeAddress> = table.all(snapshot).map(|row| &**row).collect();
    store.update(|node| follow(node, settings, &rows));
}

fn follow(node: &mut LocalNode, settings: &Settings, rows: &[&NodeAddress]) {
    let follows = |source, ip: Option<IpAddr>| {
        source == AddressSource::Device && !ip.is_some_and(|ip| rows.iter().any(|row| row.addr == ip))
    };
    let (v4, v6): (Option<Ipv4Addr>, Option<Ipv6Addr>) = node_ips(settings, rows);
    if follows(node.ipv4_source, node.ipv4.map(IpAddr::V4)) && v4.is_some() {
        node.ipv4 = v4;
    }
    if follows(node.ipv6_source, node.ipv6.map(IpAddr::V6)) && v6.is_some() {
        node.ipv6 = v6;
    }
}

/// Writes the router's addresses to the state folder. Without a router the file is kept: an agent that is killed before
/// it has allocated one needs the addresses of the previous run at its next start.
pub(crate) fn write_router(state: &Path, store: &LocalNodeStore) -> Result<(), state_file::Error> {
    match store.node().filter(|node| node.router_ipv4.is_some() || node.router_ipv6.is_some()) {
        Some(node) => restore::write(state, &node),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalNodeConfig;

    #[test]
    fn an_address_stays_while_it_exists() {
        let settings = Settings::new(&LocalNodeConfig::default(), true, true).unwrap();
        let row = |text: &str, device: &str| NodeAddress {
            addr: text.parse().unwrap(),
            node_port: false,
            primary: true,
            device_name: device.into(),
        };
        let mut node = LocalNode { ipv4: Some([10, 0, 0, 5].into()), ..LocalNode::default() };
        let better = [row("10.0.0.1", "*"), row("10.0.0.1", "eth0"), row("10.0.0.5", "eth0")];
        follow(&mut node, &settings, &better.iter().collect::<Vec<_>>());
        assert_eq!(node.ipv4, Some([10, 0, 0, 5].into()));
        follow(&mut node, &settings, &better[..2].iter().collect::<Vec<_>>());
        assert_eq!(node.ipv4, Some([10, 0, 0, 1].into()));
        follow(&mut node, &settings, &[]);
        assert_eq!(node.ipv4, Some([10, 0, 0, 1].into()), "an old address is better than none");
        node.ipv4 = Some([192, 0, 2, 7].into());
        node.ipv4_source = AddressSource::Node;
        follow(&mut node, &settings, &better.iter().collect::<Vec<_>>());
        assert_eq!(node.ipv4, Some([192, 0, 2, 7].into()), "the Node object decides");
    }
}
