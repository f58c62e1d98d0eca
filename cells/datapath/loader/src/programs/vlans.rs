//! VLANs on the devices of the node, with packets that the devices' programs do not handle.

use datapath_abi::{NodeConfig, vlan_filter};
use devices::Device;
use hive::OptionError;

/// The option.
const OPTION: &str = "vlan-bpf-bypass";
/// The largest id (IEEE 802.1Q); zero stands for all.
const MAX_ID: u16 = 4094;
/// The kind of a VLAN's device.
const KIND: &str = "vlan";

/// The ids of VLANs that are left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Vlans {
    /// All.
    All,
    /// These, and those of devices which the agent has programs on.
    Listed(Vec<u16>),
}

impl Vlans {
    /// Reads the option's ids.
    pub(crate) fn new(ids: &[String]) -> Result<Self, OptionError> {
        let wrong = |value: &str, expected| OptionError::new(OPTION, value, expected);
        let mut listed = Vec::new();
        for id in ids.iter().map(|id| id.trim()).filter(|id| !id.is_empty()) {
            let number = id.parse().ok().filter(|number| *number <= MAX_ID);
            listed.push(number.ok_or_else(|| wrong(id, "ids of VLANs from 1 to 4094, or 0 for all"))?);
        }
        listed.sort_unstable();
        listed.dedup();
        if listed.first() == Some(&0) {
            return Ok(Self::All);
        }
        if listed.len() > NodeConfig::VLANS {
            return Err(wrong(&ids.join(","), "at most 15 ids of VLANs, or 0 for all"));
        }
        Ok(Self::Listed(listed))
    }

    /// Writes the ids into the constants of the programs. If there are more VLANs on the selected devices than the programs
    /// have room for, all pass: a device of the node must not lose its packets.
    pub(crate) fn apply(&self, devices: &[&Device], constants: &mut NodeConfig) {
        let Self::Listed(listed) = self else {
            constants.vlan_filter = vlan_filter::ALL;
            return;
        };
        let managed = devices.iter().filter(|device| device.kind == KIND).filter_map(|device| device.vlan);
        let mut ids: Vec<u16> = listed.iter().copied().chain(managed).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() > NodeConfig::VLANS {
            constants.vlan_filter = vlan_filter::ALL;
            return;
        }
        constants.vlan_filter = vlan_filter::LISTED;
        constants.vlans[..ids.len()].copy_from_slice(&ids);
    }
}

#[cfg(test)]
mod tests {
    use devices::Link;

    use super::*;

    fn read(ids: &[&str]) -> Result<Vlans, String> {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        Vlans::new(&ids).map_err(|error| error.to_string())
    }

    #[test]
    fn ids_are_numbers_of_vlans() {
        assert_eq!(read(&[]), Ok(Vlans::Listed(vec![])));
        assert_eq!(read(&["4001", " 7", "7", ""]), Ok(Vlans::Listed(vec![7, 4001])));
        assert_eq!(read(&["7", "0"]), Ok(Vlans::All));
        for id in ["4095", "-1", "x", "1.5"] {
            let expected = format!(
                "option vlan-bpf-bypass: '{id}' is wrong; give ids of VLANs from 1 to 4094, or 0 for all"
            );
            assert_eq!(read(&["1", id]), Err(expected));
        }
        let many: Vec<String> = (1..=16).map(|id: u16| id.to_string()).collect();
        assert!(Vlans::new(&many[..15]).is_ok());
        let error = Vlans::new(&many).unwrap_err().to_string();
        assert!(error.ends_with("; give at most 15 ids of VLANs, or 0 for all"), "{error}");
    }

    #[test]
    fn vlans_with_programs_of_their_own_pass_below_them() {
        let device = |kind: &str, vlan| {
            let link = Link { kind: kind.to_owned(), vlan, ..Link::default() };
            Device { link, ..Device::default() }
        };
        let constants = |vlans: &Vlans, devices: &[Device]| {
            let mut constants = NodeConfig::default();
            vlans.apply(&devices.iter().collect::<Vec<_>>(), &mut constants);
            (constants.vlan_filter, constants.vlans.into_iter().filter(|id| *id != 0).collect::<Vec<_>>())
        };
        let devices = [device("device", None), device("vlan", Some(100)), device("vlan", Some(7))];
        let listed = read(&["7", "9"]).unwrap();
        assert_eq!(constants(&listed, &devices), (vlan_filter::LISTED, vec![7, 9, 100]));
        assert_eq!(constants(&listed, &[]), (vlan_filter::LISTED, vec![7, 9]));
        assert_eq!(constants(&read(&["0"]).unwrap(), &devices), (vlan_filter::ALL, vec![]));
        let many: Vec<Device> = (1..=14).map(|id| device("vlan", Some(id))).collect();
        assert_eq!(constants(&listed, &many).0, vlan_filter::LISTED);
        let more: Vec<Device> = (20..=33).map(|id| device("vlan", Some(id))).collect();
        assert_eq!(constants(&listed, &more), (vlan_filter::ALL, vec![]));
    }
}
