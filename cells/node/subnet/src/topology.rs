//! The value of the option `subnet-topology`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use ipnetwork::IpNetwork;

use crate::{Error, SubnetIdentity};

/// Entries of `cilium_subnet_map`, which is of Cilium's size.
const MAX_SUBNETS: usize = 1024;

/// Groups of subnets, by prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    text: String,
    groups: BTreeMap<IpNetwork, u32>,
}

impl Topology {
    /// Returns the subnets with their groups.
    pub fn rows(&self) -> impl Iterator<Item = SubnetIdentity> {
        self.groups.iter().map(|(prefix, identity)| SubnetIdentity { prefix: *prefix, identity: *identity })
    }

    /// Returns the group of a subnet with exactly this prefix.
    pub(crate) fn group(&self, prefix: IpNetwork) -> Option<u32> {
        self.groups.get(&prefix).copied()
    }
}

impl FromStr for Topology {
    type Err = Error;

    /// Parses groups as Cilium numbers them: by their position from 1 on, empty ones included.
    fn from_str(text: &str) -> Result<Topology, Error> {
        let mut groups = BTreeMap::new();
        for (identity, group) in (1..).zip(text.split(';')) {
            for part in group.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                let invalid = || Error::Invalid { text: part.to_owned() };
                // Without a length the parser takes an address for a prefix.
                let network: IpNetwork =
                    part.contains('/').then(|| part.parse().ok()).flatten().ok_or_else(invalid)?;
                let prefix = IpNetwork::new(network.network(), network.prefix()).map_err(|_| invalid())?;
                if let Some(first) = groups.insert(prefix, identity)
                    && first != identity
                {
                    return Err(Error::Twice { prefix, first, second: identity });
                }
            }
        }
        if groups.is_empty() && !text.trim().is_empty() {
            return Err(Error::Empty { text: text.to_owned() });
        }
        if groups.len() > MAX_SUBNETS {
            return Err(Error::TooMany { found: groups.len(), most: MAX_SUBNETS });
        }
        Ok(Topology { text: text.trim().to_owned(), groups })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<String> {
        let topology: Topology = text.parse().unwrap();
        assert_eq!(topology.to_string(), text.trim());
        topology.rows().map(|row| format!("{} {}", row.prefix, row.identity)).collect()
    }

    /// The example of Cilium's documentation of the option.
    #[test]
    fn groups_are_numbered_by_their_position() {
        let text = "10.0.0.1/24,10.10.0.1/24;10.20.0.1/24;2001:0db8:85a3::/64";
        let expected = ["10.0.0.0/24 1", "10.10.0.0/24 1", "10.20.0.0/24 2", "2001:db8:85a3::/64 3"];
        assert_eq!(rows(text), expected);
        assert_eq!(rows(" ; ,10.0.0.0/8 , ,; "), ["10.0.0.0/8 2"]);
        assert_eq!(rows("10.0.0.0/8,10.0.0.0/8;10.0.0.0/16"), ["10.0.0.0/8 1", "10.0.0.0/16 2"]);
        assert_eq!(rows("  "), [] as [&str; 0]);
    }

    #[test]
    fn errors_name_the_part() {
        let error = |text: &str| text.parse::<Topology>().unwrap_err().to_string();
        assert_eq!(error("10.0.0.0/16,east"), "\"east\" is no CIDR such as 10.0.0.0/16");
        assert_eq!(error("10.0.0.0"), "\"10.0.0.0\" is no CIDR such as 10.0.0.0/16");
        assert_eq!(error("10.0.0.0/33"), "\"10.0.0.0/33\" is no CIDR such as 10.0.0.0/16");
        assert_eq!(error(";,"), "there is no subnet in \";,\"");
        assert_eq!(error("10.0.0.0/8;10.1.0.0/8"), "10.0.0.0/8 is in the groups 1 and 2");
        let many: Vec<String> = (0..1025).map(|n| format!("10.{}.{}.0/24", n >> 8, n & 255)).collect();
        assert_eq!(error(&many.join(",")), "there are 1025 subnets, more than 1024");
        assert!(many[1..].join(",").parse::<Topology>().is_ok());
    }
}
