//! The table of desired neighbour entries.

use std::net::IpAddr;

use devices::MappedIp;
use reconciler::Status;
use serde::{Serialize, Serializer};
use statedb::{IndexKey, KeyBuf, KeyParseError, Query, TableDisplay, TableSpec};

/// A row of table `desired-neighbors`: the next hop to one or more forwardable addresses by a device.
#[derive(Clone, Debug)]
pub struct DesiredNeighbor {
    /// The neighbour's address.
    pub ip: IpAddr,
    /// Index of the device.
    pub link_index: u32,
    /// Its state of reconciliation.
    pub status: Status,
}

/// The primary key, `ip@index` as text.
#[derive(Clone, Copy, Debug)]
pub struct NeighborId {
    ip: MappedIp,
    link_index: u32,
}

impl IndexKey for NeighborId {
    fn encode(&self, key: &mut KeyBuf) {
        self.ip.encode(key);
        self.link_index.encode(key);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        let wrong = || KeyParseError::new(text, "a neighbour: ip@link");
        let (ip, link) = text.split_once('@').ok_or_else(wrong)?;
        let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
        let link_index = link.parse().map_err(|_| wrong())?;
        NeighborId { ip: ip.into(), link_index }.encode(key);
        Ok(())
    }
}

impl DesiredNeighbor {
    /// Selects the row of an address and a device.
    #[must_use]
    pub fn by_id(ip: IpAddr, link_index: u32) -> Query<Self> {
        Query::primary(NeighborId { ip: ip.into(), link_index })
    }
}

impl TableSpec for DesiredNeighbor {
    const NAME: &'static str = "desired-neighbors";
    const PRIMARY: &'static str = "id";
    type Key<'a> = NeighborId;

    fn key(&self) -> NeighborId {
        NeighborId { ip: self.ip.into(), link_index: self.link_index }
    }
}

impl TableDisplay for DesiredNeighbor {
    fn columns() -> &'static [&'static str] {
        &["IP", "Link", "Status"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.ip.to_string(), self.link_index.to_string(), self.status.kind().to_string()]
    }
}

impl Serialize for DesiredNeighbor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire<'a> {
            #[serde(rename = "IP")]
            ip: IpAddr,
            if_index: u32,
            status: &'a Status,
        }
        Wire { ip: self.ip, if_index: self.link_index, status: &self.status }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_as_text() {
        let neighbor =
            DesiredNeighbor { ip: [192, 0, 2, 1].into(), link_index: 7, status: Status::pending() };
        let (mut text, mut key) = (KeyBuf::new(), KeyBuf::new());
        NeighborId::encode_text("192.0.2.1@7", &mut text).unwrap();
        TableSpec::key(&neighbor).encode(&mut key);
        assert_eq!(text, key);
        for wrong in ["192.0.2.1", "192.0.2.1@x", "x@7", ""] {
            assert!(NeighborId::encode_text(wrong, &mut KeyBuf::new()).is_err(), "{wrong}");
        }
        assert_eq!(neighbor.row(), ["192.0.2.1", "7", "Pending"]);
    }
}
