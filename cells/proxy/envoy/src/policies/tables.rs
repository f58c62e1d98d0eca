//! The policies of all endpoints, from tables.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use endpoints::{Endpoint, EndpointId};
use identity::Identity;
use policy::{EndpointPolicy, PeerSelector};
use policy_engine::{Filters, Port, PortSpec, ProxyPorts as _, Redirect, SecretRef, SelectorText};
use proxy_ports::{Proxies, ReadyPorts};
use statedb::{Snapshot, Table, Watch};
use tokio::sync::watch;
use xds::Value;

use super::memo::{Computed, Memo};
use super::{Peers, network_policy};
use crate::resources::encoded;
use crate::secrets::{Absence, Found, PolicySecrets};

/// The tables that policies are made of.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) policies: Arc<Table<EndpointPolicy>>,
    pub(crate) endpoints: Arc<Table<Endpoint>>,
    pub(crate) selectors: Arc<Table<PeerSelector>>,
    pub(crate) identities: Arc<Table<Identity>>,
    pub(crate) proxies: Arc<Proxies>,
    pub(crate) secrets: PolicySecrets,
}

/// The policies of all endpoints at one moment.
pub(crate) struct Policies {
    /// The encoded messages, by the ids of their endpoints.
    pub(crate) resources: BTreeMap<Arc<str>, Value>,
    /// Whether each endpoint has one that was computed.
    pub(crate) is_complete: bool,
    /// Whether some wait for secrets that have not been read yet; their traffic is denied.
    pub(crate) waits_for_secrets: bool,
    /// The secrets that cannot be used, with the reasons; traffic of their rules is denied.
    pub(crate) faults: BTreeSet<(SecretRef, String)>,
    /// The number of policies that were computed for it; the others are those of the read before.
    pub(crate) computed: usize,
    watches: Vec<Watch>,
    secrets: [watch::Receiver<()>; 2],
}

impl Policies {
    /// Waits until one of the tables has changed.
    pub(crate) async fn changed(&self) {
        let changed = self.watches.iter().map(|watch| Box::pin(watch.changed()));
        let [mut of_cluster, mut of_files] = self.secrets.clone();
        tokio::select! {
            _ = futures::future::select_all(changed) => {}
            // The senders are those of the tables.
            _ = of_cluster.changed() => {}
            _ = of_files.changed() => {}
        }
    }
}

impl Tables {
    /// Returns the policies; of endpoints whose inputs have not changed those in the memo.
    pub(crate) fn read(&self, memo: &mut Memo) -> Policies {
        let secrets = self.secrets.subscribe();
        let snapshot = self.policies.snapshot();
        let (rows, policies_watch) = self.policies.all_watch(&snapshot);
        let (_, endpoints_watch) = self.endpoints.all_watch(&snapshot);
        let (_, selectors_watch) = self.selectors.all_watch(&snapshot);
        let (ready, ports_watch) = self.proxies.ready();
        let mut watches = vec![policies_watch, endpoints_watch, selectors_watch, ports_watch];
        let rows: Vec<&EndpointPolicy> = rows.map(|row| &**row).collect();
        if rows.iter().any(|row| names_ports_of_peers(&row.filters)) {
            watches.push(self.identities.all_watch(&snapshot).1);
        }
        let mut memo = memo.read(&self.selectors, &snapshot, &ready);
        let view = View {
            tables: self,
            snapshot: &snapshot,
            ready,
            seen: RefCell::default(),
            has_other_inputs: Cell::default(),
        };
        let mut owners: HashMap<IpAddr, (u64, u16)> = HashMap::new();
        let mut resources = BTreeMap::new();
        let mut computed = BTreeSet::new();
        for row in rows.into_iter().filter(|row| row.revision > 0) {
            let id = row.subject.endpoint;
            computed.insert(id);
            let endpoint = self.endpoints.get(&snapshot, Endpoint::by_id(EndpointId(id)));
            let Some(endpoint) = endpoint.filter(|endpoint| is_served(endpoint)) else { continue };
            let policy = memo.policy(row, endpoint.record.addresses().collect(), || {
                view.has_other_inputs.set(false);
                let policy = encoded(&network_policy(row, endpoint.record.addresses(), &view));
                Computed { policy, has_other_inputs: view.has_other_inputs.get() }
            });
            resources.insert(name(id), policy);
            for address in endpoint.record.addresses() {
                let Some((announced, other)) = owners.insert(address, (row.announced, id)) else { continue };
                // Envoy finds policies by address: it can only have that of the newer endpoint.
                let older = if announced < row.announced { other } else { id };
                tracing::error!(%address, endpointID = older, "Two endpoints have one address; Envoy gets the policy of the newer one");
                resources.remove(&name(older));
            }
        }
        let mut served = self.endpoints.all(&snapshot).filter(|endpoint| is_served(endpoint));
        let is_complete = self.endpoints.initialized(&snapshot)
            && served.all(|endpoint| computed.contains(&endpoint.record.id));
        let computed = memo.computed();
        let Seen { references, faults, is_waiting } = view.seen.into_inner();
        self.secrets.set_references(references);
        Policies { resources, is_complete, waits_for_secrets: is_waiting, faults, computed, watches, secrets }
    }
}

