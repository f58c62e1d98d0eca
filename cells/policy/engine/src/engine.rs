//! The repository: policies, the identities of the cluster, and the selections of all selectors.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ipnetwork::IpNetwork;
use labels::LabelArray;

use crate::groups::{CidrGroups, cidr_group_prefixes};
use crate::identities::{Identities, Identity};
use crate::model::{
    Action, Authentication, Direction, Entry, Peers, Policy, Port, Ports, RedirectSpec, ResourceId, Subject,
    Tier,
};
use crate::proxy::{Parser, ProxyPorts, Redirect};
use crate::selections::{Selection, Selections, SelectorId};
use crate::selector::Selector;
use crate::settings::Settings;
use labels::NamedPorts;

const UDP: u8 = 17;
const DNS_PORT: u16 = 53;

/// Policies and identities, from which the rows of any endpoint are computed. Every change is incremental and returns
/// the identities whose rows may differ.
#[derive(Debug)]
pub struct Engine {
    pub(crate) settings: Settings,
    pub(crate) proxy_ports: Arc<dyn ProxyPorts>,
    revision: u64,
    policies: BTreeMap<ResourceId, Stored>,
    pub(crate) groups: CidrGroups,
    pub(crate) identities: Identities,
    pub(crate) peers: Selections<Selector>,
    pub(crate) subjects: Selections<Subject>,
    /// By subject: the policies with rules for it.
    about: HashMap<SelectorId, BTreeSet<ResourceId>>,
    /// The number of rules.
    rules: usize,
    /// The number of rules for any peer with ports by name: their rows depend on each peer.
    names_of_everyone: usize,
}

/// A policy with the ids of its selectors.
#[derive(Debug)]
struct Stored {
    policy: Arc<Policy>,
    rules: Vec<StoredRule>,
}

/// An entry of a policy, with its selectors replaced by their ids.
#[derive(Debug)]
pub(crate) struct StoredRule {
    pub(crate) rule: Arc<Rule>,
    pub(crate) subject: SelectorId,
    pub(crate) tier: Tier,
    /// The priority in the tier; lower numbers take precedence over higher ones.
    pub(crate) priority: u32,
    pub(crate) default_deny: bool,
    /// Empty if the rule matches no peer.
    pub(crate) peers: Vec<SelectorId>,
    pub(crate) ports: Ports,
    pub(crate) redirects: Vec<RedirectSpec>,
    pub(crate) authentication: Option<Authentication>,
}

/// A rule's place in its object, and its action on traffic that it matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The object.
    pub resource: ResourceId,
    /// The place in the object: `spec.ingress[0]`.
    pub path: Arc<str>,
    /// Its direction.
    pub direction: Direction,
    /// Its action.
    pub action: Action,
    /// Labels of the rule, as texts, sorted.
    pub labels: Arc<[String]>,
    /// The user's text for the log of verdicts; empty if none is given.
    pub log: Arc<str>,
}

/// The identities whose rows may differ after a change. All lists are sorted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// Revision of the policies after the change; changes of identities do not increment it.
    pub revision: u64,
    /// Identities whose rows have to be resolved again, by [`Engine::resolve`].
    pub subjects: Vec<u32>,
    /// Identities of which only the rows of [`peers`](Self::peers) differ: [`Engine::refresh`] is enough.
    pub refresh: Vec<u32>,
    /// The changed peers of these.
    pub peers: Vec<u32>,
}

impl Change {
    /// Merges a later change into this one.
    pub fn merge(&mut self, later: Change) {
        self.revision = later.revision;
        merge(&mut self.subjects, later.subjects);
        merge(&mut self.refresh, later.refresh);
        merge(&mut self.peers, later.peers);
    }
}

/// Merges a sorted list into another one. A short one costs a binary search an item, so that many small changes do not
/// sort the whole list each.
fn merge(list: &mut Vec<u32>, more: Vec<u32>) {
    if more.len() > list.len() / 16 {
        list.extend(more);
        list.sort_unstable();
        list.dedup();
        return;
    }
    for id in more {
        if let Err(at) = list.binary_search(&id) {
            list.insert(at, id);
        }
    }
}

