//! The rules that apply to an identity as the API lists them: by protocol and port, then by the selector of peers.

use std::sync::Arc;

use crate::engine::Engine;
use crate::model::{Action, Authentication, Direction, PortSpec, Tier};
use crate::plan::{Effect, Reason, Rules, filters};
use crate::priority::precedence;
use crate::proxy::ProxyRules;
use crate::selector::Selector;
use crate::selector_text::SelectorText;

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
    /// The tier of the rules.
    pub tier: Tier,
    /// The traffic; `None` is all traffic.
    pub ports: Option<PortSpec>,
    /// The peers, in the order of the selectors' texts; never empty.
    pub peers: Vec<FilterPeer>,
}

/// The rules for the peers of a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterPeer {
    /// The selector's text.
    pub selector: SelectorText,
    /// The effect of the rules. Peers of the same rules share it.
    pub effect: Arc<PeerEffect>,
}

/// The effect of the rules for the peers of a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerEffect {
    /// The action on their traffic.
    pub action: Action,
    /// The number of the rules' priority, counted over all tiers.
    pub priority: u32,
    /// The rules of the proxy that their traffic passes through.
    pub proxy: Option<Arc<ProxyRules>>,
    /// The authentication of their traffic.
    pub authentication: Option<Authentication>,
    /// The labels of each of the rules, in order, without repetitions.
    pub rules: Arc<[Arc<[String]>]>,
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
        let levels = rules.levels().unwrap_or_default();
        let mut found = Vec::new();
        // Rules that conflict are not in force, so they are not listed.
        for ((tier, ports), effects) in filters(&rules.rules, &self.settings).unwrap_or_default() {
            let mut peers: Vec<FilterPeer> = Vec::with_capacity(effects.len());
            for (id, effect) in effects {
                let number = levels.number(tier, effect.priority);
                let Some(selection) = self.peers.get(id) else { continue };
                let peer = FilterPeer::new(selection.text(), number, effect, peers.last());
                peers.push(peer);
            }
            peers.sort_by_cached_key(|peer| Arc::<str>::from(&peer.selector));
            if !peers.is_empty() {
                found.push(Filter { tier, ports, peers });
            }
        }
        let additions = (0..).zip(&rules.additions);
        let number = |priority| levels.number(Tier::Default, priority);
        found.extend(additions.filter_map(|(priority, reason)| added(reason, number(priority), direction)));
        found
    }
}

impl PeerEffect {
    /// Returns the precedence of the rules, as rows of policy maps have it: the higher one decides.
    pub fn precedence(&self) -> u32 {
        let redirect = self.proxy.as_ref().map_or(0, |rules| rules.priority());
        precedence(self.priority, self.action == Action::Deny, redirect)
    }
}

impl FilterPeer {
    fn new(
        selector: SelectorText,
        priority: u32,
        effect: Effect<'_>,
        previous: Option<&FilterPeer>,
    ) -> FilterPeer {
        let mut rules: Vec<_> = effect.rules.iter().map(|rule| rule.labels.clone()).collect();
        rules.sort_unstable();
        rules.dedup();
        let known =
            previous.filter(|peer| *peer.effect.rules == *rules).map(|peer| peer.effect.rules.clone());
        let rules = known.unwrap_or_else(|| rules.into());
        let Effect { action, proxy, authentication, .. } = effect;
        let effect = PeerEffect { action, priority, proxy, authentication, rules };
        let known = previous.map(|peer| &peer.effect).filter(|known| ***known == effect).cloned();
        FilterPeer { selector, effect: known.unwrap_or_else(|| effect.into()) }
    }
}

/// Returns the filter that the API lists for an addition of the engine; `None` if the reason adds none. The names are
/// those of Cilium's built-in rules.
fn added(reason: &Reason, priority: u32, direction: Direction) -> Option<Filter> {
    let everyone = || Selector::Labels(Vec::new());
    let (selector, action, name) = match (reason, direction) {
        (Reason::NoDefaultDeny, Direction::Ingress) => (everyone(), Action::Allow, "allow-any-ingress"),
        (Reason::NoDefaultDeny, Direction::Egress) => (everyone(), Action::Allow, "allow-any-egress"),
        (Reason::DefaultDeny, Direction::Ingress) => (everyone(), Action::Deny, "deny-any-ingress"),
        (Reason::DefaultDeny, Direction::Egress) => (everyone(), Action::Deny, "deny-any-egress"),
        (Reason::Localhost, _) => (Selector::reserved("host"), Action::Allow, "allow-localhost-ingress"),
        (Reason::NotEnforced | Reason::Rules(_), _) => return None,
    };
    let labels = [format!("reserved:io.cilium.policy.derived-from={name}")].into();
    let rules = [labels].into();
    let effect = PeerEffect { action, priority, proxy: None, authentication: None, rules }.into();
    let peer = FilterPeer { selector: selector.key().as_str().into(), effect };
    Some(Filter { tier: Tier::Default, ports: None, peers: vec![peer] })
}
