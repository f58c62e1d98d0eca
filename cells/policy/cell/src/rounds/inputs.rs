//! The tables that rounds follow, and the input of one round.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use identity::{Identity, Scope};
use k8s_tables::cilium::CiliumCIDRGroup;
use k8s_tables::core::{ClusterNetworkPolicy, NetworkPolicy};
use k8s_tables::{PolicyKind, PolicyObject, Row, SmolStr, Tabled};
use policy_engine::Settings;
use proxy_ports::{DnsBypass, Proxies, ReadyPorts, SecretFaults};
use runtime_options::{POLICY_ENFORCEMENT, RuntimeOption};
use statedb::{Change, Changes, Obj, Snapshot, Table, Watch};
use tokio::sync::watch;

use crate::config::enforcement;
use crate::model::endpoint::EndpointPolicy;
use crate::rounds::services::{ServiceTables, ServicesWatch, TO_SERVICES, names_services};

/// The longest time that the first round waits for proxies: until it, redirects of the previous run stay in force.
const PROXY_LIMIT: Duration = Duration::from_secs(10);

/// Tables that the job follows.
pub(crate) struct Inputs {
    pub(crate) endpoints: Table<EndpointPolicy>,
    pub(crate) objects: Arc<Table<PolicyObject>>,
    pub(crate) network_policies: Arc<Table<Row<NetworkPolicy>>>,
    pub(crate) cluster_network_policies: Arc<Table<Row<ClusterNetworkPolicy>>>,
    pub(crate) cidr_groups: Arc<Table<Row<CiliumCIDRGroup>>>,
    pub(crate) identities: Arc<Table<Identity>>,
    pub(crate) options: Option<Arc<Table<RuntimeOption>>>,
    pub(crate) services: Option<ServiceTables>,
    /// Whether policies have peers by service: otherwise changes of services cause no rounds.
    pub(crate) services_in_use: bool,
    /// The proxies that redirects may lead to.
    pub(crate) proxies: Option<Arc<Proxies>>,
    /// The configured settings; the table of options may change the enforcement.
    pub(crate) settings: Settings,
    /// Whether CiliumNetworkPolicies are enforced.
    pub(crate) enable_cnp: bool,
    /// Whether CiliumClusterwideNetworkPolicies are enforced.
    pub(crate) enable_ccnp: bool,
}

/// The position up to which changes have been read.
pub(crate) struct Cursor {
    objects: Changes<PolicyObject>,
    network_policies: RowPolicies<NetworkPolicy>,
    cluster_network_policies: RowPolicies<ClusterNetworkPolicy>,
    cidr_groups: Changes<Row<CiliumCIDRGroup>>,
    identities: Changes<Identity>,
    /// The identities as they were read last, but for those of prefixes.
    known_identities: HashMap<u32, Obj<Identity>>,
}

/// The changes of policies with a table of their own.
struct RowPolicies<T: Tabled> {
    changes: Changes<Row<T>>,
    /// The sources of the rows as they were read last, by namespace and name: a row is of one source, and may become
    /// that of another.
    sources: HashMap<(SmolStr, SmolStr), Arc<str>>,
}

/// A change of a policy object.
pub(crate) struct ObjectChange {
    /// The object as it is now, or as it was before its deletion.
    pub(crate) object: PolicyObject,
    /// Whether it was deleted.
    pub(crate) deleted: bool,
}

/// The input of a round: the changes since the last one, and the current endpoints and settings.
pub(crate) struct Input {
    pub(crate) objects: Vec<ObjectChange>,
    pub(crate) cidr_groups: Vec<Change<Row<CiliumCIDRGroup>>>,
    pub(crate) identities: Vec<Change<Identity>>,
    pub(crate) endpoints: Vec<Obj<EndpointPolicy>>,
    pub(crate) settings: Settings,
    /// The revision of the table of identities.
    pub(crate) identities_revision: u64,
    /// The proxies that redirects lead to.
    pub(crate) ready: Arc<ReadyPorts>,
    /// The secrets of rules that proxies cannot use.
    pub(crate) secret_faults: SecretFaults,
    /// The revisions of the tables of services, if they are in use.
    services_revisions: Option<[u64; 2]>,
    /// The revision of the table of options that the settings are from.
    pub(crate) options_revision: u64,
}

/// The versions of endpoints and options.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    endpoints: Vec<EndpointVersion>,
    options: u64,
    services: Option<[u64; 2]>,
    ready: Arc<ReadyPorts>,
    secret_faults: SecretFaults,
    dns_bypass: bool,
}

/// Id, announcement and generation of an endpoint's row: rows with the same ones have the same subject.
type EndpointVersion = (u16, u64, u64);

