//! The directory of the DNS proxy: endpoints, rules of redirects, the names.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use datapath_abi::identity::{HOST, WORLD, WORLD_IPV4, WORLD_IPV6};
use dns_proxy::{Client, Directory, Question, Server};
use endpoints::Endpoint;
use fqdn::{Lookup, RestoredRules, Rules, ServerRules, port_key};
use futures::future::{BoxFuture, FutureExt as _};
use identity::{Identity, Range};
use ipcache::Entry;
use ipnetwork::IpNetwork;
use labels::{Label, LabelRef};
use local_node::LocalNode;
use parking_lot::Mutex;
use policy::PeerSelector;
use policy_engine::{Direction, L7Rules, Parser, ProxyRules, Selector};
use proxy_ports::EndpointRedirect;
use serde_json::Value;
use statedb::{Snapshot, Table};
use tokio::sync::{Notify, watch};

use crate::book::Book;
use crate::metrics::Counters;

/// The maximum number of servers in a rule of a record, as in Cilium.
const MAX_RECORDED_SERVERS: usize = 1000;

/// The names, shared by the directory, the job and requests.
pub(crate) struct Shared {
    pub(crate) book: Mutex<Book>,
    /// Wakes the job that gives identities, after a change of the names.
    pub(crate) wake: Notify,
    /// Wakes the job that writes records, after the same.
    pub(crate) changed: Notify,
    /// The last change that the kernel has.
    applied: watch::Sender<u64>,
    pub(crate) counters: Counters,
}

impl Shared {
    pub(crate) fn new(book: Book) -> Shared {
        let (book, applied) = (Mutex::new(book), watch::Sender::new(0));
        Shared { book, wake: Notify::new(), changed: Notify::new(), applied, counters: Counters::default() }
    }

    /// Changes the names and wakes the job.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let result = change(&mut self.book.lock());
        self.wake.notify_one();
        self.changed.notify_one();
        result
    }

    /// Inserts a lookup. Returns the change that its answer waits for. The job is woken only if there is one: most answers
    /// repeat what the kernel has.
    fn learn(&self, endpoint: u16, lookup: Lookup) -> Option<u64> {
        let (change, has_pending) = {
            let mut book = self.book.lock();
            (book.learn(endpoint, lookup), book.has_pending())
        };
        if has_pending {
            self.wake.notify_one();
        }
        self.changed.notify_one();
        change
    }

    /// Records that the kernel has all addresses up to a change.
    pub(crate) fn done(&self, change: u64) {
        self.book.lock().done(change);
        self.applied.send_replace(change);
    }

    /// Waits until the kernel has the addresses of a change.
    pub(crate) async fn applied(&self, change: u64) {
        // Never an error: this object owns the sender.
        let _ = self.applied.subscribe().wait_for(|applied| *applied >= change).await;
    }
}

/// The tables that decide on queries.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) redirects: Table<EndpointRedirect>,
    pub(crate) selectors: Arc<Table<PeerSelector>>,
    pub(crate) ipcache: Arc<Table<Entry>>,
    pub(crate) identities: Arc<Table<Identity>>,
    pub(crate) node: Arc<Table<LocalNode>>,
    /// Whether IPv4 and IPv6 are enabled.
    pub(crate) families: [bool; 2],
}

impl Tables {
    /// Returns the identity of an address: that of the longest prefix, or the world's.
    fn identity(&self, snapshot: &Snapshot, address: IpAddr) -> u32 {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let entry = (0..=bits).rev().find_map(|bits| {
            let prefix = IpNetwork::new(address, bits).ok()?;
            self.ipcache.get(snapshot, Entry::by_prefix(prefix))
        });
        entry.map_or_else(
            || match (address, self.families) {
                (IpAddr::V4(_), [_, true]) => WORLD_IPV4,
                (IpAddr::V6(_), [true, _]) => WORLD_IPV6,
                _ => WORLD,
            },
            |entry| entry.identity(),
        )
    }

    /// Whether rules of redirects allow a query; `None` if there are none for its port.
    fn allows(&self, question: &Question<'_>) -> Option<bool> {
        let snapshot = self.redirects.snapshot();
        let (protocol, port) = (question.transport.number(), question.server.port());
        let is_for = |row: &EndpointRedirect| {
            let redirect = &row.redirect;
            is_dns(row) && redirect.protocol == protocol && [0, port].contains(&redirect.port)
        };
        let mut rows = self
            .redirects
            .prefix(&snapshot, EndpointRedirect::of_endpoint(question.endpoint))
            .filter(|row| is_for(row));
        let first = rows.next()?;
        let server = self.identity(&snapshot, question.server.ip());
        let selects = |text: &str| {
            let row = self.selectors.get(&snapshot, PeerSelector::by_text(&text.into()));
            selects_every_server(text)
                || row.is_some_and(|row| row.0.identities.binary_search(&server).is_ok())
        };
        let allowed = |row: &EndpointRedirect| {
            row.rules
                .iter()
                .any(|rule| dns_rules(&rule.rules).allow(question.name) && selects(&rule.selector))
        };
        Some(allowed(first) || rows.any(|row| allowed(row)))
    }

