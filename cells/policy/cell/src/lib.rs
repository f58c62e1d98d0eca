//! Network policy of the endpoints: from rules to rows in their policy maps.
//!
//! **Owns** the rows of the policy maps of all endpoints (the host's with `enable-host-firewall`), the tables `endpoint-policies` (an endpoint's
//! policy, desired and realized), `policies` (the status of each object), `policy-logs` (texts of rules, by the cookie of map
//! entries and verdict events; kept in `state/policy-logs.json`), `selectors` and `subject-selectors` (those of
//! rules, with the identities that they select), `policy-computations` (the last computation for each identity of endpoints), the
//! repository's revision. **Needs** `Arc<dyn Datapath>`, the tables
//! `k8s-policies`, `k8s-networkpolicies`, `k8s-clusternetworkpolicies`, `k8s-ciliumcidrgroups`, `identities` and perhaps
//! `runtime-options`, `services`, `backends`, `Arc<Prefixes>`, `Arc<IpcacheWriter>`. **Provides** [`Policies`] to owners
//! of endpoints, the operations under `/policy`, `GET /apiary/why` ([`why`]), `POST /apiary/policy-preview` ([`preview`]),
//! the commands `policy/mapstate/*`, `policy/compute-all`, `policy/lookup-flow` and `policyrepo/*` of the shell.
//!
//! **Lifecycle.** Maps stay as the previous run has left them until all sources are complete; then they are reconciled
//! with the rules, in place. From then on a job runs a round for each change of rules, identities, endpoints or
//! options: prefixes that new rules name get identities, which are written to the maps, then to the ipcache; then the
//! rules change; then prefixes that no rule names are released. Rows are computed once for all endpoints of an
//! identity. A map changes by single writes in an order without a wrong verdict in between ([`plan()`], tested with
//! [`check`]), else it is swapped for another map.
//!
//! **An invalid object** is refused, with the paths of its errors; its previous version stays in force, even that of
//! the previous run, which is stored in `state/policies`. If rows do not fit into a map, all traffic of its endpoint is
//! denied until they fit. If rules contradict each other, the endpoint's previous policy stays in force. There is no proxy
//! yet: traffic that rules send to one is denied and reported.
//!
//! ```
//! use policy::{Policies, Subject};
//!
//! async fn make(policies: &Policies, subject: Subject) -> Result<u64, policy::NotRealized> {
//!     let endpoint = subject.endpoint; // attached: its map exists, and is empty
//!     policies.enforce(subject);
//!     policies.realized(endpoint).await // its rows are in the kernel: it may send
//! }
//! ```
//!
//! **Differences from Cilium.** Changes are not delayed to be coalesced (`policy-trigger-interval`). A full map always
//! denies all traffic of its endpoint; `enable-endpoint-lockdown-on-policy-overflow` has it do so by entries, as in
//! Cilium, instead of by their absence: a part of a policy is never enforced. An object with an invalid rule is listed with its problems. Objects of one name from two sources are one
//! entry of the repository with the rules of both. Only the policy engine knows the labels of
//! CIDR groups: the API lists identities of prefixes without them.

mod api;
mod cell;
mod computation;
mod config;
mod handle;
mod model;
mod policymap;
mod rounds;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use api::l4::l4_policy;
pub use api::{preview, why};
pub use cell::cell;
pub use config::PolicyConfig;
pub use handle::{NotRealized, Policies, Realization};
pub use model::computation::{ComputedPolicy, PolicyComputation};
pub use model::decisions::Decisions;
pub use model::endpoint::{EndpointPolicy, RealizationState, RowCounts, Subject, Transition};
pub use model::logs::{LogTexts, PolicyLog};
pub use model::object::{ObjectId, ObjectState, PolicyStatus};
pub use model::rows::{RowKey, Rows, Verdict};
pub use model::selectors::{PeerSelector, SubjectSelector};
pub use policy_engine::{Action, Filter, FilterPeer, Filters, NamedPorts, PeerEffect, Tier};
pub use policymap::plan::{Plan, Violation, WrongVerdict, check, plan};