/// A watch that resolves when there is another input.
pub(crate) struct InputWatch {
    endpoints: Watch,
    objects: Watch,
    network_policies: Watch,
    cluster_network_policies: Watch,
    cidr_groups: Watch,
    identities: Watch,
    options: Option<Watch>,
    services: Option<ServicesWatch>,
    proxies: Option<Watch>,
    secret_faults: Option<watch::Receiver<SecretFaults>>,
    dns_bypass: Option<watch::Receiver<DnsBypass>>,
}

impl InputWatch {
    pub(crate) async fn changed(&self) {
        let (mut secret_faults, mut dns_bypass) = (self.secret_faults.clone(), self.dns_bypass.clone());
        tokio::select! {
            () = self.endpoints.changed() => {}
            () = self.objects.changed() => {}
            () = self.cidr_groups.changed() => {}
            () = self.identities.changed() => {}
            () = self.network_policies.changed() => {}
            () = self.cluster_network_policies.changed() => {}
            Some(()) = OptionFuture::from(self.services.as_ref().map(ServicesWatch::changed)) => {}
            Some(()) = OptionFuture::from(self.proxies.as_ref().map(Watch::changed)) => {}
            Some(()) = OptionFuture::from(self.options.as_ref().map(Watch::changed)) => {}
            // The senders are those of the handle.
            Some(_) = OptionFuture::from(secret_faults.as_mut().map(watch::Receiver::changed)) => {}
            Some(_) = OptionFuture::from(dns_bypass.as_mut().map(watch::Receiver::changed)) => {}
        }
    }
}

impl Input {
    /// Whether objects, CIDR groups or identities have changed.
    pub(crate) fn has_changes(&self) -> bool {
        !self.objects.is_empty() || !self.cidr_groups.is_empty() || !self.identities.is_empty()
    }

    /// Returns the versions of endpoints and options.
    pub(crate) fn versions(&self) -> Versions {
        let version = |row: &Obj<EndpointPolicy>| (row.subject.endpoint, row.announced, row.generation);
        let endpoints = self.endpoints.iter().map(version).collect();
        let (options, services, ready) = (self.options_revision, self.services_revisions, self.ready.clone());
        let (secret_faults, dns_bypass) = (self.secret_faults.clone(), self.settings.dns_bypass);
        Versions { endpoints, options, services, ready, secret_faults, dns_bypass }
    }

    /// Returns the sources of the objects.
    pub(crate) fn sources(&self) -> BTreeSet<Arc<str>> {
        self.objects.iter().map(|change| change.object.source.clone()).collect()
    }
}

