//! Policy objects of all sources, validated: the policies that are to be in force. No kernel, no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnetwork::IpNetwork;
use k8s_tables::{PolicyKind, PolicyObject};
use labels::{Label, LabelArray};
use loadbalancer::ServiceName;
use policy_engine::{
    CidrGroup, CidrGroups, Engine, Entry, Kind, Peers, Policy, Refusal, ResourceId, Selector, ServicePeers,
    Settings, cidr_group_prefixes, parse,
};

use crate::computation::keep::Keep;
use crate::model::object::{ObjectId, ObjectState, PolicyStatus};

/// The source that reads the folder of that option.
pub(crate) const STATIC_CNP_PATH: &str = "static-cnp-path";
/// The source of the labels of its rules, as in Cilium.
const DIRECTORY: &str = "directory";

/// The state of an object.
#[derive(Debug)]
struct Known {
    origin: Arc<str>,
    /// The last valid version.
    good: Option<Arc<Policy>>,
    /// The errors of the current version.
    refusal: Option<Refusal>,
}

/// All objects.
#[derive(Debug, Default)]
pub(crate) struct Repository {
    objects: BTreeMap<ObjectId, Known>,
    /// The last good versions, for the next run.
    keep: Keep,
    /// Prefixes that have identities and are in the ipcache because of rules.
    held: BTreeSet<IpNetwork>,
    /// Whether policies were staged when prefixes were dropped last: some prefixes may be held for these only.
    held_for_staged: bool,
    /// CIDR groups, the last valid version of each.
    groups: CidrGroups,
    /// The sources of objects.
    sources: BTreeSet<Arc<str>>,
    /// Objects of which the current version is refused.
    refused: BTreeSet<ObjectId>,
    /// Objects with peers by CIDR group.
    group_users: BTreeSet<ObjectId>,
    /// Whether CIDR groups or their users have changed since prefixes were dropped last.
    groups_changed: bool,
    /// Objects with peers by service.
    service_users: BTreeSet<ObjectId>,
    /// The services that these are translated with; none without such objects.
    services: Services,
    /// The settings by which objects were read last.
    settings: Settings,
    /// Reasons of refusals of CIDR groups, by name.
    refused_groups: BTreeMap<Arc<str>, String>,
}

/// All services by name, as policies see them.
pub(crate) type Services = BTreeMap<ServiceName, ServicePeers>;

/// Policies to be committed; `None` for a removed one.
pub(crate) type Staged = BTreeMap<ResourceId, Option<Arc<Policy>>>;

impl Repository {
    /// Returns an empty repository that stores last good versions in `keep`.
    pub(crate) fn new(keep: Keep) -> Repository {
        Repository { keep, ..Repository::default() }
    }

    /// Marks all sources as complete: removes records of policies that none of them has.
    pub(crate) fn sources_complete(&mut self) {
        self.keep.retain(&self.objects.keys().map(ObjectId::key).collect());
    }

    /// Upserts an object. Returns the refusal if it is invalid; its previous version stays in force then, also that of
    /// the previous run.
    pub(crate) fn upsert(
        &mut self,
        object: &PolicyObject,
        settings: &Settings,
        staged: &mut Staged,
    ) -> Option<&Refusal> {
        let id = id(object);
        let parsed = parse(id.kind, &object.body.value(), settings).map(|policy| labelled(policy, object));
        let known = self.objects.entry(id.clone()).or_insert_with(|| Known {
            origin: "".into(),
            good: None,
            refusal: None,
        });
        if self.settings != *settings {
            self.settings = settings.clone();
        }
        if !self.sources.contains(&id.source) {
            self.sources.insert(id.source.clone());
        }
        known.origin = object.origin.as_str().into();
        let mut is_new = true;
        match parsed {
            Ok(policy) => {
                (known.good, known.refusal) = (Some(policy.into()), None);
                self.refused.remove(&id);
                self.keep.note(&id.key(), object);
            }
            Err(refusal) => {
                known.refusal = Some(refusal);
                self.refused.insert(id.clone());
                let before = known.good.is_none().then(|| self.keep.before(&id.key(), object)).flatten();
                let policy = before.and_then(|before| {
                    Some(labelled(parse(id.kind, &before.body.value(), settings).ok()?, &before))
                });
                is_new = policy.is_some();
                known.good = policy.map(Arc::new).or(known.good.take());
            }
        }
        if is_new {
            let good = known.good.as_deref();
            let by_service = good.is_some_and(|policy| policy.services().next().is_some());
            set_member(&mut self.service_users, &id, by_service);
            let by_group = good.is_some_and(|policy| selectors(policy).any(Selector::is_of_cidr_groups));
            self.groups_changed |= set_member(&mut self.group_users, &id, by_group);
            self.stage(&id, staged);
        }
        self.objects.get(&id)?.refusal.as_ref()
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, object: &PolicyObject, staged: &mut Staged) {
        let id = id(object);
        self.service_users.remove(&id);
        self.refused.remove(&id);
        self.groups_changed |= self.group_users.remove(&id);
        if self.objects.remove(&id).is_some() {
            self.keep.forget(&id.key());
            self.stage(&id, staged);
        }
    }

