//! The plan of an identity: the effects of its rules by selector of peers, before selectors are expanded to identities.

use std::collections::BTreeMap;
use std::sync::Arc;

use labels::RESERVED;

use crate::engine::{Engine, Rule, StoredRule};
use crate::model::{Action, Direction, Port, PortSpec, Ports};
use crate::priority::{FIRST, Tier, first_priority, precedence};
use crate::rows::L4;
use crate::selections::{HOST, SelectorId};
use crate::settings::Enforcement;
use labels::NamedPorts;

/// The reason of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Policy is not enforced in this direction: no rule selects the endpoint, or an option disables enforcement.
    NotEnforced,
    /// Rules select the endpoint, but none of them denies by default.
    NoDefaultDeny,
    /// The node reaches its own endpoints (option `allow-localhost`).
    Localhost,
    /// These rules, each with the selector that selects the peer.
    Rules(Vec<Match>),
}

/// A rule, with the selector by which it applies to a row's peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// The rule.
    pub rule: Arc<Rule>,
    /// The selector's text.
    pub selector: Arc<str>,
}

/// The effects of an identity's rules, by the selectors of their peers.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) ingress: Side,
    pub(crate) egress: Side,
    /// Reasons, indexed by the origin of parts.
    pub(crate) reasons: Vec<Reason>,
}

/// One direction of a plan.
#[derive(Debug, Default)]
pub(crate) struct Side {
    pub(crate) enforced: bool,
    /// The number of rules that select the endpoint.
    pub(crate) rules: usize,
    /// Parts for any peer.
    pub(crate) any: Vec<Part>,
    /// Parts for the peers of a selector.
    pub(crate) peers: BTreeMap<Peer, Vec<Part>>,
}

/// The peers to which a part of a plan applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// The identities that the selector selects.
    Selected(SelectorId),
    /// The node itself.
    Host,
}

/// An allow or deny of some traffic, with its precedence and the index of its reason.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) traffic: Traffic,
    pub(crate) deny: bool,
    pub(crate) precedence: u32,
    pub(crate) origin: u32,
}

/// The traffic of a part: blocks of protocols and ports, or a named port, which resolves to a different port per peer.
#[derive(Debug, Clone)]
pub(crate) enum Traffic {
    Blocks(Arc<[L4]>),
    Named(Arc<str>, u8),
}

/// The effects of rules of one priority, by protocol and port, then by selector of peers.
pub(crate) type Effects<'a> = BTreeMap<Option<PortSpec>, BTreeMap<SelectorId, Effect<'a>>>;

/// The effect on the peers of one selector, with the rules that have it.
#[derive(Default)]
pub(crate) struct Effect<'a> {
    pub(crate) deny: bool,
    pub(crate) rules: Vec<&'a Arc<Rule>>,
}

/// The rules that apply to an identity.
pub(crate) struct Rules<'a> {
    pub(crate) rules: Vec<&'a StoredRule>,
    /// Whether policy is enforced even without rules.
    pub(crate) always: bool,
    /// Whether the node reaches the endpoint regardless of rules.
    pub(crate) localhost: bool,
}

/// The rules that apply to an identity in one direction.
pub(crate) struct SideRules<'a> {
    pub(crate) rules: Vec<&'a StoredRule>,
    enforced: bool,
    /// The reason of the allow that the engine adds to the rules.
    pub(crate) addition: Option<Reason>,
}

impl Rules<'_> {
    /// Returns the rules that apply to an identity; `None` if it is unknown.
    pub(crate) fn about(engine: &Engine, identity: u32) -> Option<Rules<'_>> {
        let labels = &engine.identities.get(identity)?.labels;
        let settings = &engine.settings;
        let off = identity == HOST && !settings.host_firewall || settings.enforcement == Enforcement::Never;
        let always = settings.enforcement == Enforcement::Always || labels.has(RESERVED, "init");
        let rules = if off { Vec::new() } else { engine.rules_about(identity) };
        let localhost = identity != HOST && settings.allow_localhost;
        Some(Rules { rules, always: !off && always, localhost })
    }

    pub(crate) fn side(&self, direction: Direction) -> SideRules<'_> {
        let rules: Vec<&StoredRule> =
            self.rules.iter().copied().filter(|rule| rule.rule.direction == direction).collect();
        let enforced = self.always || !rules.is_empty();
        let default_deny = self.always || rules.iter().any(|rule| rule.default_deny);
        let addition = if !enforced {
            Some(Reason::NotEnforced)
        } else if !default_deny && !rules.is_empty() {
            Some(Reason::NoDefaultDeny)
        } else if direction == Direction::Ingress && self.localhost && !rules.is_empty() {
            Some(Reason::Localhost)
        } else {
            None
        };
        SideRules { rules, enforced, addition }
    }
}

impl Plan {
    /// Returns the plan of an identity, `None` if it is unknown; `ports` are the named ports of the endpoint.
    pub(crate) fn new(engine: &Engine, identity: u32, ports: &NamedPorts) -> Option<Plan> {
        let rules = Rules::about(engine, identity)?;
        let mut builder = Builder { engine, ports, plan: Plan::empty() };
        for direction in [Direction::Ingress, Direction::Egress] {
            builder.side(direction, &rules.side(direction));
        }
        Some(builder.plan)
    }

    fn empty() -> Plan {
        Plan { ingress: Side::default(), egress: Side::default(), reasons: Vec::new() }
    }