impl Engine {
    /// Returns an engine without policies and identities, at revision 1, as in Cilium.
    pub fn new(settings: Settings) -> Engine {
        Engine {
            settings,
            proxy_ports: Arc::new(BTreeMap::new()),
            revision: 1,
            policies: BTreeMap::new(),
            groups: CidrGroups::new(),
            identities: Identities::default(),
            peers: Selections::default(),
            subjects: Selections::default(),
            about: HashMap::new(),
            rules: 0,
            names_of_everyone: 0,
        }
    }

    /// Returns the revision, which counts the changes of policies from 1.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the options in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the options of the computation. Policies that were parsed with the previous options are kept as they are.
    /// All rows may differ.
    pub fn set_settings(&mut self, settings: Settings) -> Change {
        if self.settings == settings {
            return self.unchanged();
        }
        self.settings = settings;
        self.revision += 1;
        Change { subjects: self.identities.ids().collect(), ..self.unchanged() }
    }

    /// Starts a new revision without a change of policies.
    pub fn bump_revision(&mut self) -> Change {
        self.revision += 1;
        self.unchanged()
    }

    /// Returns the change after which the rows of these identities are computed from scratch.
    pub fn invalidate(&self, mut identities: Vec<u32>) -> Change {
        identities.sort_unstable();
        identities.dedup();
        Change { subjects: identities, ..self.unchanged() }
    }

    /// Sets the ports of proxies. The rows of identities with rules for a proxy may differ.
    pub fn set_proxy_ports(&mut self, ports: Arc<dyn ProxyPorts>) -> Change {
        self.proxy_ports = ports;
        let stored = self.policies.values().flat_map(|stored| &stored.rules);
        let subjects = stored
            .filter(|rule| !rule.redirects.is_empty())
            .map(|rule| rule.subject)
            .collect::<BTreeSet<_>>();
        Change { subjects: self.selected(&subjects), ..self.unchanged() }
    }

    /// Returns the kinds of proxies that an entry needs and that have no port: traffic that depends on them is denied.
    pub fn missing_proxies(&self, entry: &Entry) -> BTreeSet<Parser> {
        let of_ports = entry.redirects.iter().filter_map(|RedirectSpec { port: spec, rules }| {
            let port = if let Port::Range(first, _) = spec.port { first } else { 0 };
            let listener =
                rules.listener.as_ref().map_or_else(|| "".into(), |listener| listener.name.clone());
            let (direction, protocol, parser) = (entry.direction, spec.protocol, rules.parser()?);
            Some(Redirect { direction, protocol, port, parser, listener })
        });
        // Only the DNS proxy knows the addresses of names.
        let by_name =
            matches!(&entry.peers, Peers::Of(list) if list.iter().any(|s| matches!(s, Selector::Fqdn(_))));
        let dns = Redirect {
            direction: Direction::Egress,
            protocol: UDP,
            port: DNS_PORT,
            parser: Parser::Dns,
            listener: "".into(),
        };
        let needed = of_ports.chain(by_name.then_some(dns));
        needed.filter(|to| self.proxy_ports.port(to).is_none()).map(|to| to.parser).collect()
    }

    /// Returns the number of rules of all policies.
    pub fn rule_count(&self) -> usize {
        self.rules
    }

