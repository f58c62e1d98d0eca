//! The encoded policies of the last read: an endpoint with the same inputs keeps its own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use labels::NamedPorts;
use policy::{EndpointPolicy, PeerSelector};
use policy_engine::Filters;
use proxy_ports::ReadyPorts;
use statedb::{Snapshot, Table};
use xds::Value;

/// The policies of the last read by endpoint, each with its inputs.
#[derive(Default)]
pub(crate) struct Memo {
    policies: HashMap<u16, Memoized>,
    /// The revision of the selectors, and the ports of listeners.
    selectors: u64,
    ready: Arc<ReadyPorts>,
}

struct Memoized {
    inputs: Inputs,
    selections: Selections,
    policy: Value,
}

/// The inputs of an endpoint's own.
#[derive(PartialEq, Eq)]
struct Inputs {
    filters: Arc<Filters>,
    ingress_enforced: bool,
    egress_enforced: bool,
    named_ports: NamedPorts,
    addresses: Vec<IpAddr>,
}

/// The version of the rows of all selectors in filters: the revision of the newest, and their number. As long as no row
/// is written, rows can only go, so that equal versions mean equal rows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Selections {
    newest: u64,
    count: usize,
}

/// A policy that was computed.
pub(crate) struct Computed {
    pub(crate) policy: Value,
    /// Whether it has other inputs than a memo compares: secrets, or named ports of peers.
    pub(crate) has_other_inputs: bool,
}

/// A read in progress.
pub(crate) struct MemoRead<'a> {
    memo: &'a mut Memo,
    previous: HashMap<u16, Memoized>,
    selectors: &'a Table<PeerSelector>,
    snapshot: &'a Snapshot,
    /// Whether no selector has changed since the last read.
    has_same_selectors: bool,
    /// By the addresses of filters, which endpoints share: the snapshot keeps them.
    selections: HashMap<*const Filters, Selections>,
    computed: usize,
}

impl Memo {
    /// Starts a read. Endpoints that it does not ask for are forgotten.
    pub(crate) fn read<'a>(
        &'a mut self,
        selectors: &'a Table<PeerSelector>,
        snapshot: &'a Snapshot,
        ready: &Arc<ReadyPorts>,
    ) -> MemoRead<'a> {
        let mut previous = std::mem::take(&mut self.policies);
        // Ports of listeners change rarely, and few rules name one.
        if self.ready != *ready {
            previous.clear();
            self.ready = ready.clone();
        }
        let revision = selectors.revision(snapshot);
        let has_same_selectors = std::mem::replace(&mut self.selectors, revision) == revision;
        let selections = HashMap::new();
        MemoRead { memo: self, previous, selectors, snapshot, has_same_selectors, selections, computed: 0 }
    }
}

