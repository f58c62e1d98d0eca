//! The plan of an identity: the effects of its rules by selector of peers, before selectors are expanded to identities.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;

use labels::RESERVED;

use crate::engine::{Engine, Rule, StoredRule};
use crate::model::{Action, Authentication, Direction, Port, PortSpec, Ports, Tier};
use crate::priority::Levels;
use crate::proxy::{ProxyPorts, ProxyRules, Redirect};
use crate::resolve::ResolveError;
use crate::rows::{L4, Row};
use crate::selections::{HOST, Selection, SelectorId};
use crate::selector_text::Plain;
use crate::settings::{Enforcement, Settings};
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
    /// Traffic that a rule passes on is denied if no rule of a later tier matches it.
    DefaultDeny,
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
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) ingress: Side,
    pub(crate) egress: Side,
    /// Reasons, indexed by the origin of parts.
    pub(crate) reasons: Vec<PartReason>,
    /// The rules of reasons: selectors of the same rules share a list.
    pub(crate) rules: Vec<RuleList>,
    /// Redirects that cannot be made: their traffic is not allowed.
    pub(crate) missing: BTreeSet<Redirect>,
    /// Whether a rule has a text for the log of verdicts.
    pub(crate) logs: bool,
}

/// The rules that have an effect.
type RuleList = Vec<Arc<Rule>>;

/// The reason of a part. Small, as a rule has one for each of its selectors.
#[derive(Debug)]
pub(crate) enum PartReason {
    /// An addition of the engine.
    Added(Box<Reason>),
    /// The rules with this index, by the selector with this text.
    Rules(u32, Arc<str>),
    /// The rules with this index, by the selector of a plain prefix.
    Plain(u32, Plain),
}

impl Plan {
    /// Returns a reason by its index.
    pub(crate) fn reason(&self, origin: u32) -> Reason {
        match self.part_reason(origin) {
            PartReason::Added(reason) => Reason::clone(reason),
            _ => Reason::Rules(self.matches(origin).collect()),
        }
    }

    /// Returns a reason that is an addition of the engine; `None` if rules are.
    pub(crate) fn added(&self, origin: u32) -> Option<&Reason> {
        if let PartReason::Added(reason) = self.part_reason(origin) { Some(reason) } else { None }
    }

    /// Iterates over the rules of a reason with their selector; none for an addition.
    pub(crate) fn matches(&self, origin: u32) -> impl Iterator<Item = Match> {
        let selector = match self.part_reason(origin) {
            PartReason::Added(_) => None,
            PartReason::Rules(_, text) => Some(text.clone()),
            PartReason::Plain(_, plain) => Some(plain.to_string().into()),
        };
        let rules = self.rules_of(origin);
        let matches = |selector: Arc<str>| {
            rules.iter().map(move |rule| Match { rule: rule.clone(), selector: selector.clone() })
        };
        selector.into_iter().flat_map(matches)
    }

    /// Returns the rules of a reason; none for an addition.
    pub(crate) fn rules_of(&self, origin: u32) -> &[Arc<Rule>] {
        match self.part_reason(origin) {
            PartReason::Added(_) => &[],
            PartReason::Rules(list, _) | PartReason::Plain(list, _) => &self.rules[*list as usize],
        }
    }

    fn part_reason(&self, origin: u32) -> &PartReason {
        &self.reasons[origin as usize]
    }
}

/// One direction of a plan.
#[derive(Debug, Default)]
pub(crate) struct Side {
    pub(crate) enforced: bool,
    /// The number of rules that select the endpoint.
    pub(crate) rules: usize,
    /// Parts for any peer.
    pub(crate) any: Vec<Part>,
    /// Parts for the peers of a selector, in the order of these, then of the traffic. A rule may have thousands of
    /// selectors, most of them with one part: nodes of a map would be half empty.
    pub(crate) peers: Vec<(Peer, Part)>,
    /// The numbers of the rules' priorities.
    pub(crate) levels: Levels,
    /// Whether a rule asks for authentication, which then holds for narrower allows, too, and beside allows that take
    /// precedence. As in Cilium, none of this holds beside a Pass.
    pub(crate) authenticates: bool,
}

/// The peers to which a part of a plan applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// The identities that the selector selects.
    Selected(SelectorId),
    /// The node itself.
    Host,
}

/// An action on some traffic, with the index of its reason. The selectors of a rule share the action.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) act: Arc<Act>,
    pub(crate) origin: u32,
}

/// An action on some traffic, with the number of its priority.
#[derive(Debug)]
pub(crate) struct Act {
    pub(crate) traffic: Traffic,
    pub(crate) action: Action,
    pub(crate) tier: Tier,
    pub(crate) number: u32,
    pub(crate) proxy: ProxyPort,
    /// The priority of the redirect; 0 for none.
    pub(crate) redirect: u8,
    pub(crate) auth: u8,
}

