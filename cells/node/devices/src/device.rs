//! A network device with its addresses.

use std::fmt;
use std::net::IpAddr;

use serde::{Serialize, Serializer};

/// `IFF_UP`: the link is administratively up.
pub(crate) const IFF_UP: u32 = 0x1;
/// `IFF_LOOPBACK`.
pub(crate) const IFF_LOOPBACK: u32 = 0x8;
/// `IFF_SLAVE`: part of a bond.
pub(crate) const IFF_SLAVE: u32 = 0x800;

/// The device between host and pods, which has the router's address.
pub const HOST_DEVICE: &str = "cilium_host";

/// A hardware address; empty for devices that have none.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct HardwareAddr(Vec<u8>);

impl HardwareAddr {
    /// Builds an address of its octets; all zero counts as none.
    #[must_use]
    pub fn new(octets: &[u8]) -> Self {
        if octets.iter().all(|&b| b == 0) { Self::default() } else { Self(octets.to_vec()) }
    }

    /// Returns the octets.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// Returns the six octets of an Ethernet address.
    #[must_use]
    pub fn ethernet(&self) -> Option<[u8; 6]> {
        self.0.as_slice().try_into().ok()
    }

    /// Whether the device has no hardware address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for HardwareAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, octet) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ":" };
            write!(f, "{separator}{octet:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HardwareAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for HardwareAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An address of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct DeviceAddress {
    /// The address.
    pub addr: IpAddr,
    /// Whether it was added after another one of the same subnet (`IFA_F_SECONDARY`).
    pub secondary: bool,
    /// Its scope: 0 universe, 253 link, 254 host.
    pub scope: u8,
    /// Length of its subnet's prefix.
    #[serde(skip)]
    pub prefix_len: u8,
}

/// A link of the agent's network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Alternative names, in the kernel's order.
    pub alt_names: Vec<String>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Hardware address.
    pub hardware_addr: HardwareAddr,
    /// `IFF_*` flags of the kernel.
    pub raw_flags: u32,
    /// Kind as `ip link` names it (`veth`, `bridge`, ...), `device` if it has none.
    pub kind: String,
    /// Index of the bridge or bond it belongs to, 0 for none.
    pub master: u32,
    /// Index of the device below it or, for a veth, of its peer; 0 for none.
    pub parent: u32,
    /// The id of the VLAN that it is the device of.
    pub vlan: Option<u16>,
    /// Operational status: `up`, `down`, `unknown`, `lower-layer-down`, ...
    pub oper_status: &'static str,
    /// Group number (`IFLA_GROUP`), 0 by default.
    pub group: u32,
}

impl Link {
    /// Whether it is administratively up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.raw_flags & IFF_UP != 0
    }
}

/// A row of table `devices`: a link, its addresses, and whether the agent
/// treats it as facing the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The link's attributes as the kernel reports them.
    pub link: Link,
    /// Its addresses, in the order in which they were added.
    pub addrs: Vec<DeviceAddress>,
    /// Whether programs for traffic with the outside are attached to it.
    pub selected: bool,
    /// The reason why it is not selected; empty if it is.
    pub not_selected_reason: String,
}

impl std::ops::Deref for Device {
    type Target = Link;
    fn deref(&self) -> &Link {
        &self.link
    }
}

/// Flags in the order and with the values of Go's `net.Flags`, which tables and REST show: kernel bit, value, name.
const FLAGS: [(u32, u32, &str); 6] = [
    (0x1, 1, "up"),
    (0x2, 2, "broadcast"),
    (0x8, 4, "loopback"),
    (0x10, 8, "pointtopoint"),
    (0x1000, 16, "multicast"),
    (0x40, 32, "running"),
];

impl Device {
    /// Returns the flags as one integer, in the values of Go's `net.Flags`.
    #[must_use]
    pub fn flags(&self) -> u32 {
        let set = FLAGS.iter().filter(|(bit, ..)| self.raw_flags & bit != 0);
        set.map(|(_, value, _)| value).sum()
    }

    /// Returns the names of the flags, as `up|broadcast|multicast|running`.
    #[must_use]
    pub fn flag_names(&self) -> String {
        let set = FLAGS.iter().filter(|(bit, ..)| self.raw_flags & bit != 0);
        let names: Vec<&str> = set.map(|(_, _, name)| *name).collect();
        if names.is_empty() { "0".to_owned() } else { names.join("|") }
    }

    /// Returns the row's columns in the order of [`COLUMNS`](Self::COLUMNS).
    #[must_use]
    pub fn row(&self) -> Vec<String> {
        let name = if self.alt_names.is_empty() {
            self.name.clone()
        } else {
            format!("{} ({})", self.name, self.alt_names.join(", "))
        };
        let addrs: Vec<String> = self.addrs.iter().map(|a| a.addr.to_string()).collect();
        vec![
            name,
            self.index.to_string(),
            self.selected.to_string(),
            self.kind.clone(),
            self.mtu.to_string(),
            self.hardware_addr.to_string(),
            self.flag_names(),
            addrs.join(", "),
            self.oper_status.to_owned(),
        ]
    }

    /// Column names of table `devices`.
    pub const COLUMNS: &[&str] =
        &["Name", "Index", "Selected", "Type", "MTU", "HWAddr", "Flags", "Addresses", "OperStatus"];
}

impl Serialize for Device {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire<'a> {
            index: u32,
            #[serde(rename = "MTU")]
            mtu: u32,
            name: &'a str,
            alt_names: Option<&'a [String]>,
            hardware_addr: &'a HardwareAddr,
            flags: u32,
            addrs: Option<&'a [DeviceAddress]>,
            raw_flags: u32,
            r#type: &'a str,
            master_index: u32,
            oper_status: &'a str,
            selected: bool,
            not_selected_reason: &'a str,
        }
        Wire {
            index: self.index,
            mtu: self.mtu,
            name: &self.name,
            alt_names: (!self.alt_names.is_empty()).then_some(&self.alt_names),
            hardware_addr: &self.hardware_addr,
            flags: self.flags(),
            addrs: (!self.addrs.is_empty()).then_some(&self.addrs),
            raw_flags: self.raw_flags,
            r#type: &self.kind,
            master_index: self.master,
            oper_status: self.oper_status,
            selected: self.selected,
            not_selected_reason: &self.not_selected_reason,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_serialized_as_cilium_does() {
        let device = Device {
            link: Link {
                index: 2,
                name: "ext0".into(),
                mtu: 1500,
                hardware_addr: HardwareAddr::new(&[0x86, 0x26, 0x5c, 0x9a, 0x72, 0x9b]),
                raw_flags: 69699,
                kind: "veth".into(),
                oper_status: "up",
                ..Link::default()
            },
            addrs: vec![DeviceAddress {
                addr: [10, 99, 0, 1].into(),
                secondary: false,
                scope: 0,
                prefix_len: 24,
            }],
            selected: true,
            not_selected_reason: String::new(),
        };
        assert_eq!(
            device.row().join(" "),
            "ext0 2 true veth 1500 86:26:5c:9a:72:9b up|broadcast|multicast|running 10.99.0.1 up"
        );
        assert_eq!(
            serde_json::to_string(&device).unwrap(),
            r#"{"Index":2,"MTU":1500,"Name":"ext0","AltNames":null,"HardwareAddr":"86:26:5c:9a:72:9b","Flags":51,"Addrs":[{"Addr":"10.99.0.1","Secondary":false,"Scope":0}],"RawFlags":69699,"Type":"veth","MasterIndex":0,"OperStatus":"up","Selected":true,"NotSelectedReason":""}"#
        );
    }
}