impl MemoRead<'_> {
    /// Returns the policy of an endpoint with these addresses: that of the last read if its inputs are the same.
    pub(crate) fn policy(
        &mut self,
        row: &EndpointPolicy,
        addresses: Vec<IpAddr>,
        compute: impl FnOnce() -> Computed,
    ) -> Value {
        let inputs = Inputs {
            filters: row.filters.clone(),
            ingress_enforced: row.ingress_enforced,
            egress_enforced: row.egress_enforced,
            named_ports: row.subject.named_ports.clone(),
            addresses,
        };
        let previous = self.previous.remove(&row.subject.endpoint).filter(|known| known.inputs == inputs);
        let known = previous
            .filter(|known| self.has_same_selectors || known.selections == self.selections(&row.filters));
        let memoized = match known {
            // With the filters of the row: they may be other ones of the same content.
            Some(known) => Memoized { inputs, ..known },
            None => {
                self.computed += 1;
                let Computed { policy, has_other_inputs } = compute();
                if has_other_inputs {
                    return policy;
                }
                Memoized { inputs, selections: self.selections(&row.filters), policy }
            }
        };
        let policy = memoized.policy.clone();
        self.memo.policies.insert(row.subject.endpoint, memoized);
        policy
    }

    /// Returns the number of policies that had to be computed.
    pub(crate) fn computed(&self) -> usize {
        self.computed
    }

    fn selections(&mut self, filters: &Arc<Filters>) -> Selections {
        let (selectors, snapshot) = (self.selectors, self.snapshot);
        *self.selections.entry(Arc::as_ptr(filters)).or_insert_with(|| {
            let peers = filters.ingress.iter().chain(&filters.egress).flat_map(|filter| &filter.peers);
            let rows =
                peers.filter_map(|peer| selectors.get(snapshot, PeerSelector::by_text(&peer.selector)));
            rows.fold(Selections { newest: 0, count: 0 }, |all, row| Selections {
                newest: all.newest.max(row.revision()),
                count: all.count + 1,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use endpoints::{Endpoint, Record};
    use hive::prelude::*;
    use identity::Identity;
    use labels::{LabelArray, Labels};
    use policy::{RealizationState, RowCounts, Subject};
    use policy_engine::{Engine, IdentityIds, Kind, Parser, SelectorRow, SelectorText, Settings, parse};
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestCaseError, TestRunner};
    use proxy_ports::{Proxies, Proxy, Registration};
    use serde_json::{Value, json};
    use statedb::{Db, RwTable};

    use super::*;
    use crate::config::EnvoyConfig;
    use crate::metrics::Counters;
    use crate::policies::Tables;
    use crate::resources::Resources;
    use crate::secrets::{PolicySecrets, SecretFiles, Store};

    const ENDPOINTS: u16 = 4;
    const FILTERS: usize = 6;
    const PEERS: [&str; 2] = ["client", "other"];

    fn labels(texts: &[&str]) -> LabelArray {
        LabelArray::from(&Labels::parse(texts.iter().copied()))
    }

    /// Returns filters of one policy each, that depend on all that there is.
    fn filters() -> [Arc<Filters>; FILTERS] {
        let peer = |app: &str| json!([{"matchLabels": {"app": app}}]);
        let ports = |port: &str, rules: Value| {
            let mut ports = json!({"ports": [{"port": port, "protocol": "TCP"}]});
            ports.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
            json!([ports])
        };
        let http = |rule: Value| json!({"rules": {"http": [rule]}});
        let header = json!([{"name": "a", "secret": {"namespace": "n", "name": "s"}}]);
        let listener = json!({"listener": {"envoyConfig": {"name": "c"}, "name": "l"}});
        let specs = [
            json!({"egress": [{"toPorts": ports("80", http(json!({"path": "/a"})))}]}),
            json!({"egress": [{"toEndpoints": peer("client"), "toPorts": ports("80", http(json!({"path": "/b"})))}]}),
            json!({"egress": [{"toEndpoints": peer("other"), "toPorts": ports("web", json!({}))}]}),
            json!({"egress": [{"toPorts": ports("80", http(json!({"headerMatches": header})))}]}),
            json!({"egress": [{"toPorts": ports("80", listener)}]}),
            json!({"ingress": [{"fromEndpoints": peer("client"), "toPorts": ports("web", json!({}))},
                {"fromEndpoints": peer("other")}]}),
        ];
        let of = |spec: Value| {
            let settings = Settings::default();
            let mut engine = Engine::new(settings.clone());
            engine.add_identity(
                1000,
                labels(&["k8s:app=web", "k8s:io.kubernetes.pod.namespace=shop"]),
                NamedPorts::default(),
            );
            let mut spec = spec;
            spec["endpointSelector"] = json!({});
            let manifest = json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": spec});
            engine.set(parse(Kind::CiliumNetworkPolicy, &manifest, &settings).unwrap());
            Arc::new(engine.filters(1000))
        };
        specs.map(of)
    }

    fn row(endpoint: u16, filters: &Arc<Filters>, port: u16, egress_enforced: bool) -> EndpointPolicy {
        let mut named_ports = NamedPorts::default();
        named_ports.add("web", 6, port);
        let subject = Subject { endpoint, identity: 1000, labels: labels(&["k8s:app=web"]), named_ports };
        EndpointPolicy {
            subject,
            transition: None,
            announced: endpoint.into(),
            generation: 1,
            revision: 1,
            realized: 1,
            ingress_enforced: true,
            egress_enforced,
            ingress: RowCounts::default(),
            egress: RowCounts::default(),
            filters: filters.clone(),
            realized_filters: filters.clone(),
            decisions: Default::default(),
            missing_redirects: 0,
            state: RealizationState::Realized,
            error: None,
        }
    }

    #[derive(Debug, Clone)]
    enum Event {
        Policy {
            endpoint: u16,
            filters: usize,
            port: u16,
            egress_enforced: bool,
        },
        NoPolicy(u16),
        Endpoint {
            endpoint: u16,
            address: u8,
        },
        NoEndpoint(u16),
        Selector {
            peer: usize,
            identities: Vec<u32>,
        },
        NoSelector(usize),
        /// The port `web` of an identity.
        NamedPort {
            identity: u32,
            port: u16,
        },
        /// Whether rules lead to the listener that policies name.
        Listener(bool),
        Read,
    }

    fn event() -> impl Strategy<Value = Event> {
        let endpoint = || 1..=ENDPOINTS;
        let policy = (endpoint(), 0..FILTERS, 80..82u16, any::<bool>());
        prop_oneof![
            4 => policy.prop_map(|(endpoint, filters, port, egress_enforced)| Event::Policy { endpoint, filters, port, egress_enforced }),
            1 => endpoint().prop_map(Event::NoPolicy),
            3 => (endpoint(), 1..4u8).prop_map(|(endpoint, address)| Event::Endpoint { endpoint, address }),
            1 => endpoint().prop_map(Event::NoEndpoint),
            3 => (0..PEERS.len(), prop::collection::vec(1001..1004u32, 0..3)).prop_map(|(peer, identities)| Event::Selector { peer, identities }),
            1 => (0..PEERS.len()).prop_map(Event::NoSelector),
            2 => (1001..1004u32, 80..82u16).prop_map(|(identity, port)| Event::NamedPort { identity, port }),
            1 => any::<bool>().prop_map(Event::Listener),
            6 => Just(Event::Read),
        ]
    }

    /// The tables, and filters with their selectors.
    struct World {
        policies: RwTable<EndpointPolicy>,
        endpoints: RwTable<Endpoint>,
        selectors: RwTable<PeerSelector>,
        identities: RwTable<Identity>,
        tables: Tables,
        listener: Arc<Registration>,
        filters: [Arc<Filters>; FILTERS],
        texts: Vec<SelectorText>,
    }

    impl World {
        fn new(
            proxies: &Arc<Proxies>,
            listener: &Arc<Registration>,
            filters: &[Arc<Filters>; FILTERS],
        ) -> World {
            let db = Db::new();
            let (policies, endpoints) = (db.table().unwrap(), db.table().unwrap());
            let (selectors, identities) = (db.table().unwrap(), db.table().unwrap());
            let store = Store::new(Resources::new(Counters::default()));
            let secrets =
                PolicySecrets::new(store, SecretFiles::new("/nonexistent".into()), &EnvoyConfig::default());
            let tables = Tables {
                policies: Arc::new(policies.reader()),
                endpoints: Arc::new(endpoints.reader()),
                selectors: Arc::new(selectors.reader()),
                identities: Arc::new(identities.reader()),
                proxies: proxies.clone(),
                secrets,
            };
            let filters = filters.clone();
            let peers = filters
                .iter()
                .flat_map(|filters| filters.ingress.iter().chain(&filters.egress))
                .flat_map(|filter| &filter.peers);
            let text = |app: &str| {
                let named = |text: &SelectorText| {
                    text.text().contains(&format!("app={app}"))
                        || text.text().contains(&format!("app: {app}"))
                };
                peers.clone().map(|peer| peer.selector.clone()).find(named).unwrap()
            };
            let texts = PEERS.into_iter().map(text).collect();
            World {
                policies,
                endpoints,
                selectors,
                identities,
                tables,
                listener: listener.clone(),
                filters,
                texts,
            }
        }

        fn apply(&self, event: Event) {
            match event {
                Event::Policy { endpoint, filters, port, egress_enforced } => {
                    // As after another computation: equal filters at another address.
                    let filters = Arc::new(Filters::clone(&self.filters[filters]));
                    self.policies
                        .transact(|txn| drop(txn.insert(row(endpoint, &filters, port, egress_enforced))));
                }
                Event::NoPolicy(endpoint) => {
                    self.policies.transact(|txn| drop(txn.delete(EndpointPolicy::by_endpoint(endpoint))));
                }
                Event::Endpoint { endpoint, address } => {
                    let ipv4 = Some([10, 0, endpoint as u8, address].into());
                    let record = Record { id: endpoint, ipv4, ..Record::default() };
                    let endpoint = Endpoint::created(record, SystemTime::UNIX_EPOCH);
                    self.endpoints.transact(|txn| drop(txn.insert(endpoint)));
                }
                Event::NoEndpoint(endpoint) => {
                    let id = endpoints::EndpointId(endpoint);
                    self.endpoints.transact(|txn| drop(txn.delete(Endpoint::by_id(id))));
                }
                Event::Selector { peer, identities } => {
                    let identities: IdentityIds = identities.into_iter().collect();
                    let uses = Arc::new(policy_engine::SelectorUses { count: 1, labels: [].into() });
                    let row =
                        SelectorRow { selector: self.texts[peer].clone(), fqdn: None, identities, uses };
                    self.selectors.transact(|txn| drop(txn.insert(PeerSelector(row))));
                }
                Event::NoSelector(peer) => {
                    let query = PeerSelector::by_text(&self.texts[peer]);
                    self.selectors.transact(|txn| drop(txn.delete(query)));
                }
                Event::NamedPort { identity, port } => {
                    let ports: NamedPorts = [("web", 6, port)].into_iter().collect();
                    let texts: Vec<String> =
                        labels::port_labels(&ports).iter().map(ToString::to_string).collect();
                    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                    let row = Identity {
                        id: identity,
                        labels: labels(&texts),
                        users: Default::default(),
                        unused_since: None,
                        object: None,
                    };
                    self.identities.transact(|txn| drop(txn.insert(row)));
                }
                Event::Listener(is_there) => lead(&self.tables.proxies, &self.listener, is_there),
                Event::Read => {}
            }
        }
    }

    fn lead(proxies: &Proxies, listener: &Registration, is_there: bool) {
        match is_there {
            true => {
                listener.listening(11_000).unwrap();
                proxies.set_reachable(&BTreeMap::from([(LISTENER.into(), 11_000)]));
            }
            false => listener.withdraw(),
        }
    }

    const LISTENER: &str = "shop/c/l";

    async fn proxies() -> (Hive, Arc<Proxies>, Arc<Registration>) {
        let mut hive = Hive::builder([statedb::cell(), proxy_ports::cell(), invoke(|_: Arc<Proxies>| {})])
            .build()
            .unwrap();
        hive.populate().await.unwrap();
        let proxies = hive.get::<Proxies>().unwrap();
        let proxy = Proxy { name: LISTENER.into(), parser: Parser::Custom, ingress: false, fixed: None };
        let listener = Arc::new(proxies.register(proxy));
        (hive, proxies, listener)
    }

    #[tokio::test]
    async fn policies_of_a_memo_equal_those_that_are_computed_after_any_changes() {
        let (_hive, proxies, listener) = proxies().await;
        let filters = filters();
        let kept = Cell::new(0);
        let check = |events: Vec<Event>| {
            lead(&proxies, &listener, false);
            let (world, mut memo) = (World::new(&proxies, &listener, &filters), Memo::default());
            for event in events {
                let is_read = matches!(event, Event::Read);
                world.apply(event);
                if is_read {
                    let (read, fresh) =
                        (world.tables.read(&mut memo), world.tables.read(&mut Memo::default()));
                    prop_assert_eq!(&read.resources, &fresh.resources);
                    // Secrets are followed since the first read.
                    prop_assert_eq!(&world.tables.read(&mut memo).faults, &fresh.faults);
                    kept.set(kept.get() + fresh.computed - read.computed);
                }
            }
            Ok::<_, TestCaseError>(())
        };
        let events = prop::collection::vec(event(), 0..60);
        let config = Config { failure_persistence: None, ..Config::default() };
        TestRunner::new(config).run(&events, check).unwrap();
        let kept = kept.get();
        assert!(kept > 100, "most policies do not change between reads: {kept}");
    }

    #[tokio::test]
    async fn a_change_of_one_endpoint_computes_one_policy() {
        let (_hive, proxies, listener) = proxies().await;
        let filters = filters();
        let (world, mut memo) = (World::new(&proxies, &listener, &filters), Memo::default());
        let mut computed = || world.tables.read(&mut memo).computed;
        let policy = |endpoint, filters| Event::Policy { endpoint, filters, port: 80, egress_enforced: true };
        (0..PEERS.len()).for_each(|peer| world.apply(Event::Selector { peer, identities: vec![1001] }));
        for endpoint in 1..=100 {
            world.apply(policy(endpoint, usize::from(endpoint % 2)));
            world.apply(Event::Endpoint { endpoint, address: 1 });
        }
        assert_eq!(computed(), 100);
        assert_eq!(computed(), 0);
        world.apply(policy(7, 0));
        assert_eq!(computed(), 1, "other rules");
        world.apply(policy(8, 0));
        assert_eq!(computed(), 0, "the same rules");
        world.apply(Event::Endpoint { endpoint: 9, address: 2 });
        assert_eq!(computed(), 1, "another address");
        world.apply(Event::Selector { peer: 0, identities: vec![1001, 1002] });
        assert_eq!(computed(), 49, "rules with the selector");
        world.apply(Event::Selector { peer: 1, identities: vec![] });
        assert_eq!(computed(), 0, "no rule has the selector");
        lead(&proxies, &listener, true);
        assert_eq!(computed(), 100, "ports of listeners");
    }
}