    /// Returns the status of an object. `applied`: the revision at which its resource was committed.
    pub(crate) fn status(&self, object: &ObjectId, applied: u64) -> Option<PolicyStatus> {
        let known = self.objects.get(object)?;
        let state = match (&known.refusal, &known.good) {
            (None, _) => ObjectState::Applied,
            (Some(_), None) => ObjectState::Refused,
            (Some(_), Some(_)) => ObjectState::RefusedPreviousInForce,
        };
        let entries = known.good.as_ref().map_or(&[][..], |policy| &policy.entries);
        Some(PolicyStatus {
            object: object.clone(),
            origin: known.origin.clone(),
            state,
            revision: if known.good.is_some() { applied } else { 0 },
            rules: entries.len(),
            rule_labels: entries.iter().map(|entry| entry.labels.clone()).collect(),
            problems: match (&known.refusal, &known.good) {
                (Some(refusal), _) => refusal.problems.clone(),
                (None, Some(good)) => good.warnings.clone(),
                (None, None) => Vec::new(),
            },
        })
    }

    /// Returns the version of an object that is in force.
    pub(crate) fn in_force(&self, object: &ObjectId) -> Option<&Policy> {
        self.objects.get(object)?.good.as_deref()
    }

    /// Iterates over all objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &ObjectId> {
        self.objects.keys()
    }

    /// Iterates over the objects whose current version is refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&ObjectId, &Arc<str>, &Refusal)> {
        self.refused.iter().filter_map(|id| {
            let known = self.objects.get(id)?;
            Some((id, &known.origin, known.refusal.as_ref()?))
        })
    }

    /// Returns the origins of the objects of a resource.
    pub(crate) fn origins(&self, resource: &ResourceId) -> Vec<Arc<str>> {
        self.behind(resource).map(|(_, known)| known.origin.clone()).collect()
    }

    /// Returns a policy with its peers by service translated as they would be if it were in force.
    pub(crate) fn translated(&self, policy: Policy) -> Policy {
        policy.with_services(self.services.values(), &self.settings)
    }

    /// Returns the prefixes that need identities if a policy is in force, those of CIDR groups among them.
    pub(crate) fn prefixes_of(&self, policy: &Policy) -> BTreeSet<IpNetwork> {
        let by_group = selectors(policy).any(Selector::is_of_cidr_groups);
        let of_groups = by_group.then(|| cidr_group_prefixes(&self.groups)).into_iter().flatten();
        prefixes(policy).into_iter().chain(of_groups).collect()
    }

    /// Whether an object has peers by service.
    pub(crate) fn uses_services(&self) -> bool {
        !self.service_users.is_empty()
    }

    /// Sets the services, and stages the policies that select one that has changed.
    pub(crate) fn set_services(&mut self, services: Services, staged: &mut Staged) {
        let old = std::mem::replace(&mut self.services, services);
        let differs = |(name, service): &(&ServiceName, &ServicePeers), other: &Services| {
            other.get(*name) != Some(*service)
        };
        let gone = old.iter().filter(|row| differs(row, &self.services));
        let new = self.services.iter().filter(|row| differs(row, &old));
        let changed: Vec<&ServicePeers> = gone.chain(new).map(|(_, service)| service).collect();
        let selects = |policy: &Policy| {
            policy.services().any(|selector| changed.iter().any(|service| selector.selects(service)))
        };
        let is_affected = |id: &&ObjectId| self.in_force(id).is_some_and(selects);
        self.service_users.iter().filter(is_affected).for_each(|id| self.stage(id, staged));
    }

    /// Returns the prefixes of staged policies that have no identity yet.
    pub(crate) fn missing(&self, staged: &Staged) -> Vec<IpNetwork> {
        let staged = staged.values().flatten();
        let mut named: BTreeSet<IpNetwork> = staged.flat_map(|policy| prefixes(policy)).collect();
        named.extend(self.group_prefixes());
        named.difference(&self.held).copied().collect()
    }

    /// Returns the prefixes of all CIDR groups if a policy selects by groups.
    fn group_prefixes(&self) -> impl Iterator<Item = IpNetwork> {
        let needed = !self.group_users.is_empty();
        needed.then(|| cidr_group_prefixes(&self.groups)).into_iter().flatten()
    }

    /// Upserts a CIDR group. One with an invalid prefix leaves the previous version in force and is listed by
    /// [`refused_groups`](Self::refused_groups).
    pub(crate) fn upsert_group(&mut self, name: &str, labels: BTreeMap<String, String>, prefixes: &[&str]) {
        let parsed: Result<BTreeSet<IpNetwork>, &str> =
            prefixes.iter().map(|text| text.parse().map_err(|_| *text)).collect();
        self.groups_changed = true;
        match parsed {
            Ok(prefixes) => {
                self.refused_groups.remove(name);
                self.groups.insert(name.into(), CidrGroup { labels, prefixes });
            }
            Err(text) => {
                let reason = format!("CIDR group {name}: {text:?} is not a prefix");
                tracing::warn!(
                    group = name,
                    prefix = text,
                    "CIDR group refused; its previous version stays in force"
                );
                self.refused_groups.insert(name.into(), reason);
            }
        }
    }

    /// Removes a CIDR group.
    pub(crate) fn remove_group(&mut self, name: &str) {
        self.groups_changed = true;
        self.groups.remove(name);
        self.refused_groups.remove(name);
    }

    /// Returns the CIDR groups that are to be in force.
    pub(crate) fn groups(&self) -> &CidrGroups {
        &self.groups
    }

    /// Iterates over the reasons why the current versions of CIDR groups are refused.
    pub(crate) fn refused_groups(&self) -> impl Iterator<Item = &String> {
        self.refused_groups.values()
    }

    /// Adds prefixes that have identities and are in the ipcache.
    pub(crate) fn hold(&mut self, prefixes: Vec<IpNetwork>) {
        // Insertion in order leaves the nodes of a set half empty: many prefixes are a reason to build it again.
        match prefixes.len() > self.held.len() / 8 {
            true => self.held = std::mem::take(&mut self.held).into_iter().chain(prefixes).collect(),
            false => self.held.extend(prefixes),
        }
    }

    /// Removes and returns the held prefixes that neither rules in force nor staged policies name. Costs what rules have
    /// ceased to name, unless policies were staged before or CIDR groups have changed. `is_committed`: the CIDR groups
    /// are in force.
    pub(crate) fn drop_unnamed(
        &mut self,
        engine: &mut Engine,
        waiting: &Staged,
        is_committed: bool,
    ) -> Vec<IpNetwork> {
        let unnamed = engine.take_unnamed_prefixes();
        let all = self.held_for_staged || self.groups_changed;
        self.held_for_staged = !waiting.is_empty();
        self.groups_changed = self.groups_changed && !is_committed;
        let mut gone: Vec<IpNetwork> = match all {
            true => self.held.iter().copied().collect(),
            false => unnamed.into_iter().filter(|prefix| self.held.contains(prefix)).collect(),
        };
        if gone.is_empty() {
            return gone;
        }
        let staged = waiting.values().flatten();
        let mut wanted: BTreeSet<IpNetwork> = staged.flat_map(|policy| prefixes(policy)).collect();
        wanted.extend(self.group_prefixes());
        if all {
            wanted.extend(engine.prefixes());
        }
        gone.retain(|prefix| !engine.names_prefix(prefix) && !wanted.contains(prefix));
        for prefix in &gone {
            self.held.remove(prefix);
        }
        gone
    }

    fn behind(&self, resource: &ResourceId) -> impl Iterator<Item = (&ObjectId, &Known)> {
        let ResourceId { kind, namespace, name } = resource.clone();
        self.sources.iter().filter_map(move |source| {
            let (source, namespace, name) = (source.clone(), namespace.clone(), name.clone());
            self.objects.get_key_value(&ObjectId { source, kind, namespace, name })
        })
    }

    /// Merges the versions of all sources of an object's resource into one policy.
    fn stage(&self, id: &ObjectId, staged: &mut Staged) {
        let resource = ResourceId { kind: id.kind, namespace: id.namespace.clone(), name: id.name.clone() };
        let mut all: Option<Arc<Policy>> = None;
        for policy in self.behind(&resource).filter_map(|(_, known)| known.good.as_ref()) {
            match &mut all {
                None => all = Some(policy.clone()),
                Some(all) => Arc::make_mut(all).entries.extend(policy.entries.iter().cloned()),
            }
        }
        let translated = |policy: Arc<Policy>| {
            if policy.services().next().is_none() {
                return policy;
            }
            Arc::new(Policy::clone(&policy).with_services(self.services.values(), &self.settings))
        };
        let translated = all.map(translated);
        staged.insert(resource, translated);
    }
}