    pub(crate) fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

struct Builder<'a> {
    engine: &'a Engine,
    ports: &'a NamedPorts,
    plan: Plan,
}

impl Builder<'_> {
    fn side(&mut self, direction: Direction, rules: &SideRules<'_>) {
        let SideRules { rules, enforced, addition } = rules;
        let mut side = Side { enforced: *enforced, rules: rules.len(), ..Side::default() };
        if let Some(reason) = addition {
            let priority = match reason {
                Reason::NotEnforced => FIRST,
                _ => first_priority(Tier::Default, [1, 0]),
            };
            let everything = self.everything(priority, reason.clone());
            match reason {
                Reason::Localhost => {
                    side.peers.insert(Peer::Host, vec![everything]);
                }
                _ => side.any.push(everything),
            }
        }
        for (spec, effects) in filters(rules) {
            self.filter(&mut side, direction, spec.as_ref(), effects);
        }
        match direction {
            Direction::Ingress => self.plan.ingress = side,
            Direction::Egress => self.plan.egress = side,
        }
    }

    fn everything(&mut self, priority: u32, reason: Reason) -> Part {
        let origin = self.origin(reason);
        let traffic = Traffic::Blocks([L4::ALL].into());
        Part { traffic, deny: false, precedence: precedence(priority, false), origin }
    }

    fn origin(&mut self, reason: Reason) -> u32 {
        self.plan.reasons.push(reason);
        self.plan.reasons.len() as u32 - 1
    }

    fn filter(
        &mut self,
        side: &mut Side,
        direction: Direction,
        spec: Option<&PortSpec>,
        effects: BTreeMap<SelectorId, Effect<'_>>,
    ) {
        let Some(traffic) = self.traffic(direction, spec) else { return };
        let named = matches!(traffic, Traffic::Named(..));
        let everyone = effects.iter().find(|(id, _)| self.is_everyone(**id));
        let same_for_all = everyone.map(|(_, effect)| effect.deny);
        let all_ports = matches!(spec, None | Some(PortSpec { port: Port::All, .. }));
        let priority = first_priority(Tier::Normal, [1, 0]);
        for (id, effect) in &effects {
            let everyone = self.is_everyone(*id);
            // An effect that the wildcard selector has, too, needs no rows per peer, except where it covers all ports.
            if !everyone && !all_ports && same_for_all == Some(effect.deny) {
                continue;
            }
            let Some(selection) = self.engine.peers.get(*id) else { continue };
            let matches = effect
                .rules
                .iter()
                .map(|rule| Match { rule: Arc::clone(rule), selector: selection.text.clone() })
                .collect();
            let origin = self.origin(Reason::Rules(matches));
            let precedence = precedence(priority, effect.deny);
            let part = Part { traffic: traffic.clone(), deny: effect.deny, precedence, origin };
            match everyone && !named {
                true => side.any.push(part),
                false => side.peers.entry(Peer::Selected(*id)).or_default().push(part),
            }
        }
    }

    fn is_everyone(&self, id: SelectorId) -> bool {
        self.engine.peers.get(id).is_some_and(|selection| selection.selector.is_wildcard())
    }

    /// Returns the traffic of a filter; `None` if its named port is unknown to the endpoint. A name on egress is the
    /// peer's port and resolved later.
    fn traffic(&self, direction: Direction, spec: Option<&PortSpec>) -> Option<Traffic> {
        let Some(PortSpec { protocol, port }) = spec else {
            return Some(Traffic::Blocks([L4::ALL].into()));
        };
        match port {
            Port::Named { name, .. } if direction == Direction::Egress => {
                Some(Traffic::Named(name.clone(), *protocol))
            }
            Port::Named { name, end } => {
                let first = self.ports.port(name, *protocol)?;
                let port = Port::Range(first, end.unwrap_or(first));
                L4::of_port(*protocol, &port).map(|blocks| Traffic::Blocks(blocks.into()))
            }
            numbers => L4::of_port(*protocol, numbers).map(|blocks| Traffic::Blocks(blocks.into())),
        }
    }
}

/// Groups rules of one direction by traffic and selector of peers. A deny replaces an allow of the same group.
pub(crate) fn filters<'a>(rules: &[&'a StoredRule]) -> Effects<'a> {
    let mut filters = Effects::new();
    for rule in rules {
        let specs: Vec<Option<PortSpec>> = match &rule.ports {
            Ports::All => vec![None],
            Ports::Of(list) => list.iter().map(|spec| Some(plain(spec))).collect(),
        };
        let deny = rule.rule.action == Action::Deny;
        for spec in specs {
            let effects = filters.entry(spec).or_default();
            for peer in &rule.peers {
                let effect = effects.entry(*peer).or_default();
                if deny && !effect.deny {
                    *effect = Effect { deny, rules: Vec::new() };
                }
                let known = effect.rules.last().is_some_and(|last| Arc::ptr_eq(last, &rule.rule));
                if deny == effect.deny && !known {
                    effect.rules.push(&rule.rule);
                }
            }
        }
    }
    filters
}

/// Normalizes a port, so that equal traffic compares equal.
fn plain(spec: &PortSpec) -> PortSpec {
    let port = match &spec.port {
        Port::Range(0, _) => Port::All,
        Port::Range(first, last) => Port::Range(*first, *first.max(last)),
        other => other.clone(),
    };
    PortSpec { protocol: spec.protocol, port }
}