impl Act {
    /// Whether both are the same, given that they are of the same traffic.
    fn is_same_of_traffic(&self, other: &Act) -> bool {
        let known = |act: &Act| if let ProxyPort::Known(port) = act.proxy { Some(port) } else { None };
        let key = |act: &Act| (act.action, act.tier, act.number, act.redirect, act.auth, known(act));
        known(self).is_some() && key(self) == key(other)
    }
}

/// The traffic of a part: blocks of protocols and ports, or a named port, which resolves to a different port per peer.
#[derive(Debug, Clone)]
pub(crate) enum Traffic {
    Blocks(Arc<[L4]>),
    Named(Arc<str>, u8),
}

/// The proxy port of a part.
#[derive(Debug, Clone)]
pub(crate) enum ProxyPort {
    /// Known; 0 for none.
    Known(u16),
    /// That of a redirect with a port that a peer's named port completes.
    Named(Box<NamedRedirect>),
}

/// A redirect of a port that peers know by its name.
#[derive(Debug, Clone)]
pub(crate) struct NamedRedirect {
    ports: Arc<dyn ProxyPorts>,
    redirect: Redirect,
}

impl ProxyPort {
    /// Returns the proxy port of traffic to this port; `None` if the redirect cannot be made.
    pub(crate) fn of_port(&self, port: u16) -> Option<u16> {
        match self {
            ProxyPort::Known(proxy_port) => Some(*proxy_port),
            ProxyPort::Named(to) => to.ports.port(&Redirect { port, ..to.redirect.clone() }),
        }
    }
}

/// The effects of rules, by tier, protocol and port, then by selector of peers.
pub(crate) type Effects<'a> = BTreeMap<(Tier, Option<PortSpec>), BTreeMap<SelectorId, Effect<'a>>>;

/// The effect on the peers of one selector, with the rules that have it.
pub(crate) struct Effect<'a> {
    pub(crate) action: Action,
    pub(crate) priority: u32,
    pub(crate) proxy: Option<Arc<ProxyRules>>,
    pub(crate) authentication: Option<Authentication>,
    pub(crate) rules: Vec<&'a Arc<Rule>>,
}

impl<'a> Effect<'a> {
    fn new(rule: &'a StoredRule, proxy: Option<&Arc<ProxyRules>>) -> Effect<'a> {
        Effect {
            action: rule.rule.action,
            priority: rule.priority,
            proxy: proxy.cloned(),
            authentication: rule.authentication,
            rules: vec![&rule.rule],
        }
    }

    /// Adds a rule. One of an earlier priority, or a deny of the same one, replaces the others; allows are merged.
    fn add(&mut self, rule: &'a StoredRule, proxy: Option<&Arc<ProxyRules>>) -> Result<(), Conflict> {
        let rank = |priority, action| (priority, order(action));
        match rank(rule.priority, rule.rule.action).cmp(&rank(self.priority, self.action)) {
            Ordering::Less => *self = Effect::new(rule, proxy),
            Ordering::Equal => self.merge(rule, proxy)?,
            Ordering::Greater => {}
        }
        Ok(())
    }

    fn merge(&mut self, rule: &'a StoredRule, proxy: Option<&Arc<ProxyRules>>) -> Result<(), Conflict> {
        let first = place(self.rules[0]);
        let conflict = |reason| Conflict { rules: [first.clone(), place(&rule.rule)].into(), reason };
        ProxyRules::merge(&mut self.proxy, proxy).map_err(&conflict)?;
        match (self.authentication, rule.authentication) {
            (Some(a), Some(b)) if a != b => return Err(conflict("different authentication modes")),
            (known, other) => self.authentication = known.or(other),
        }
        if !self.rules.last().is_some_and(|last| Arc::ptr_eq(last, &rule.rule)) {
            self.rules.push(&rule.rule);
        }
        Ok(())
    }

    fn same_verdict(&self, other: &Effect<'_>) -> bool {
        let redirect =
            |effect: &Effect<'_>| effect.proxy.as_ref().map(|rules| (rules.parser(), rules.listener.clone()));
        (self.action, self.priority, redirect(self), self.authentication)
            == (other.action, other.priority, redirect(other), other.authentication)
    }
}

fn place(rule: &Rule) -> String {
    format!("{} {}", rule.resource, rule.path)
}

/// Rules for the same peers and ports that cannot be in force together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} and {}: {reason} for the same peers and ports", rules[0], rules[1])]
pub struct Conflict {
    /// The rules: object and path.
    pub rules: Arc<[String; 2]>,
    /// The reason.
    pub reason: &'static str,
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
    /// Whether a rule is a Pass.
    passes: bool,
    /// The reasons of what the engine adds to the rules, in the order of their priorities.
    pub(crate) additions: Vec<Reason>,
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
        let passes = rules.iter().any(|rule| rule.rule.action == Action::Pass);
        let additions = if !enforced {
            vec![Reason::NotEnforced]
        } else if rules.is_empty() {
            Vec::new()
        } else if !default_deny {
            vec![Reason::NoDefaultDeny]
        } else {
            let localhost = direction == Direction::Ingress && self.localhost;
            [localhost.then_some(Reason::Localhost), passes.then_some(Reason::DefaultDeny)]
                .into_iter()
                .flatten()
                .collect()
        };
        SideRules { rules, enforced, additions, passes }
    }
}