/// Adds an object to a set or removes it. Returns whether this has changed the set.
fn set_member(set: &mut BTreeSet<ObjectId>, id: &ObjectId, is_member: bool) -> bool {
    match (set.contains(id), is_member) {
        (false, true) => set.insert(id.clone()),
        (true, false) => set.remove(id),
        _ => false,
    }
}

/// Returns the id of the object in a row.
pub(crate) fn id(object: &PolicyObject) -> ObjectId {
    let kind = match object.kind {
        PolicyKind::CiliumNetworkPolicy => Kind::CiliumNetworkPolicy,
        PolicyKind::CiliumClusterwideNetworkPolicy => Kind::CiliumClusterwideNetworkPolicy,
        PolicyKind::NetworkPolicy => Kind::NetworkPolicy,
        PolicyKind::ClusterNetworkPolicy => Kind::ClusterNetworkPolicy,
    };
    ObjectId {
        source: object.source.clone(),
        kind,
        namespace: object.namespace.clone(),
        name: object.name.clone(),
    }
}

/// Returns the prefixes that rules of a policy name, exceptions included, as networks; not those of length zero.
pub(crate) fn prefixes(policy: &Policy) -> BTreeSet<IpNetwork> {
    selectors(policy).flat_map(Selector::prefixes).collect()
}

