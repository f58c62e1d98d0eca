//! The row of table `ipsets`.

use std::net::IpAddr;

use reconciler::Status;
use serde::Serialize;
use statedb::{Query, TableDisplay, TableSpec};

/// A member of a set.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SetEntry {
    /// The name of the set.
    pub name: &'static str,
    /// `inet` or `inet6`.
    pub family: &'static str,
    /// The address.
    pub addr: IpAddr,
    /// Its state of reconciliation.
    pub status: Status,
}

impl SetEntry {
    /// Creates a member that is to be added.
    #[must_use]
    pub fn new(name: &'static str, addr: IpAddr) -> SetEntry {
        let family = if addr.is_ipv4() { "inet" } else { "inet6" };
        SetEntry { name, family, addr, status: Status::pending() }
    }

    /// Selects the row of a member.
    #[must_use]
    pub fn by_member(name: &str, addr: IpAddr) -> Query<SetEntry> {
        Query::primary(key(name, addr))
    }
}

fn key(name: &str, addr: IpAddr) -> String {
    format!("{name} {addr}")
}

impl TableSpec for SetEntry {
    const NAME: &'static str = "ipsets";
    const PRIMARY: &'static str = "id";
    type Key<'a> = String;

    fn key(&self) -> String {
        key(self.name, self.addr)
    }
}

impl TableDisplay for SetEntry {
    fn columns() -> &'static [&'static str] {
        &["Name", "Family", "Addr", "Status"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.name.to_owned(), self.family.to_owned(), self.addr.to_string(), self.status.to_string()]
    }
}