impl SideRules<'_> {
    /// Returns the numbers of the priorities; `None` if they do not fit into the precedence of rows.
    pub(crate) fn levels(&self) -> Option<Levels> {
        let pass = |rule: &StoredRule| rule.rule.action == Action::Pass;
        let used = self.rules.iter().map(|rule| (rule.tier, rule.priority, pass(rule)));
        let added = (0..).zip(&self.additions).map(|(priority, _)| (Tier::Default, priority, false));
        Levels::new(used.chain(added))
    }
}

impl Plan {
    /// Returns the plan of an identity; `ports` are the named ports of the endpoint.
    pub(crate) fn new(engine: &Engine, identity: u32, ports: &NamedPorts) -> Result<Plan, ResolveError> {
        let rules = Rules::about(engine, identity).ok_or(ResolveError::UnknownIdentity(identity))?;
        let mut builder = Builder { engine, ports, plan: Plan::default() };
        for direction in [Direction::Ingress, Direction::Egress] {
            builder.side(direction, &rules.side(direction))?;
        }
        builder.plan.reasons.shrink_to_fit();
        builder.plan.rules.shrink_to_fit();
        builder.plan.logs = builder.plan.rules.iter().flatten().any(|rule| !rule.log.is_empty());
        Ok(builder.plan)
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
    fn side(&mut self, direction: Direction, rules: &SideRules<'_>) -> Result<(), ResolveError> {
        let levels = rules.levels().ok_or(ResolveError::TooManyPriorities)?;
        let SideRules { rules, enforced, additions, passes } = rules;
        let mut side = Side {
            enforced: *enforced,
            rules: rules.len(),
            levels,
            authenticates: !passes && rules.iter().any(|rule| rule.authentication.is_some()),
            ..Side::default()
        };
        for (priority, reason) in (0..).zip(additions) {
            let act = Act {
                traffic: Traffic::Blocks([L4::ALL].into()),
                action: if *reason == Reason::DefaultDeny { Action::Deny } else { Action::Allow },
                tier: Tier::Default,
                number: side.levels.number(Tier::Default, priority),
                proxy: ProxyPort::Known(0),
                redirect: 0,
                auth: 0,
            };
            let origin = self.origin(PartReason::Added(Box::new(reason.clone())));
            let part = Part { act: Arc::new(act), origin };
            match reason {
                Reason::Localhost => {
                    side.peers.push((Peer::Host, part));
                }
                _ => side.any.push(part),
            }
        }
        for ((tier, spec), effects) in filters(rules, &self.engine.settings)? {
            self.filter(&mut side, direction, tier, spec.as_ref(), effects);
        }
        side.peers.sort_by_key(|(peer, _)| *peer);
        side.peers.shrink_to_fit();
        match direction {
            Direction::Ingress => self.plan.ingress = side,
            Direction::Egress => self.plan.egress = side,
        }
        Ok(())
    }

    /// Returns the index of a list of rules, which is that of the last one if this has the same rules.
    fn rules(&mut self, rules: &[&Arc<Rule>]) -> u32 {
        let lists = &mut self.plan.rules;
        let same = |known: &RuleList| {
            known.len() == rules.len() && known.iter().zip(rules).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if !lists.last().is_some_and(same) {
            lists.push(rules.iter().copied().cloned().collect());
        }
        lists.len() as u32 - 1
    }

    fn origin(&mut self, reason: PartReason) -> u32 {
        self.plan.reasons.push(reason);
        self.plan.reasons.len() as u32 - 1
    }

    fn filter(
        &mut self,
        side: &mut Side,
        direction: Direction,
        tier: Tier,
        spec: Option<&PortSpec>,
        effects: BTreeMap<SelectorId, Effect<'_>>,
    ) {
        let Some(traffic) = self.traffic(direction, spec) else { return };
        let named = matches!(traffic, Traffic::Named(..));
        let of_everyone = effects.iter().find(|(id, _)| self.is_everyone(**id)).map(|(_, effect)| effect);
        let all_ports = matches!(spec, None | Some(PortSpec { port: Port::All, .. }));
        let mut last: Option<Arc<Act>> = None;
        for (id, effect) in &effects {
            let everyone = self.is_everyone(*id);
            // An effect that the wildcard selector has, too, needs no rows per peer, except where it covers all ports.
            if !everyone && !all_ports && of_everyone.is_some_and(|other| other.same_verdict(effect)) {
                continue;
            }
            let Some(proxy) = self.proxy_port(direction, spec, &traffic, effect) else { continue };
            let Some(selection) = self.engine.peers.get(*id) else { continue };
            let act = Act {
                traffic: traffic.clone(),
                action: effect.action,
                tier,
                number: side.levels.number(tier, effect.priority),
                proxy,
                redirect: effect.proxy.as_ref().map_or(0, |rules| rules.priority()),
                auth: effect.authentication.map_or(0, |mode| Row::EXPLICIT_AUTH | mode.auth_type()),
            };
            let act = match &last {
                Some(known) if known.is_same_of_traffic(&act) => known.clone(),
                _ => Arc::new(act),
            };
            last = Some(act.clone());
            let (rules, text) = (self.rules(&effect.rules), selection.text());
            let origin = self.origin(match text.plain() {
                Some(plain) => PartReason::Plain(rules, plain),
                None => PartReason::Rules(rules, (&text).into()),
            });
            let part = Part { act, origin };
            match everyone && !named {
                true => side.any.push(part),
                false => side.peers.push((Peer::Selected(*id), part)),
            }
        }
    }

    /// Returns the proxy port of an effect on some traffic; `None` if its redirect cannot be made, which is recorded.
    fn proxy_port(
        &mut self,
        direction: Direction,
        spec: Option<&PortSpec>,
        traffic: &Traffic,
        effect: &Effect<'_>,
    ) -> Option<ProxyPort> {
        let rules = effect.proxy.as_ref().zip(spec);
        let Some((rules, spec, parser)) =
            rules.and_then(|(rules, spec)| Some((rules, spec, rules.parser()?)))
        else {
            return Some(ProxyPort::Known(0));
        };
        let port = match traffic {
            Traffic::Blocks(blocks) => blocks.first().map_or(0, |block| block.port),
            Traffic::Named(..) => 0,
        };
        let listener = rules.listener.as_ref().map_or_else(|| "".into(), |listener| listener.name.clone());
        let redirect = Redirect { direction, protocol: spec.protocol, port, parser, listener };
        let ports = &self.engine.proxy_ports;
        let found = ports.port(&redirect);
        if found.is_none() {
            self.plan.missing.insert(redirect.clone());
        }
        match traffic {
            // Peers decide about the port, and thus whether there is a proxy for it.
            Traffic::Named(..) => {
                Some(ProxyPort::Named(Box::new(NamedRedirect { ports: ports.clone(), redirect })))
            }
            Traffic::Blocks(_) => found.map(ProxyPort::Known),
        }
    }

    fn is_everyone(&self, id: SelectorId) -> bool {
        self.engine.peers.get(id).is_some_and(Selection::is_wildcard)
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

/// Groups rules of one direction by tier, traffic and selector of peers. Of a group only the rules of the first priority
/// are effective, and of these the denies, if there are any, else the allows.
pub(crate) fn filters<'a>(rules: &[&'a StoredRule], settings: &Settings) -> Result<Effects<'a>, Conflict> {
    let mut filters = Effects::new();
    for rule in rules {
        let mut specs: Vec<(Option<PortSpec>, Option<&Arc<ProxyRules>>)> = match &rule.ports {
            Ports::All => vec![(None, None)],
            Ports::Of(list) => list.iter().map(|spec| (Some(plain(spec)), None)).collect(),
        };
        specs.extend(rule.redirects.iter().map(|to| (Some(plain(&to.port)), Some(&to.rules))));
        for (spec, proxy) in specs {
            let effects = filters.entry((rule.tier, spec)).or_default();
            for peer in &rule.peers {
                match effects.entry(*peer) {
                    Entry::Vacant(free) => _ = free.insert(Effect::new(rule, proxy)),
                    Entry::Occupied(mut known) => known.get_mut().add(rule, proxy)?,
                }
            }
        }
    }
    if settings.dns_bypass {
        for effect in filters.values_mut().flat_map(BTreeMap::values_mut) {
            effect.proxy.take_if(|rules| rules.l7.allow_every_query());
        }
    }
    Ok(filters)
}

/// Returns the order of actions of one priority: the first one is effective.
fn order(action: Action) -> u8 {
    match action {
        Action::Deny => 0,
        Action::Allow => 1,
        Action::Pass => 2,
    }
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
