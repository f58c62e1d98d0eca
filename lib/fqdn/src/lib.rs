//! DNS names and patterns of policies, and the caches of the addresses that names resolve to.
//!
//! **Owns** nothing: no clock, no sockets, no tasks. Times are arguments.
//!
//! [`Pattern`] matches names as `toFQDNs` and the DNS rules of policies do; [`Rules`] are those of one port of an
//! endpoint. A [`History`] holds the lookups of an endpoint and the names that have expired while connections to them are
//! open; it has the JSON form of Cilium's endpoint records. [`Names`] combines the histories of all endpoints with the
//! selectors of policies: it returns the selectors of each address that changes.
//!
//! ```
//! use fqdn::{Limits, Lookup, Names, Pattern, Selector};
//!
//! let mut names = Names::new(Limits::default());
//! let selector = Selector::pattern("*.example.com");
//! names.select(selector.clone());
//! let now = "2026-01-01T00:00:00Z".parse()?;
//! let address = "192.0.2.1".parse()?;
//! let lookup = Lookup::new("www.example.com", vec![address], 60, now);
//! let changes = names.insert(7, lookup);
//! assert!(changes[&address].contains(&selector));
//! assert!(Pattern::parse("*.example.com").matches("www.example.com."));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Differences from Cilium.** An expired name is kept while a caller finds connections to its address at the time of the
//! collection, not by two complete runs through the connection tracking maps. The entries of an endpoint are limited,
//! too ([`Limits::entries`]).

mod cache;
mod history;
mod index;
mod lookup;
mod name;
mod name_set;
mod names;
mod pattern;
mod rules;
mod small_map;
mod zombies;

pub use cache::{Cache, Removed};
pub use history::{BadHistory, History};
pub use index::Index;
pub use lookup::{Limits, Lookup};
pub use name::canonical;
pub use names::{Changes, Names, Selector};
pub use pattern::{BadPattern, Pattern};
pub use rules::{RestoredRules, Rules, ServerRules, port_key};
pub use zombies::{Zombie, Zombies};