    /// Returns the DNS rules of all endpoints, as records have them.
    pub(crate) fn recorded_rules(&self) -> BTreeMap<u16, Value> {
        let snapshot = self.redirects.snapshot();
        let mut rules: BTreeMap<u16, BTreeMap<u32, Vec<ServerRules>>> = BTreeMap::new();
        let mut prefixes: BTreeMap<u32, Vec<IpNetwork>> = BTreeMap::new();
        let rows: Vec<_> = self.redirects.all(&snapshot).filter(|row| is_dns(row)).collect();
        if !rows.is_empty() {
            for entry in self.ipcache.all(&snapshot) {
                prefixes.entry(entry.identity()).or_default().push(entry.prefix);
            }
        }
        for row in rows {
            let key = port_key(row.redirect.protocol, row.redirect.port);
            let servers = |text: &str| {
                let selector = self.selectors.get(&snapshot, PeerSelector::by_text(&text.into()));
                let identities = selector.map(|row| row.0.identities.clone()).unwrap_or_default();
                let prefixes = identities.iter().filter_map(|id| prefixes.get(id)).flatten().copied();
                prefixes.take(MAX_RECORDED_SERVERS).collect::<Vec<IpNetwork>>()
            };
            let of_port = rules.entry(row.endpoint).or_default().entry(key).or_default();
            for rule in &*row.rules {
                let servers = (!selects_every_server(&rule.selector)).then(|| servers(&rule.selector));
                // Cilium takes an empty set for any server.
                if servers.as_ref().is_none_or(|servers| !servers.is_empty()) {
                    of_port.push(ServerRules { servers, names: dns_rules(&rule.rules) });
                }
            }
        }
        rules.into_iter().map(|(endpoint, rules)| (endpoint, RestoredRules::to_record(&rules))).collect()
    }
}

fn is_dns(row: &EndpointRedirect) -> bool {
    row.redirect.direction == Direction::Egress && row.redirect.parser == Parser::Dns
}

/// Whether the text of a selector, as redirects have it, selects every server.
#[must_use]
pub fn selects_every_server(text: &str) -> bool {
    text == Selector::Labels(Vec::new()).key()
}

/// Returns the names that rules of a redirect allow.
#[must_use]
pub fn dns_rules(rules: &ProxyRules) -> Rules {
    match &rules.l7 {
        L7Rules::Dns(rules) => {
            Rules::new(rules.iter().map(|rule| (rule.match_name.as_str(), rule.match_pattern.as_str())))
        }
        L7Rules::None | L7Rules::Http(_) => Rules::Every,
    }
}

/// The directory.
pub(crate) struct NameDirectory {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tables: Tables,
    pub(crate) max_delay: Duration,
}

impl Directory for NameDirectory {
    fn client(&self, source: IpAddr) -> Option<Client> {
        let endpoints = &self.tables.endpoints;
        let snapshot = endpoints.snapshot();
        let endpoint = endpoints.get(&snapshot, Endpoint::by_address(source))?;
        let record = &endpoint.record;
        let identity = match endpoint.applied_identity {
            0 => record.identity(),
            identity => identity,
        };
        Some(Client { endpoint: record.id, identity, is_host: record.is_host() })
    }

    fn server(&self, address: IpAddr) -> Server {
        let snapshot = self.tables.endpoints.snapshot();
        let endpoint = self.tables.endpoints.get(&snapshot, Endpoint::by_address(address));
        let identity = endpoint.map(|endpoint| endpoint.record.identity()).filter(|identity| *identity != 0);
        Server {
            endpoint: endpoint.map_or(0, |endpoint| endpoint.record.id),
            identity: identity.unwrap_or_else(|| self.tables.identity(&snapshot, address)),
        }
    }

    fn labels(&self, identity: u32) -> Vec<Label> {
        let identities = &self.tables.identities;
        let snapshot = identities.snapshot();
        match identities.get(&snapshot, Identity::by_id(identity)) {
            Some(row) => row.labels.iter().map(LabelRef::to_label).collect(),
            None => datapath_abi::identity::label(identity).map(Label::reserved).into_iter().collect(),
        }
    }

    fn node(&self) -> [Option<IpAddr>; 2] {
        let node = &self.tables.node;
        let snapshot = node.snapshot();
        let row = node.get(&snapshot, LocalNode::query());
        [row.and_then(|row| row.ipv4.map(IpAddr::from)), row.and_then(|row| row.ipv6.map(IpAddr::from))]
    }

    fn allows(&self, question: Question<'_>) -> bool {
        let restored = || {
            let book = self.shared.book.lock();
            book.restored_rules(question.endpoint).is_some_and(|rules| {
                let (protocol, server) = (question.transport.number(), question.server);
                rules.allow(protocol, server.port(), server.ip(), question.name)
            })
        };
        self.tables.allows(&question).unwrap_or_else(restored)
    }

    fn may_see_client(&self, server: IpAddr) -> bool {
        let identity = self.tables.identity(&self.tables.ipcache.snapshot(), server);
        ![HOST, WORLD, WORLD_IPV4, WORLD_IPV6].contains(&identity) && !Range::PREFIXES.contains(identity)
    }

    fn learn(&self, endpoint: u16, lookup: Lookup) -> BoxFuture<'static, ()> {
        let name = lookup.name.clone();
        let Some(change) = self.shared.learn(endpoint, lookup) else {
            return std::future::ready(()).boxed();
        };
        let (shared, max_delay) = (self.shared.clone(), self.max_delay);
        async move {
            if tokio::time::timeout(max_delay, shared.applied(change)).await.is_err() {
                shared.counters.late.inc();
                tracing::warn!(
                    endpointID = endpoint, %name,
                    "Releasing a DNS answer before the datapath knows its addresses"
                );
            }
        }
        .boxed()
    }
}
