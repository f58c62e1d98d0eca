//! The features that rules use, by which policies are counted.

use crate::model::{Action, Authentication, Direction, Entry, Peers, Ports, Subject};
use crate::proxy::{L7Rules, ProxyRules};
use crate::selector::Selector;

/// A feature of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Peers or ports.
    Layer3,
    /// Rules for the node itself.
    Host,
    /// Rules on DNS queries.
    Dns,
    /// Peers by DNS name.
    Fqdn,
    /// Rules on HTTP requests.
    Http,
    /// Headers with an action on mismatch.
    HttpHeaderMatches,
    /// Traffic is dropped.
    Deny,
    /// Sources by CIDR group.
    IngressCidrGroup,
    /// Traffic is authenticated.
    MutualAuth,
    /// TLS that the proxy terminates or originates.
    TlsInspection,
    /// Names of TLS servers.
    SniAllowList,
    /// Traffic that no rule matches passes.
    NonDefaultDeny,
}

impl Feature {
    /// The features.
    pub const ALL: [Feature; 12] = [
        Feature::Layer3,
        Feature::Host,
        Feature::Dns,
        Feature::Fqdn,
        Feature::Http,
        Feature::HttpHeaderMatches,
        Feature::Deny,
        Feature::IngressCidrGroup,
        Feature::MutualAuth,
        Feature::TlsInspection,
        Feature::SniAllowList,
        Feature::NonDefaultDeny,
    ];

    /// Whether an entry uses it.
    pub fn is_in(self, entry: &Entry) -> bool {
        let selectors = match &entry.peers {
            Peers::Of(selectors) => &selectors[..],
            Peers::All | Peers::Nothing => &[],
        };
        let has_peer = |matches: fn(&Selector) -> bool| selectors.iter().any(matches);
        let has_rules = |matches: fn(&ProxyRules) -> bool| {
            entry.redirects.iter().any(|redirect| matches(&redirect.rules))
        };
        match self {
            Feature::Layer3 => {
                !selectors.is_empty() || !entry.services.is_empty() || matches!(entry.ports, Ports::Of(_))
            }
            Feature::Host => matches!(entry.subject, Subject::Node(_)),
            Feature::Dns => has_rules(|rules| matches!(rules.l7, L7Rules::Dns(_))),
            Feature::Fqdn => has_peer(|peer| matches!(peer, Selector::Fqdn(_))),
            Feature::Http => has_rules(|rules| matches!(rules.l7, L7Rules::Http(_))),
            Feature::HttpHeaderMatches => has_rules(
                |rules| matches!(&rules.l7, L7Rules::Http(all) if all.iter().any(|rule| !rule.header_matches.is_empty())),
            ),
            Feature::Deny => entry.action == Action::Deny,
            Feature::IngressCidrGroup => {
                entry.direction == Direction::Ingress && has_peer(Selector::is_of_cidr_groups)
            }
            Feature::MutualAuth => entry.authentication.is_some_and(|mode| mode != Authentication::Disabled),
            Feature::TlsInspection => {
                has_rules(|rules| rules.terminating_tls.is_some() || rules.originating_tls.is_some())
            }
            Feature::SniAllowList => has_rules(|rules| !rules.server_names.is_empty()),
            Feature::NonDefaultDeny => !entry.default_deny,
        }
    }
}