    /// Iterates over all policies, in the order of their names.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values().map(|stored| &stored.policy)
    }

    /// Returns the policy with this name.
    pub fn policy(&self, resource: &ResourceId) -> Option<&Arc<Policy>> {
        self.policies.get(resource).map(|stored| &stored.policy)
    }

    /// Adds a policy, or replaces the one of this name. An equal one changes nothing.
    pub fn set(&mut self, policy: impl Into<Arc<Policy>>) -> Change {
        let policy = policy.into();
        if self.policies.get(&policy.resource).is_some_and(|stored| stored.policy == policy) {
            return self.unchanged();
        }
        // Store the new policy before the old one is released: selectors that both use keep a reference, so their
        // selections need not be computed again.
        let stored = self.store(policy);
        let mut subjects: BTreeSet<SelectorId> = stored.rules.iter().map(|rule| rule.subject).collect();
        let resource = stored.policy.resource.clone();
        let old = self.policies.insert(resource.clone(), stored);
        if let Some(old) = &old {
            self.disown(old);
        }
        for subject in &subjects {
            self.about.entry(*subject).or_default().insert(resource.clone());
        }
        subjects.extend(old.iter().flat_map(|old| old.rules.iter().map(|rule| rule.subject)));
        let change = self.policy_change(&subjects);
        // Release after the change is computed: it includes the identities that the old subjects select.
        if let Some(old) = old {
            self.forget(&old);
        }
        change
    }

    /// Removes a policy; an unknown one changes nothing.
    pub fn remove(&mut self, resource: &ResourceId) -> Change {
        let Some(old) = self.policies.remove(resource) else { return self.unchanged() };
        self.disown(&old);
        let subjects = old.rules.iter().map(|rule| rule.subject).collect();
        let change = self.policy_change(&subjects);
        self.forget(&old);
        change
    }

    /// Adds an identity, or replaces its labels and the ports of its endpoints.
    pub fn add_identity(&mut self, id: u32, labels: LabelArray, ports: NamedPorts) -> Change {
        let identity = Identity::new(labels, ports, &self.groups, &self.settings);
        if self.identities.get(id) == Some(&identity) {
            return self.unchanged();
        }
        self.replace_identity(id, identity)
    }

    pub(crate) fn replace_identity(&mut self, id: u32, identity: Identity) -> Change {
        let relabelled = self.identities.get(id).is_none_or(|old| old.labels != identity.labels);
        if relabelled {
            self.subjects.update(id, self.identities.get(id), Some(&identity));
        }
        let touched = self.peers.update(id, self.identities.get(id), Some(&identity));
        let mut change = self.peer_change(id, touched);
        self.identities.insert(id, identity);
        if relabelled {
            change.subjects = vec![id];
            change.refresh.retain(|subject| *subject != id);
        }
        change
    }

    /// Removes an identity; an unknown one changes nothing.
    pub fn remove_identity(&mut self, id: u32) -> Change {
        let Some(old) = self.identities.remove(id) else { return self.unchanged() };
        self.subjects.update(id, Some(&old), None);
        let touched = self.peers.update(id, Some(&old), None);
        self.peer_change(id, touched)
    }

    /// Returns the labels of an identity, if it is known.
    pub fn labels(&self, identity: u32) -> Option<&LabelArray> {
        self.identities.get(identity).map(|identity| &identity.labels)
    }

    /// Returns the prefixes that rules name, exceptions included: each needs an identity of its own. Prefixes of length
    /// 0 are the world of the family, with a reserved identity.
    pub fn prefixes(&self) -> BTreeSet<IpNetwork> {
        let by_group = self.peers.has_cidr_groups();
        let of_groups = by_group.then(|| cidr_group_prefixes(&self.groups)).into_iter().flatten();
        self.peers.prefixes().chain(of_groups).collect()
    }

    /// Whether a rule itself names the prefix, not a CIDR group; see [`prefixes`](Self::prefixes).
    pub fn names_prefix(&self, prefix: &IpNetwork) -> bool {
        self.peers.names(prefix)
    }

    /// Returns the prefixes that rules have ceased to name since the last call; some may be named again.
    pub fn take_unnamed_prefixes(&mut self) -> BTreeSet<IpNetwork> {
        self.peers.take_unnamed()
    }

    /// Returns the rules that apply to an identity, by policy, then in the order of its entries. Costs what applies.
    pub(crate) fn rules_about(&self, identity: u32) -> Vec<&StoredRule> {
        let Some(known) = self.identities.get(identity) else { return Vec::new() };
        let subjects = self.subjects.selecting(identity, known);
        let policies: BTreeSet<&ResourceId> =
            subjects.iter().filter_map(|id| self.about.get(id)).flatten().collect();
        let rules = policies.into_iter().filter_map(|resource| self.policies.get(resource));
        rules
            .flat_map(|stored| &stored.rules)
            .filter(|rule| subjects.binary_search(&rule.subject).is_ok())
            .collect()
    }

    /// Rebuilds indexes that have grown, without half-empty nodes. Call it after many changes.
    pub fn compact(&mut self) {
        self.identities.compact();
        self.peers.compact();
        self.subjects.compact();
    }

    pub(crate) fn unchanged(&self) -> Change {
        Change { revision: self.revision, ..Change::default() }
    }

    /// Starts a new revision and returns the change for the identities that one of these subjects selects.
    fn policy_change(&mut self, subjects: &BTreeSet<SelectorId>) -> Change {
        self.revision += 1;
        Change { subjects: self.selected(subjects), ..self.unchanged() }
    }

    /// Returns the change for the identities whose rules use selectors that select the peer or did before.
    fn peer_change(&self, peer: u32, touched: Vec<SelectorId>) -> Change {
        // Rows for any peer do not depend on a peer, unless a port is known by its name.
        let depends = |id: &SelectorId| {
            let selects_everyone = self.peers.get(*id).is_some_and(Selection::is_wildcard);
            self.names_of_everyone > 0 || !selects_everyone
        };
        let used = touched.iter().filter(|id| depends(id)).filter_map(|id| self.peers.get(*id));
        let subjects: BTreeSet<SelectorId> =
            used.flat_map(|peers| peers.uses.subjects.items()).copied().collect();
        Change { refresh: self.selected(&subjects), peers: vec![peer], ..self.unchanged() }
    }

    fn selected(&self, subjects: &BTreeSet<SelectorId>) -> Vec<u32> {
        let mut all: Vec<u32> = subjects.iter().flat_map(|id| self.subjects.of(*id)).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn store(&mut self, policy: Arc<Policy>) -> Stored {
        let mut rules = Vec::with_capacity(policy.entries.len());
        for entry in &policy.entries {
            let subject = self.subjects.acquire(&entry.subject, None, &entry.labels, &self.identities);
            let everyone = [Selector::Labels(Vec::new())];
            let selectors = match &entry.peers {
                Peers::All => &everyone,
                Peers::Nothing => &[][..],
                // A list that contains the wildcard equals the wildcard alone.
                Peers::Of(list) if list.contains(&everyone[0]) => &everyone,
                Peers::Of(list) => list,
            };
            let acquire = |peer| self.peers.acquire(peer, Some(subject), &entry.labels, &self.identities);
            let peers: Vec<SelectorId> = selectors.iter().map(acquire).collect();
            let rule = Arc::new(Rule {
                resource: policy.resource.clone(),
                path: entry.path.clone(),
                direction: entry.direction,
                action: entry.action,
                labels: entry.labels.clone(),
                log: entry.log.clone(),
            });
            self.rules += 1;
            let everyone = selectors.iter().any(Selector::is_wildcard);
            self.names_of_everyone += usize::from(everyone && has_names(&entry.ports, &entry.redirects));
            rules.push(StoredRule {
                rule,
                subject,
                tier: entry.tier,
                priority: entry.priority,
                default_deny: entry.default_deny,
                peers,
                ports: entry.ports.clone(),
                redirects: entry.redirects.clone(),
                authentication: entry.authentication,
            });
        }
        Stored { policy, rules }
    }

    /// Removes the policy from the index of policies by subject.
    fn disown(&mut self, stored: &Stored) {
        for rule in &stored.rules {
            if let Some(policies) = self.about.get_mut(&rule.subject) {
                policies.remove(&stored.policy.resource);
                if policies.is_empty() {
                    self.about.remove(&rule.subject);
                }
            }
        }
    }

    /// Releases the selectors that the policy has acquired in [`store`](Self::store).
    fn forget(&mut self, stored: &Stored) {
        for rule in &stored.rules {
            let labels = &rule.rule.labels;
            let is_everyone = |id: &SelectorId| self.peers.get(*id).is_some_and(Selection::is_wildcard);
            let everyone = rule.peers.iter().any(is_everyone);
            self.rules -= 1;
            self.names_of_everyone -= usize::from(everyone && has_names(&rule.ports, &rule.redirects));
            for peer in &rule.peers {
                self.peers.release(*peer, Some(rule.subject), labels);
            }
            self.subjects.release(rule.subject, None, labels);
        }
    }
}

/// Whether a port of a rule is known by its name.
fn has_names(ports: &Ports, redirects: &[RedirectSpec]) -> bool {
    let plain = if let Ports::Of(specs) = ports { &specs[..] } else { &[] };
    let mut specs = plain.iter().chain(redirects.iter().map(|redirect| &redirect.port));
    specs.any(|spec| matches!(spec.port, Port::Named { .. }))
}