fn name(endpoint: u16) -> Arc<str> {
    endpoint.to_string().into()
}

/// Whether Envoy gets the policy of an endpoint: the node has none there.
fn is_served(endpoint: &Endpoint) -> bool {
    !endpoint.record.is_host() && endpoint.record.addresses().next().is_some() && !endpoint.state.is_leaving()
}

fn names_ports_of_peers(filters: &Filters) -> bool {
    let is_named = |spec: &PortSpec| matches!(spec.port, Port::Named { .. });
    filters.egress.iter().any(|filter| filter.ports.as_ref().is_some_and(is_named))
}

/// The tables at one moment.
struct View<'a> {
    tables: &'a Tables,
    snapshot: &'a Snapshot,
    ready: Arc<ReadyPorts>,
    seen: RefCell<Seen>,
    /// Whether a policy has inputs that a memo does not compare.
    has_other_inputs: Cell<bool>,
}

/// The secrets that rules name.
#[derive(Default)]
struct Seen {
    references: BTreeSet<SecretRef>,
    faults: BTreeSet<(SecretRef, String)>,
    is_waiting: bool,
}

impl Peers for View<'_> {
    fn selected(&self, selector: &SelectorText) -> Option<Vec<u32>> {
        let row = self.tables.selectors.get(self.snapshot, PeerSelector::by_text(selector))?;
        Some(row.0.identities.to_vec())
    }

    fn named(&self, name: &str, protocol: u8) -> BTreeMap<u16, BTreeSet<u32>> {
        self.has_other_inputs.set(true);
        let mut found: BTreeMap<u16, BTreeSet<u32>> = BTreeMap::new();
        for identity in self.tables.identities.all(self.snapshot) {
            if let Some(port) = identity.named_ports().port(name, protocol) {
                found.entry(port).or_default().insert(identity.id);
            }
        }
        found
    }

    fn secret(&self, reference: &SecretRef) -> Option<Found> {
        self.has_other_inputs.set(true);
        self.seen.borrow_mut().references.insert(reference.clone());
        match self.tables.secrets.find(reference) {
            Ok(found) => Some(found),
            Err(Absence::Unknown) => {
                self.seen.borrow_mut().is_waiting = true;
                self.refuse(reference, "is not read yet".to_owned());
                None
            }
            Err(Absence::Fault(reason)) => {
                self.refuse(reference, reason);
                None
            }
        }
    }

    fn full_tls_context(&self) -> bool {
        self.tables.secrets.full_tls_context()
    }

    fn refuse(&self, reference: &SecretRef, reason: String) {
        self.seen.borrow_mut().faults.insert((reference.clone(), reason));
    }

    fn listener_port(&self, redirect: &Redirect) -> Option<u16> {
        self.ready.port(redirect)
    }
}
