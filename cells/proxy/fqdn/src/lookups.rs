//! Names of addresses, for other cells.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::directory::Shared;

/// The names that the endpoints of this node have looked up, as of the latest collection.
#[derive(Clone)]
pub struct DnsNames(pub(crate) Arc<Shared>);

impl DnsNames {
    /// Returns the names by which an endpoint has looked up an address, sorted, without the final dot.
    #[must_use]
    pub fn of(&self, endpoint: u16, address: IpAddr) -> Vec<String> {
        let book = self.0.book.lock();
        let Some(history) = book.names().history(endpoint) else { return Vec::new() };
        let names = book.names().all().names_of(address);
        let own = names.filter(|name| history.cache().contains(name, address));
        own.map(|name| name.strip_suffix('.').unwrap_or(name).to_owned()).collect()
    }
}

impl fmt::Debug for DnsNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DnsNames")
    }
}

#[cfg(test)]
mod tests {
    use fqdn::{Limits, Lookup};
    use jiff::Timestamp;

    use super::*;
    use crate::book::Book;

    #[test]
    fn an_endpoint_has_the_names_that_it_has_looked_up_itself() {
        let shared = Arc::new(Shared::new(Book::new(Limits::default())));
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        for (endpoint, name) in [(7, "b.io"), (7, "a.io"), (8, "c.io")] {
            let lookup = Lookup::new(name, vec![address], 60, Timestamp::UNIX_EPOCH);
            shared.change(|book| book.learn(endpoint, lookup));
        }
        let names = DnsNames(shared.clone());
        assert_eq!(names.of(7, address), ["a.io", "b.io"]);
        assert_eq!(names.of(8, address), ["c.io"]);
        assert!(names.of(9, address).is_empty() && names.of(7, "192.0.2.2".parse().unwrap()).is_empty());
        let expired = Timestamp::from_second(100_000).unwrap();
        shared.change(|book| book.collect(expired, |_| true));
        assert!(names.of(7, address).is_empty(), "kept for a connection, but expired");
    }
}