/// Returns the selectors of the peers of a policy.
fn selectors(policy: &Policy) -> impl Iterator<Item = &Selector> {
    let peers = policy.entries.iter().filter_map(|entry| match &entry.peers {
        Peers::Of(selectors) => Some(selectors),
        Peers::All | Peers::Nothing => None,
    });
    peers.flatten()
}

/// Adds the labels that rules of a file in `static-cnp-path` carry, as in Cilium.
fn labelled(mut policy: Policy, object: &PolicyObject) -> Policy {
    if &*object.source != STATIC_CNP_PATH {
        return policy;
    }
    // The origin ends with the index of the document.
    let file = object.origin.split(", document ").next().unwrap_or_default();
    let file = file.rsplit('/').next().unwrap_or_default();
    let label = |key: &str, value: &str| Label {
        key: key.to_owned(),
        value: value.to_owned(),
        source: DIRECTORY.to_owned(),
    };
    let mut own = vec![
        label("filename", file),
        label("io.cilium.k8s.policy.namespace", &object.namespace),
        label("policy-derived-from", object.kind.name()),
    ];
    own.retain(|label| !label.value.is_empty());
    let relabel = |entry: &mut Entry| {
        let written = entry.labels.iter().filter(|text| !text.starts_with(GENERATED_LABELS));
        let all: LabelArray = own.iter().cloned().chain(written.map(|text| Label::parse(text))).collect();
        entry.labels = all.texts().into();
    };
    policy.entries.iter_mut().for_each(relabel);
    policy
}

