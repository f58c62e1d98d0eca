//! The row of table `desired-devices`.

use std::sync::Arc;

use reconciler::Status;
use serde::{Serialize, Serializer};
use statedb::{
    Index, IndexDef, IndexKey, KeyBuf, KeyParseError, Prefix, PrefixOf, Query, TableDisplay, TableSpec,
};

use crate::Error;

/// Longest name of a device (`IFNAMSIZ` without the terminating zero).
const MAX_NAME: usize = 15;
const MAX_VLAN_ID: u16 = 4094;

/// A VLAN of another device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The parent's name.
    pub parent: Arc<str>,
    /// The parent's index when the device was created, 0 before.
    pub(crate) parent_index: u32,
    /// The id of the VLAN.
    pub id: u16,
}

/// A device that an owner desires.
#[derive(Clone, Debug)]
pub struct DesiredDevice {
    /// Name of its owner.
    pub owner: Arc<str>,
    /// Name of the device.
    pub name: Arc<str>,
    /// Its kind with the properties.
    pub vlan: Vlan,
    /// Its state of reconciliation.
    pub status: Status,
}

impl DesiredDevice {
    /// Returns a VLAN device.
    ///
    /// # Errors
    /// The name or the id cannot be of a device.
    pub fn vlan(name: &str, parent: &str, id: u16) -> Result<Self, Error> {
        let is_valid = |name: &str| {
            let is_wrong = |c: char| c.is_whitespace() || c == '/' || c == ':';
            !name.is_empty()
                && name.len() <= MAX_NAME
                && !name.contains(is_wrong)
                && name != "."
                && name != ".."
        };
        if let Some(name) = [name, parent].into_iter().find(|name| !is_valid(name)) {
            return Err(Error::Name { name: name.to_owned() });
        }
        if !(1..=MAX_VLAN_ID).contains(&id) {
            return Err(Error::VlanId { name: name.to_owned(), id });
        }
        Ok(Self {
            owner: Arc::from(""),
            name: Arc::from(name),
            vlan: Vlan { parent: Arc::from(parent), parent_index: 0, id },
            status: Status::pending(),
        })
    }

    /// Selects the devices of an owner.
    #[must_use]
    pub fn by_owner(owner: &str) -> Prefix<Self> {
        Prefix::primary(owner)
    }

    /// Selects the row of an owner and a name.
    #[must_use]
    pub fn by_id(owner: &str, name: &str) -> Query<Self> {
        Query::primary(DeviceId { owner, name })
    }

    /// Selects the rows of a name.
    #[must_use]
    pub fn by_name(name: &str) -> Query<Self> {
        BY_NAME.query(name)
    }

    /// Whether two rows of an owner desire the same, whatever became of them.
    pub(crate) fn is_equal(&self, other: &DesiredDevice) -> bool {
        (&self.vlan.parent, self.vlan.id) == (&other.vlan.parent, other.vlan.id)
    }
}

/// The primary key: `owner/name`, as in the log.
#[derive(Clone, Copy, Debug)]
pub struct DeviceId<'a> {
    owner: &'a str,
    name: &'a str,
}

impl IndexKey for DeviceId<'_> {
    fn encode(&self, key: &mut KeyBuf) {
        self.owner.encode(key);
        self.name.encode(key);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        let wrong = || KeyParseError::new(text, "a device: owner/name");
        let (owner, name) = text.rsplit_once('/').ok_or_else(wrong)?;
        DeviceId { owner, name }.encode(key);
        Ok(())
    }

    /// Parses an owner, or a whole key.
    fn encode_text_prefix(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        if text.contains('/') { Self::encode_text(text, key) } else { str::encode_text_prefix(text, key) }
    }
}

impl<'a> PrefixOf<DeviceId<'a>> for str {
    fn encode_prefix(&self, key: &mut KeyBuf) {
        self.encode(key);
    }
}

const BY_NAME: Index<DesiredDevice, str> = Index::new("name", |device, keys| keys.add(&device.name));

impl TableSpec for DesiredDevice {
    const NAME: &'static str = "desired-devices";
    const PRIMARY: &'static str = "id";
    type Key<'a> = DeviceId<'a>;

    fn key(&self) -> DeviceId<'_> {
        DeviceId { owner: &self.owner, name: &self.name }
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_NAME.def()]
    }
}

impl DesiredDevice {
    fn owner_text(&self) -> &str {
        if self.owner.is_empty() { "N/A" } else { &self.owner }
    }

    fn properties(&self) -> String {
        let Vlan { parent, parent_index, id } = &self.vlan;
        format!("Type=vlan, ParentDevice={parent} ({parent_index}), VLAN={id}")
    }
}

impl TableDisplay for DesiredDevice {
    fn columns() -> &'static [&'static str] {
        &["Owner", "Name", "Properties", "Status"]
    }

    fn row(&self) -> Vec<String> {
        let owner = self.owner_text().to_owned();
        vec![owner, self.name.to_string(), self.properties(), self.status.to_string()]
    }
}

impl Serialize for DesiredDevice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire<'a> {
            owner: &'a str,
            name: &'a str,
            properties: String,
            status: &'a Status,
        }
        let properties = self.properties();
        Wire { owner: &self.owner, name: &self.name, properties, status: &self.status }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_reads_as_cilium_prints_it() {
        let mut device = DesiredDevice::vlan("stor0", "eth0", 7).unwrap();
        device.vlan.parent_index = 3;
        assert_eq!(device.row()[..3], ["N/A", "stor0", "Type=vlan, ParentDevice=eth0 (3), VLAN=7"]);
        device.owner = Arc::from("ns/storage");
        assert_eq!(device.row()[0], "ns/storage");
        let (mut text, mut key) = (KeyBuf::new(), KeyBuf::new());
        DeviceId::encode_text("ns/storage/stor0", &mut text).unwrap();
        TableSpec::key(&device).encode(&mut key);
        assert_eq!(text, key);
        let json = serde_json::to_value(&device).unwrap();
        assert_eq!((&json["Owner"], &json["Name"]), (&"ns/storage".into(), &"stor0".into()));
        for (name, parent, id) in
            [("", "eth0", 1), ("sixteen-letters0", "eth0", 1), ("a b", "eth0", 1), ("a", "e/0", 1)]
        {
            assert!(DesiredDevice::vlan(name, parent, id).unwrap_err().to_string().contains("15 characters"));
        }
        assert!(DesiredDevice::vlan("a", "b", 0).is_err() && DesiredDevice::vlan("a", "b", 4095).is_err());
    }
}
