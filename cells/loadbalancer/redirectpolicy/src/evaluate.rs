//! The desired redirections: a pure function of policies, pods and frontends.

use std::collections::{BTreeMap, BTreeSet};

use k8s_tables::SmolStr;
use loadbalancer::{Backend, FrontendParams, LbAddress, ServiceName, Source};

use crate::candidate::Candidate;
use crate::policy::{LocalRedirectPolicy, Matched, stands_for_policy};

/// Access to the existing frontends.
pub(crate) trait Frontends {
    /// Returns the frontends of a service, by address.
    fn of_service(&self, service: &ServiceName) -> Vec<FrontendParams>;
    /// Returns the service that owns an address.
    fn owner(&self, address: &LbAddress) -> Option<ServiceName>;
}

/// The rows that policies require.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    /// The services that represent policies.
    pub(crate) services: BTreeMap<ServiceName, Redirect>,
    /// The targets of redirected frontends of other services.
    pub(crate) redirects: BTreeMap<LbAddress, ServiceName>,
    /// By `NAMESPACE/NAME` of a pod: frontends whose redirection its own traffic skips.
    pub(crate) skips: BTreeMap<String, Skips>,
    /// By policy: addresses with another owner.
    pub(crate) conflicts: BTreeMap<ServiceName, Vec<Conflict>>,
}

/// A service that represents a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) frontends: Vec<FrontendParams>,
    pub(crate) backends: Vec<Backend>,
}

/// The skips of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skips {
    /// The last of the policies that request it.
    pub(crate) policy: ServiceName,
    /// Frontends by the services that represent the policies.
    pub(crate) addresses: BTreeMap<ServiceName, Vec<LbAddress>>,
}

/// A conflict about an address that a policy requests and that has another owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Conflict {
    /// A service owns it.
    #[error("{0} belongs to service {1}; match the service instead (serviceMatcher)")]
    Service(LbAddress, ServiceName),
    /// An older policy redirects it.
    #[error("{0} is redirected by policy {1} already")]
    Policy(LbAddress, ServiceName),
}

/// Returns the redirections that policies request. Conflicts are decided for the older policy, at equal age for the
/// first by name. O(policies x pods).
pub(crate) fn evaluate<'p>(
    policies: impl IntoIterator<Item = &'p LocalRedirectPolicy>,
    pods: &[Candidate],
    frontends: &dyn Frontends,
) -> Desired {
    let mut policies: Vec<&LocalRedirectPolicy> = policies.into_iter().collect();
    policies.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    let mut desired = Desired::default();
    let mut claimed: BTreeMap<LbAddress, &ServiceName> = BTreeMap::new();
    for policy in policies {
        let of_policy =
            |pod: &&Candidate| *pod.namespace == *policy.id.namespace() && policy.selects(&pod.labels);
        let matching: Vec<&Candidate> = pods.iter().filter(of_policy).collect();
        let name = policy.service_name();
        let mut conflicts = Vec::new();
        let mut claim = |address: LbAddress| match claimed.get(&address) {
            Some(owner) => {
                conflicts.push(Conflict::Policy(address, (*owner).clone()));
                false
            }
            None => {
                claimed.insert(address, &policy.id);
                true
            }
        };
        let mut of_own = Vec::new();
        let mut taken: Vec<LbAddress> = Vec::new();
        let mut refused = Vec::new();
        match &policy.frontend {
            // Without pods no traffic is redirected.
            _ if matching.is_empty() => {}
            Matched::Address(..) => {
                for params in policy.frontends() {
                    let owner = frontends.owner(&params.address).filter(|owner| !stands_for_policy(owner));
                    match owner {
                        Some(owner) => refused.push(Conflict::Service(params.address, owner)),
                        None if claim(params.address) => {
                            taken.push(params.address);
                            of_own.push(params);
                        }
                        None => {}
                    }
                }
            }
            Matched::Service(service, _) => {
                for params in frontends.of_service(service) {
                    if policy.redirects(&params) && claim(params.address) {
                        taken.push(params.address);
                        desired.redirects.insert(params.address, name.clone());
                    }
                }
            }
        }
        conflicts.extend(refused);
        if !conflicts.is_empty() {
            desired.conflicts.insert(policy.id.clone(), conflicts);
        }
        if policy.skip_redirect_from_backend && !taken.is_empty() {
            for pod in &matching {
                let skips = desired
                    .skips
                    .entry(pod.name.clone())
                    .or_insert_with(|| Skips { policy: policy.id.clone(), addresses: BTreeMap::new() });
                skips.policy = policy.id.clone();
                skips.addresses.insert(name.clone(), taken.clone());
            }
        }
        let backends = backends(policy, &name, &matching);
        desired.services.insert(name, Redirect { frontends: of_own, backends });
    }
    desired
}

/// Returns the ports of pods that a policy redirects to; one with several names has all of them.
fn backends(policy: &LocalRedirectPolicy, name: &ServiceName, pods: &[&Candidate]) -> Vec<Backend> {
    let mut names: BTreeMap<LbAddress, BTreeSet<SmolStr>> = BTreeMap::new();
    for (address, port_name) in pods.iter().flat_map(|pod| &pod.ports) {
        if policy.leads_to(address, port_name) {
            let names = names.entry(*address).or_default();
            if !port_name.is_empty() {
                names.insert(port_name.clone());
            }
        }
    }
    let backend = |(address, names): (LbAddress, BTreeSet<SmolStr>)| Backend {
        port_names: names.into_iter().collect(),
        weight: 0,
        ..Backend::new(name.clone(), address, Source::Kubernetes)
    };
    names.into_iter().map(backend).collect()
}