/// The prefix of labels that rules have by their object.
const GENERATED_LABELS: &str = "k8s:io.cilium.k8s.policy.";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::computation::keep::records;

    fn object(source: &str, name: &str, port: serde_json::Value) -> PolicyObject {
        let manifest = json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "endpointSelector": {},
                "ingress": [{
                    "fromCIDR": ["10.1.2.3/8"],
                    "toPorts": [{"ports": [{"port": port, "protocol": "TCP"}]}],
                }],
            },
        });
        let decoded = PolicyObject::decode(PolicyKind::CiliumNetworkPolicy, &manifest).unwrap();
        PolicyObject { source: source.into(), origin: format!("/etc/p/{name}.yaml, document 1"), ..decoded }
    }

    fn resource(name: &str) -> ResourceId {
        ResourceId { kind: Kind::CiliumNetworkPolicy, namespace: "shop".into(), name: name.into() }
    }

    #[test]
    fn a_refused_version_leaves_the_previous_one_in_force() {
        let (mut repository, settings) = (Repository::default(), Settings::default());
        let mut staged = Staged::new();
        assert!(repository.upsert(&object("folder", "web", json!("80")), &settings, &mut staged).is_none());
        let web = resource("web");
        assert_eq!(staged[&web].as_ref().unwrap().entries.len(), 1);
        assert_eq!(prefixes(staged[&web].as_ref().unwrap()), BTreeSet::from(["10.0.0.0/8".parse().unwrap()]));
        staged.clear();
        let wrong = object("folder", "web", json!("99999"));
        let refusal = repository.upsert(&wrong, &settings, &mut staged).unwrap();
        assert_eq!(refusal.problems[0].path, "spec.ingress[0].toPorts[0].ports[0].port");
        assert!(staged.is_empty(), "nothing changes");
        let status = repository.status(&id(&wrong), 7).unwrap();
        assert_eq!((status.state, status.revision), (ObjectState::RefusedPreviousInForce, 7));
        let new = object("folder", "other", json!("99999"));
        repository.upsert(&new, &settings, &mut staged);
        assert!(staged.is_empty());
        assert_eq!(repository.status(&id(&new), 0).unwrap().state, ObjectState::Refused);
        assert_eq!(repository.refused().count(), 2);
        repository.remove(&wrong, &mut staged);
        assert_eq!(staged[&web], None);
    }

    #[test]
    fn the_version_of_the_previous_run_stays_in_force_while_refused() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::default();
        // Simulates a run of the agent: reads the objects, then stages and commits them.
        let run = |objects: &[PolicyObject]| {
            let kept = records(folder.path().join("policies"));
            kept.restore().unwrap();
            let (mut repository, mut staged) = (Repository::new(Keep::new(kept.clone())), Staged::new());
            for object in objects {
                repository.upsert(object, &settings, &mut staged);
            }
            repository.sources_complete();
            kept.write().unwrap();
            let states: Vec<ObjectState> =
                objects.iter().map(|object| repository.status(&id(object), 1).unwrap().state).collect();
            (staged, states)
        };
        let web = |port| object("folder", "web", port);
        run(&[web(json!("80")), object("folder", "other", json!("81"))]);
        for _ in 0..2 {
            let (staged, states) = run(&[web(json!("99999"))]);
            assert_eq!(states, [ObjectState::RefusedPreviousInForce]);
            assert_eq!(staged[&resource("web")].as_ref().unwrap().entries.len(), 1);
        }
        let (staged, states) = run(&[object("folder", "other", json!("99999"))]);
        assert!(staged.is_empty(), "it was gone in the run before");
        assert_eq!(states, [ObjectState::Refused]);
        let (_, states) = run(&[web(json!("99999"))]);
        assert_eq!(states, [ObjectState::Refused], "and so was this one");
        let (staged, states) = run(&[web(json!("80")), object(STATIC_CNP_PATH, "web", json!("99999"))]);
        assert_eq!(
            states,
            [ObjectState::Applied, ObjectState::Refused],
            "another source's is another policy"
        );
        assert_eq!(staged.len(), 1);
    }

    #[test]
    fn two_sources_of_one_name_are_both_in_force() {
        let (mut repository, settings) = (Repository::default(), Settings::default());
        let mut staged = Staged::new();
        repository.upsert(&object("folder", "web", json!("80")), &settings, &mut staged);
        repository.upsert(&object(STATIC_CNP_PATH, "web", json!("81")), &settings, &mut staged);
        let both = staged[&resource("web")].clone().unwrap();
        assert_eq!(both.entries.len(), 2);
        let labels = |entry: &Entry| entry.labels.to_vec();
        assert_eq!(
            labels(&both.entries[1]),
            [
                "directory:filename=web.yaml",
                "directory:io.cilium.k8s.policy.namespace=shop",
                "directory:policy-derived-from=CiliumNetworkPolicy"
            ]
        );
        assert!(labels(&both.entries[0])[0].starts_with("k8s:io.cilium.k8s.policy."));
        staged.clear();
        repository.remove(&object(STATIC_CNP_PATH, "web", json!("81")), &mut staged);
        assert_eq!(staged[&resource("web")].as_ref().unwrap().entries.len(), 1);
    }
}
