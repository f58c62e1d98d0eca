//! Neighbour entries of the kernel (ARP or neighbour discovery).

use std::net::IpAddr;

use serde::{Serialize, Serializer};

use crate::HardwareAddr;

/// `NUD_NOARP`: the state of entries that need no resolution, such as multicast addresses.
pub(crate) const STATE_NOARP: u16 = 0x40;

/// A row of table `neighbors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Interface index.
    pub link_index: u32,
    /// The neighbour's address.
    pub ip: IpAddr,
    /// Its hardware address, empty while unknown.
    pub hardware_addr: HardwareAddr,
    /// Type of the entry, as in routes (1 unicast).
    pub kind: u8,
    /// `NUD_*` bits.
    pub state: u16,
    /// `NTF_*` bits.
    pub flags: u8,
    /// `NTF_EXT_*` bits.
    pub flags_ext: u32,
}

const STATES: [(u32, &str); 8] = [
    (0x01, "INCOMPLETE"),
    (0x02, "REACHABLE"),
    (0x04, "STALE"),
    (0x08, "DELAY"),
    (0x10, "PROBE"),
    (0x20, "FAILED"),
    (0x40, "NOARP"),
    (0x80, "PERMANENT"),
];
const FLAGS: [(u32, &str); 8] = [
    (0x01, "USE"),
    (0x02, "SELF"),
    (0x04, "MASTER"),
    (0x08, "PROXY"),
    (0x10, "EXT_LEARNED"),
    (0x20, "OFFLOADED"),
    (0x40, "STICKY"),
    (0x80, "ROUTER"),
];
const FLAGS_EXT: [(u32, &str); 2] = [(0x01, "EXT_MANAGED"), (0x02, "EXT_LOCKED")];
/// Names of `NDA_*`, which Cilium prints for the type.
const TYPES: [&str; 5] = ["UNSPEC", "DST", "LLADDR", "CACHEINFO", "PROBES"];

fn names(bits: u32, table: &[(u32, &str)]) -> String {
    let set: Vec<&str> = table.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "NONE".to_owned() } else { set.join("|") }
}

impl Neighbor {
    /// Column names of table `neighbors`.
    pub const COLUMNS: &[&str] =
        &["LinkIndex", "IPAddr", "HardwareAddr", "Type", "State", "Flags", "FlagsExt"];

    /// Returns the row's columns in the order of [`COLUMNS`](Self::COLUMNS).
    #[must_use]
    pub fn row(&self) -> Vec<String> {
        let kind = match TYPES.get(usize::from(self.kind)) {
            Some(name) => (*name).to_owned(),
            None => self.kind.to_string(),
        };
        vec![
            self.link_index.to_string(),
            self.ip.to_string(),
            self.hardware_addr.to_string(),
            kind,
            names(u32::from(self.state), &STATES),
            names(u32::from(self.flags), &FLAGS),
            names(self.flags_ext, &FLAGS_EXT),
        ]
    }
}

impl Serialize for Neighbor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire<'a> {
            link_index: u32,
            #[serde(rename = "IPAddr")]
            ip: IpAddr,
            hardware_addr: &'a HardwareAddr,
            r#type: u8,
            state: u16,
            flags: u8,
            flags_ext: u32,
        }
        Wire {
            link_index: self.link_index,
            ip: self.ip,
            hardware_addr: &self.hardware_addr,
            r#type: self.kind,
            state: self.state,
            flags: self.flags,
            flags_ext: self.flags_ext,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_is_serialized_as_cilium_does() {
        let neighbor = Neighbor {
            link_index: 2,
            ip: [10, 99, 0, 2].into(),
            hardware_addr: HardwareAddr::new(&[0x3e, 0xb3, 0xd6, 0xd7, 0xf6, 0xe1]),
            kind: 1,
            state: 2,
            flags: 0,
            flags_ext: 0,
        };
        assert_eq!(neighbor.row().join(" "), "2 10.99.0.2 3e:b3:d6:d7:f6:e1 DST REACHABLE NONE NONE");
        assert_eq!(
            serde_json::to_string(&neighbor).unwrap(),
            r#"{"LinkIndex":2,"IPAddr":"10.99.0.2","HardwareAddr":"3e:b3:d6:d7:f6:e1","Type":1,"State":2,"Flags":0,"FlagsExt":0}"#
        );
    }
}
