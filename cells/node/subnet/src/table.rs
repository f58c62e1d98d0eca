//! The table `subnet-identities`.

use ipnetwork::IpNetwork;
use serde::Serialize;
use statedb::{IndexDef, LpmIndex, Query, Snapshot, Table, TableDisplay, TableSpec};

/// A row of the table `subnet-identities`: a subnet and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SubnetIdentity {
    /// The addresses.
    #[serde(rename = "Key")]
    pub prefix: IpNetwork,
    /// The group, from 1 on.
    #[serde(rename = "Value")]
    pub identity: u32,
}

const BY_PREFIX: LpmIndex<SubnetIdentity, IpNetwork> =
    LpmIndex::lpm("prefix", |row, keys| keys.add(&row.prefix));

impl SubnetIdentity {
    /// Returns the group that all addresses of a range are in; `None` if there is no such group. Cost: that of the subnets
    /// within the range.
    pub fn group_of(table: &Table<SubnetIdentity>, snapshot: &Snapshot, range: IpNetwork) -> Option<u32> {
        let longest = table.get(snapshot, BY_PREFIX.query(&range))?;
        let is_whole =
            table.prefix(snapshot, BY_PREFIX.prefix(&range)).all(|row| row.identity == longest.identity);
        is_whole.then_some(longest.identity)
    }
}

impl TableSpec for SubnetIdentity {
    const NAME: &'static str = "subnet-identities";
    const PRIMARY: &'static str = "key";
    type Key<'a> = IpNetwork;

    fn key(&self) -> IpNetwork {
        self.prefix
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_PREFIX.def()]
    }
}

impl SubnetIdentity {
    pub(crate) fn by_key(prefix: IpNetwork) -> Query<SubnetIdentity> {
        Query::primary(prefix)
    }
}

impl TableDisplay for SubnetIdentity {
    fn columns() -> &'static [&'static str] {
        &["Prefix", "Identity"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.prefix.to_string(), self.identity.to_string()]
    }
}

#[cfg(test)]
mod tests {
    use statedb::{Db, RwTable};

    use super::*;
    use crate::Topology;

    #[test]
    fn a_range_has_the_group_that_all_its_addresses_are_in() {
        let table: RwTable<SubnetIdentity> = Db::new().table().unwrap();
        let topology: Topology =
            "10.0.0.0/16;10.1.0.0/16,10.0.7.0/24;fd00::/64;10.2.0.0/16,10.2.1.0/24".parse().unwrap();
        table.transact(|w| topology.rows().for_each(|row| drop(w.insert(row))));
        let snapshot = table.snapshot();
        let group = |range: &str| SubnetIdentity::group_of(&table, &snapshot, range.parse().unwrap());
        assert_eq!(
            (group("10.0.1.0/24"), group("10.0.7.0/24"), group("10.0.7.128/25")),
            (Some(1), Some(2), Some(2))
        );
        assert_eq!(
            (group("10.1.0.0/16"), group("fd00::1:0/112"), group("10.2.0.0/16")),
            (Some(2), Some(3), Some(4))
        );
        assert_eq!(group("10.0.0.0/16"), None, "a part is in another group");
        assert_eq!((group("10.0.0.0/8"), group("192.0.2.0/24"), group("fd00::/48")), (None, None, None));
        let rows: Vec<Vec<String>> = table.all(&snapshot).map(|row| row.row()).collect();
        assert_eq!(rows[0], ["10.0.0.0/16", "1"]);
    }
}