impl Inputs {
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor {
            objects: self.objects.changes(),
            network_policies: RowPolicies::of(&self.network_policies),
            cluster_network_policies: RowPolicies::of(&self.cluster_network_policies),
            cidr_groups: self.cidr_groups.changes(),
            identities: self.identities.changes(),
            known_identities: HashMap::new(),
        }
    }

    /// Waits until the sources of policies and identities are complete.
    pub(crate) async fn complete(&self) {
        self.objects.wait_initialized().await;
        self.network_policies.wait_initialized().await;
        self.cluster_network_policies.wait_initialized().await;
        self.cidr_groups.wait_initialized().await;
        if let Some(services) = self.services.as_ref().filter(|_| self.name_services()) {
            services.wait_initialized().await;
        }
        self.identities.wait_initialized().await;
        if let Some(proxies) = &self.proxies {
            let ports = proxies.ports();
            let _ = tokio::time::timeout(PROXY_LIMIT, ports.wait_initialized()).await;
        }
    }

    /// Whether a policy of the sources has peers by service.
    fn name_services(&self) -> bool {
        let snapshot = self.objects.snapshot();
        self.objects
            .all(&snapshot)
            .any(|object| object.body.text().contains(TO_SERVICES) && names_services(&object.body.value()))
    }

    /// Reads the next input, with at most `limit` changes of policies of each table; the watch is closed if there are
    /// more.
    pub(crate) fn read(&self, cursor: &mut Cursor, limit: usize) -> (Input, InputWatch) {
        let snapshot = self.endpoints.snapshot();
        let (rows, endpoints_watch) = self.endpoints.all_watch(&snapshot);
        let endpoints = rows.cloned().collect();
        let options_watch = self.options.as_ref().map(|options| options.all_watch(&snapshot).1);
        let (objects, objects_watch) = cursor.objects.read(&snapshot, limit);
        let objects = objects.into_iter().filter(|change| self.is_enforced(&change.object));
        let mut objects: Vec<ObjectChange> = objects
            .map(|change| ObjectChange { object: (*change.object).clone(), deleted: change.deleted })
            .collect();
        let network_policies_watch = cursor.network_policies.read(&snapshot, limit, &mut objects);
        let cluster_network_policies_watch =
            cursor.cluster_network_policies.read(&snapshot, limit, &mut objects);
        let (cidr_groups, cidr_groups_watch) = cursor.cidr_groups.read(&snapshot, usize::MAX);
        let (identities, identities_watch) = cursor.identities(&snapshot);
        let (mut settings, options_revision) = self.settings(&snapshot);
        let dns_bypass_watch = self.proxies.as_ref().map(|proxies| proxies.dns_bypass());
        settings.dns_bypass =
            dns_bypass_watch.as_ref().is_some_and(|watch| *watch.borrow() != DnsBypass::Off);
        let services = self.services.as_ref().filter(|_| self.services_in_use);
        let services_revisions = services.map(|services| services.revisions(&snapshot));
        let ready = self.proxies.as_ref().map(|proxies| proxies.ready());
        let (ready, proxies_watch) =
            ready.map_or_else(Default::default, |(ready, watch)| (ready, Some(watch)));
        let secret_faults_watch = self.proxies.as_ref().map(|proxies| proxies.secret_faults());
        let secret_faults =
            secret_faults_watch.as_ref().map_or_else(SecretFaults::default, |watch| watch.borrow().clone());
        let watch = InputWatch {
            proxies: proxies_watch,
            secret_faults: secret_faults_watch,
            dns_bypass: dns_bypass_watch,
            services: services.map(|services| services.watch(&snapshot)),
            endpoints: endpoints_watch,
            objects: objects_watch,
            network_policies: network_policies_watch,
            cluster_network_policies: cluster_network_policies_watch,
            cidr_groups: cidr_groups_watch,
            identities: identities_watch,
            options: options_watch,
        };
        let cidr_groups = cidr_groups.into_iter().collect();
        let input = Input {
            objects,
            cidr_groups,
            identities,
            endpoints,
            settings,
            identities_revision: self.identities.revision(&snapshot),
            ready,
            secret_faults,
            services_revisions,
            options_revision,
        };
        (input, watch)
    }

    /// Reads changes of identities only: those that have just been allocated.
    pub(crate) fn read_identities(&self, cursor: &mut Cursor) -> Vec<Change<Identity>> {
        cursor.identities(&self.identities.snapshot()).0
    }

    fn is_enforced(&self, object: &PolicyObject) -> bool {
        match object.kind {
            PolicyKind::CiliumNetworkPolicy => self.enable_cnp,
            PolicyKind::CiliumClusterwideNetworkPolicy => self.enable_ccnp,
            // Their tables are empty unless they are enforced.
            PolicyKind::NetworkPolicy | PolicyKind::ClusterNetworkPolicy => true,
        }
    }

    /// Returns the settings with the enforcement from the table of options, and the table's revision.
    fn settings(&self, snapshot: &Snapshot) -> (Settings, u64) {
        let Some(options) = &self.options else { return (self.settings.clone(), 0) };
        let mode = options.all(snapshot).find(|option| option.name == POLICY_ENFORCEMENT);
        let enforcement = mode.map_or(self.settings.enforcement, |option| enforcement(&option.value));
        (Settings { enforcement, ..self.settings.clone() }, options.revision(snapshot))
    }
}

impl<T: Tabled> RowPolicies<T>
where
    PolicyObject: for<'a> From<&'a Row<T>>,
{
    fn of(table: &Table<Row<T>>) -> RowPolicies<T> {
        RowPolicies { changes: table.changes(), sources: HashMap::new() }
    }

    /// Reads the changes as those of policy objects, each of its source.
    fn read(&mut self, snapshot: &Snapshot, limit: usize, changes: &mut Vec<ObjectChange>) -> Watch {
        let (batch, watch) = self.changes.read(snapshot, limit);
        for change in batch {
            let row = &*change.object;
            let object = PolicyObject::from(row);
            let metadata = row.object.metadata();
            let key = (metadata.namespace.clone(), metadata.name.clone());
            let before = match change.deleted {
                true => self.sources.remove(&key),
                false => self.sources.insert(key, row.source.clone()),
            };
            if let Some(before) = before.filter(|before| *before != row.source) {
                let object = PolicyObject { source: before, ..object.clone() };
                changes.push(ObjectChange { object, deleted: true });
            }
            changes.push(ObjectChange { object, deleted: change.deleted });
        }
        watch
    }
}

impl Cursor {
    /// Reads the changes of identities that affect policy. A row also changes with each endpoint that uses the
    /// identity; such changes are skipped.
    fn identities(&mut self, snapshot: &Snapshot) -> (Vec<Change<Identity>>, Watch) {
        let (batch, watch) = self.identities.read(snapshot, usize::MAX);
        let known = &mut self.known_identities;
        let concerns_policy = |change: &Change<Identity>| {
            let row = &change.object;
            // Rows of prefixes change only with rules, which cause a round of their own.
            if row.scope() == Scope::Local {
                return true;
            }
            if change.deleted {
                known.remove(&row.id);
                return true;
            }
            let old = known.insert(row.id, row.clone());
            old.is_none_or(|old| old.labels != row.labels || old.named_ports() != row.named_ports())
        };
        (batch.into_iter().filter(concerns_policy).collect(), watch)
    }
}
