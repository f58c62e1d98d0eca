//! Network policy as pure computation: rules to entries, entries to map rows. No kernel, no files, no clock.
//!
//! **Owns** the parsing and validation of policy objects, selectors, the computation of an endpoint's policy map and
//! the lookup in it. **Needs** labels.
//!
//! [`parse()`] reads an object. An [`Engine`] holds policies and identities; each change returns the identities whose
//! rows it affects ([`Change`]), [`Engine::resolve`] computes the rows of an endpoint, [`Engine::refresh`] those of a
//! few peers only. Rows of traffic for a proxy have the port that [`ProxyPorts`] gives; without one the traffic is denied
//! ([`Resolved::missing_redirects`]). [`Resolved::explain`] returns the verdict on a packet with the deciding rule, [`Engine::filters`]
//! lists the rules that apply to an identity by port.
//!
//! ```
//! use labels::{LabelArray, Labels};
//! use policy_engine::{Decision, Direction, Engine, Kind, NamedPorts, Settings, parse};
//!
//! let settings = Settings::default();
//! let manifest = serde_json::json!({
//!     "metadata": {"name": "web", "namespace": "shop"},
//!     "spec": {
//!         "endpointSelector": {"matchLabels": {"app": "web"}},
//!         "ingress": [{
//!             "fromEndpoints": [{"matchLabels": {"app": "client"}}],
//!             "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}]}],
//!         }],
//!     },
//! });
//! let pod = |app: &str| {
//!     let namespace = "k8s:io.kubernetes.pod.namespace=shop";
//!     let app = format!("k8s:app={app}");
//!     LabelArray::from(&Labels::parse([&app, namespace, "k8s:io.cilium.k8s.policy.cluster=default"]))
//! };
//!
//! let mut engine = Engine::new(settings.clone());
//! engine.add_identity(1000, pod("web"), NamedPorts::default());
//! engine.add_identity(1001, pod("client"), NamedPorts::default());
//! let change = engine.set(parse(Kind::CiliumNetworkPolicy, &manifest, &settings)?);
//! assert_eq!(change.subjects, [1000]);
//!
//! let web = engine.resolve(1000, &NamedPorts::default(), 16384)?;
//! assert_eq!(web.lookup(Direction::Ingress, 1001, 6, 80).decision, Decision::Allow);
//! let other = web.explain(Direction::Ingress, 1001, 6, 81);
//! assert_eq!(other.to_string(), "denied: the one rule that selects the endpoint does not match");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod basis;
mod classes;
mod counts;
mod density;
mod engine;
mod excerpt;
mod explain;
mod features;
mod filters;
mod groups;
mod identities;
mod identity_ids;
mod listing;
mod lookup;
mod model;
mod parse;
mod passes;
mod plan;
mod priority;
mod proxy;
mod redirects;
mod refusal;
mod resolve;
mod rows;
mod selections;
mod selector;
mod selector_index;
mod selector_text;
mod services;
mod settings;
mod uses;

pub use basis::Basis;
pub use classes::{SelectorClass, SelectorClasses};
pub use engine::{Change, Engine, Rule};
pub use explain::Explanation;
pub use features::Feature;
pub use filters::{Filter, FilterPeer, Filters, PeerEffect};
pub use groups::{CidrGroup, CidrGroups, cidr_group_prefixes};
pub use identity_ids::IdentityIds;
pub use k8s_types::selector::Test;
pub use labels::NamedPorts;
pub use listing::{SelectorChanges, SelectorRow, SelectorUses};
pub use lookup::{Decision, Verdict, lookup};
pub use model::{
    Action, Authentication, Direction, Entry, Kind, Peers, Policy, Port, PortSpec, Ports, Prefix,
    RedirectSpec, ResourceId, Subject, Tier, World,
};
pub use parse::parse;
pub use plan::{Conflict, Match, Reason};
pub use proxy::{
    DnsRule, HeaderMatch, HttpRule, L7Rules, Listener, Parser, ProxyPorts, ProxyRules, Redirect, SecretRef,
    TlsContext,
};
pub use redirects::Redirects;
pub use refusal::{Problem, Refusal};
pub use resolve::{ResolveError, Resolved, RowChange};
pub use rows::{Key, L4, Row};
pub use selections::HOST;
pub use selector::{CidrSelector, FqdnSelector, Requirement, Selector};
pub use selector_text::SelectorText;
pub use services::{ServiceMatch, ServicePeers, ServiceSelector};
pub use settings::{Enforcement, Settings};
