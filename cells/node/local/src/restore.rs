//! The router's addresses of the previous run: from the header file that Cilium and this agent leave in the state
//! folder, else from the device `cilium_host`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use devices::Device;
use state_file::StateFile;

use crate::{Error, LocalNode};

/// The header file, below the state folder.
const FILE: &str = "globals/node_config.h";

/// Router addresses, by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Routers {
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) ipv6: Option<Ipv6Addr>,
}

/// Merges the addresses of the file and the device. The file wins: other processes may have added addresses to the
/// device.
pub(crate) fn routers(device: Option<&Device>, file: Routers) -> Routers {
    let mut found = file;
    for address in device.iter().flat_map(|d| &d.addrs) {
        match address.addr {
            IpAddr::V4(ip) => {
                found.ipv4.get_or_insert(ip);
            }
            IpAddr::V6(ip) if !ip.is_unicast_link_local() => {
                found.ipv6.get_or_insert(ip);
            }
            IpAddr::V6(_) => {}
        }
    }
    found
}

/// The header file. The format is Cilium's, so it has no version.
fn file(state: &Path) -> StateFile {
    StateFile::new(state.join(FILE)).folder_mode(0o755).limit(1 << 20)
}

/// Reads the header file; without one there are no addresses. A damaged file is quarantined and rewritten: the router's
/// addresses are also on its device.
pub(crate) fn read(state: &Path) -> Result<Routers, Error> {
    match file(state).read_text() {
        Ok(text) => Ok(text.as_deref().map(parse).unwrap_or_default()),
        Err(error @ state_file::Error::Damaged { .. }) => {
            tracing::warn!(%error, "The file of the router's addresses is damaged; it is written again");
            state_file::quarantine(error.path())?;
            Ok(Routers::default())
        }
        Err(error) => Err(error.into()),
    }
}

fn parse(text: &str) -> Routers {
    let octets = |key: &str| -> Option<Vec<u8>> {
        let line = text.lines().find_map(|l| l.trim_start().strip_prefix(key))?;
        line.split(',').map(|octet| u8::from_str_radix(octet.trim().strip_prefix("0x")?, 16).ok()).collect()
    };
    let four: Option<[u8; 4]> = octets("cilium.v4.internal.raw").and_then(|o| o.try_into().ok());
    let sixteen: Option<[u8; 16]> = octets("cilium.v6.internal.raw").and_then(|o| o.try_into().ok());
    Routers {
        ipv4: four.map(Ipv4Addr::from).filter(|ip| !ip.is_unspecified()),
        ipv6: sixteen.map(Ipv6Addr::from).filter(|ip| !ip.is_unspecified()),
    }
}

fn render(node: &LocalNode) -> String {
    let raw = |octets: &[u8]| {
        let list: Vec<String> = octets.iter().map(|o| format!("{o:#x}")).collect();
        list.join(", ")
    };
    let mut text = String::from("/*\n");
    let mut line = |key: &str, value: String| {
        text.push_str(&format!(" {key} {value}\n"));
    };
    if let Some(ip) = node.ipv6 {
        line("cilium.v6.external.str", ip.to_string());
    }
    if let Some(ip) = node.router_ipv6 {
        line("cilium.v6.internal.str", ip.to_string());
        line("cilium.v6.internal.raw", raw(&ip.octets()));
    }
    if let Some(ip) = node.ipv4 {
        line("cilium.v4.external.str", ip.to_string());
    }
    if let Some(ip) = node.router_ipv4 {
        line("cilium.v4.internal.str", ip.to_string());
        line("cilium.v4.internal.raw", raw(&ip.octets()));
    }
    text.push_str(" */\n");
    text
}

/// Writes the header file unless it has this content.
pub(crate) fn write(state: &Path, node: &LocalNode) -> Result<(), state_file::Error> {
    file(state).write_changed(render(node).as_bytes())
}

#[cfg(test)]
mod tests {
    use devices::DeviceAddress;

    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Routers::default());
        let node = LocalNode {
            ipv4: Some([10, 99, 0, 1].into()),
            router_ipv4: Some([10, 244, 71, 14].into()),
            router_ipv6: Some("f00d::af4:0:0:9".parse().unwrap()),
            ..LocalNode::default()
        };
        write(dir.path(), &node).unwrap();
        write(dir.path(), &node).unwrap();
        let expected = Routers { ipv4: node.router_ipv4, ipv6: node.router_ipv6 };
        assert_eq!(read(dir.path()).unwrap(), expected);
        assert_eq!(std::fs::read_dir(dir.path().join("globals")).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_quarantined() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        std::fs::create_dir_all(&path).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Routers::default());
        let node = LocalNode { router_ipv4: Some([10, 244, 71, 14].into()), ..LocalNode::default() };
        write(dir.path(), &node).unwrap();
        assert_eq!(read(dir.path()).unwrap().ipv4, node.router_ipv4);
    }

    #[test]
    fn the_file_of_cilium_is_read() {
        let text = "/*\n * comment\n cilium.v6.external.str fd00::1\n cilium.v4.internal.raw 0xa, 0xf4, 0x0, 0xf8\n cilium.v4.nodeport.str []\n */\n// JSON_OUTPUT: e30=\n";
        assert_eq!(parse(text).ipv4, Some([10, 244, 0, 248].into()));
        assert_eq!(parse("cilium.v4.internal.raw 0xa, 0xf4"), Routers::default());
        assert_eq!(parse("cilium.v4.internal.raw 0x0, 0x0, 0x0, 0x0"), Routers::default());
    }

    #[test]
    fn the_file_comes_before_the_device() {
        let address = |text: &str| DeviceAddress {
            addr: text.parse().unwrap(),
            secondary: false,
            scope: 0,
            prefix_len: 32,
        };
        let device = Device {
            addrs: vec![address("10.0.0.7"), address("fe80::1"), address("fd00::7")],
            ..Device::default()
        };
        let file = Routers { ipv4: Some([10, 0, 0, 3].into()), ipv6: None };
        let found = routers(Some(&device), file);
        assert_eq!(found.ipv4, Some([10, 0, 0, 3].into()));
        assert_eq!(found.ipv6, Some("fd00::7".parse().unwrap()));
    }
}
