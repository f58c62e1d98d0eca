//! The rules that apply to an identity as the API lists them: by protocol and port, then by the selector of peers.

use std::sync::Arc;

use crate::engine::Engine;
use crate::model::{Direction, PortSpec};
use crate::plan::{Effect, Reason, Rules, filters};
use crate::selector::Selector;

/// The API's number for the tier of rules of policy objects.
const NORMAL_TIER: u8 = 200;
/// The API's number for the tier of the engine's additions.
const DEFAULT_TIER: u8 = 255;

/// The filters of an identity, per direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    /// Filters for traffic to the identity; empty if its ingress is not enforced.
    pub ingress: Vec<Filter>,
    /// Filters for traffic from the identity; empty if its egress is not enforced.
    pub egress: Vec<Filter>,
}

/// The rules for one protocol and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// 200 for rules, 255 for the engine's additions.
    pub tier: u8,
    /// The traffic; `None` is all traffic.
    pub ports: Option<PortSpec>,
    /// The peers, in the order of the selectors' texts; never empty.
    pub peers: Vec<FilterPeer>,
}

/// The rules for the peers of a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterPeer {
    /// The selector's text.
    pub selector: Arc<str>,
    /// Whether they are denied.
    pub deny: bool,
    /// The labels of each of the rules, in order, without repetitions.
    pub rules: Vec<Arc<[String]>>,
}

impl Engine {
    /// Returns the filters of an identity; empty if it is unknown. They change only when
    /// [`Change::subjects`](crate::Change::subjects) contains it. Linear in the rules and their selectors, independent
    /// of the number of peers.
    pub fn filters(&self, identity: u32) -> Filters {
        let Some(rules) = Rules::about(self, identity) else { return Filters::default() };
        let of = |direction| self.side_filters(&rules, direction);
        Filters { ingress: of(Direction::Ingress), egress: of(Direction::Egress) }
    }

    fn side_filters(&self, rules: &Rules<'_>, direction: Direction) -> Vec<Filter> {
        let rules = rules.side(direction);
        let mut found = Vec::new();
        for (ports, effects) in filters(&rules.rules) {
            let peer = |(id, effect)| Some(FilterPeer::new(self.peers.get(id)?.text.clone(), effect));
            let mut peers: Vec<FilterPeer> = effects.into_iter().filter_map(peer).collect();
            peers.sort_unstable_by(|a, b| a.selector.cmp(&b.selector));
            if !peers.is_empty() {
                found.push(Filter { tier: NORMAL_TIER, ports, peers });
            }
        }
        found.extend(rules.addition.as_ref().and_then(|reason| added(reason, direction)));
        found
    }
}

impl FilterPeer {
    fn new(selector: Arc<str>, effect: Effect<'_>) -> FilterPeer {
        let mut rules: Vec<_> = effect.rules.iter().map(|rule| rule.labels.clone()).collect();
        rules.sort_unstable();
        rules.dedup();
        FilterPeer { selector, deny: effect.deny, rules }
    }
}

/// Returns the filter that the API lists for an addition of the engine; `None` if the reason adds none. The names are
/// those of Cilium's built-in rules.
fn added(reason: &Reason, direction: Direction) -> Option<Filter> {
    let (selector, name) = match (reason, direction) {
        (Reason::NoDefaultDeny, Direction::Ingress) => (Selector::Labels(Vec::new()), "allow-any-ingress"),
        (Reason::NoDefaultDeny, Direction::Egress) => (Selector::Labels(Vec::new()), "allow-any-egress"),
        (Reason::Localhost, _) => (Selector::reserved("host"), "allow-localhost-ingress"),
        (Reason::NotEnforced | Reason::Rules(_), _) => return None,
    };
    let labels = [format!("reserved:io.cilium.policy.derived-from={name}")].into();
    let peer = FilterPeer { selector: selector.key().into(), deny: false, rules: vec![labels] };
    Some(Filter { tier: DEFAULT_TIER, ports: None, peers: vec![peer] })
}
