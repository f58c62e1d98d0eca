//! The policies of one direction: a list by ports, each with rules in the order of their precedence.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use envoy_api::Message as _;
use envoy_api::cilium::port_network_policy_rule::{L7, Verdict};
use envoy_api::cilium::{PortNetworkPolicy, PortNetworkPolicyRule};
use labels::NamedPorts;
use policy_engine::{
    Action, Direction, Filter, FilterPeer, L7Rules, Parser, Port, PortSpec, ProxyRules, Redirect, SecretRef,
    Selector, SelectorText, Tier,
};

use super::{http, tls};
use crate::secrets::Found;

const TCP: u8 = 6;
/// The identity of the node, which a filter of the engine allows.
const HOST: u32 = 1;
/// The bits of a precedence within a priority.
const KIND_BITS: u32 = 8;

/// The present values of names in rules.
pub(crate) trait Peers {
    /// Returns the identities that a selector selects, sorted; `None` if it is not in use.
    fn selected(&self, selector: &SelectorText) -> Option<Vec<u32>>;
    /// Returns the identities with a named port, by its number.
    fn named(&self, name: &str, protocol: u8) -> BTreeMap<u16, BTreeSet<u32>>;
    /// Returns the secret that a rule names; `None` if there is none.
    fn secret(&self, reference: &SecretRef) -> Option<Found>;
    /// Whether TLS that is terminated gets the authorities of secrets as well (`use-full-tls-context`).
    fn full_tls_context(&self) -> bool;
    /// Reports a secret that cannot be used.
    fn refuse(&self, reference: &SecretRef, reason: String);
    /// Returns the port of the listener that a redirect leads to.
    fn listener_port(&self, redirect: &Redirect) -> Option<u16>;
}

/// First and last port, the latter 0 for a single one; both are 0 for all ports.
type Range = (u16, u16);

/// Returns the policies of a direction in which everything is allowed.
pub(super) fn unenforced() -> Vec<PortNetworkPolicy> {
    vec![PortNetworkPolicy::default()]
}

/// Returns the policies of a direction; without any, everything is denied. Envoy only gets TCP.
pub(super) fn side(
    direction: Direction,
    filters: &[Filter],
    ports: &NamedPorts,
    peers: &impl Peers,
) -> Vec<PortNetworkPolicy> {
    let mut found: BTreeMap<Range, Vec<PortNetworkPolicyRule>> = BTreeMap::new();
    let tiers: BTreeSet<Tier> = filters.iter().map(|filter| filter.tier).collect();
    for tier in tiers {
        let next = pass_precedence(filters, tier);
        let mut is_decided = false;
        for filter in filters.iter().filter(|filter| filter.tier == tier) {
            for (range, restriction) in ranges(direction, filter, ports, peers) {
                for peer in &filter.peers {
                    let rule = rule(direction, range, filter, peer, restriction.as_ref(), next, peers);
                    is_decided |= range == (0, 0) && is_wildcard(peer) && peer.effect.action != Action::Pass;
                    found.entry(range).or_default().extend(rule);
                }
            }
        }
        // A rule for all ports and peers decides: later tiers are never asked.
        if is_decided {
            break;
        }
    }
    let policies = found.into_iter().filter_map(|((first, last), rules)| {
        let rules = in_order(rules);
        // An entry without rules would allow everything.
        (!rules.is_empty()).then(|| PortNetworkPolicy {
            port: first.into(),
            end_port: last.into(),
            rules,
            ..PortNetworkPolicy::default()
        })
    });
    policies.collect()
}

/// Returns the port ranges of a filter, with the only peers that they are for if they depend on these.
fn ranges(
    direction: Direction,
    filter: &Filter,
    ports: &NamedPorts,
    peers: &impl Peers,
) -> Vec<(Range, Option<BTreeSet<u32>>)> {
    let single = |range| vec![(range, None)];
    match (&filter.ports, direction) {
        (None, _) => single((0, 0)),
        (Some(PortSpec { protocol, .. }), _) if *protocol != TCP => Vec::new(),
        (Some(PortSpec { port: Port::All, .. }), _) => single((0, 0)),
        (Some(PortSpec { port: Port::Range(first, last), .. }), _) => single(range(*first, *last)),
        (Some(PortSpec { port: Port::Named { name, end }, protocol }), Direction::Ingress) => {
            match ports.port(name, *protocol) {
                Some(first) => single(range(first, end.unwrap_or(first))),
                None => Vec::new(),
            }
        }
        (Some(PortSpec { port: Port::Named { name, .. }, protocol }), Direction::Egress) => {
            let of_peers = peers.named(name, *protocol).into_iter();
            of_peers.map(|(port, identities)| (range(port, port), Some(identities))).collect()
        }
    }
}

fn range(first: u16, last: u16) -> Range {
    (first, if last > first { last } else { 0 })
}

/// Returns the rule for the peers of a selector; `None` if it matches nothing.
fn rule(
    direction: Direction,
    (port, _): Range,
    filter: &Filter,
    peer: &FilterPeer,
    restriction: Option<&BTreeSet<u32>>,
    pass_precedence: u32,
    peers: &impl Peers,
) -> Option<PortNetworkPolicyRule> {
    let mut rule = PortNetworkPolicyRule {
        precedence: peer.effect.precedence(),
        remote_policies: remotes(peer, restriction, peers)?,
        verdict: match peer.effect.action {
            Action::Allow => None,
            Action::Deny => Some(Verdict::Deny(true)),
            Action::Pass => Some(Verdict::PassPrecedence(pass_precedence)),
        },
        ..PortNetworkPolicyRule::default()
    };
    let rules = peer.effect.proxy.as_ref().filter(|_| peer.effect.action == Action::Allow);
    if let Some((rules, parser)) = rules.and_then(|rules| Some((rules, rules.parser()?))) {
        add_l7(&mut rule, direction, port, filter, rules, parser, peers)?;
    }
    Some(rule)
}

/// Returns the identities of a rule: sorted, empty for all; `None` if there is none.
fn remotes(peer: &FilterPeer, restriction: Option<&BTreeSet<u32>>, peers: &impl Peers) -> Option<Vec<u32>> {
    let selected = match peers.selected(&peer.selector) {
        _ if is_wildcard(peer) => match restriction {
            None => return Some(Vec::new()),
            Some(restriction) => restriction.iter().copied().collect(),
        },
        None if peer.selector == *Selector::reserved("host").key() => vec![HOST],
        selected => selected.unwrap_or_default(),
    };
    let is_meant = |id: &u32| restriction.is_none_or(|restriction| restriction.contains(id));
    let remotes: Vec<u32> = selected.into_iter().filter(is_meant).collect();
    (!remotes.is_empty()).then_some(remotes)
}

fn is_wildcard(peer: &FilterPeer) -> bool {
    peer.selector == *Selector::Labels(Vec::new()).key()
}

/// Adds what Envoy enforces on requests and names; `None` if nothing passes.
fn add_l7(
    rule: &mut PortNetworkPolicyRule,
    direction: Direction,
    port: u16,
    filter: &Filter,
    rules: &ProxyRules,
    parser: Parser,
    peers: &impl Peers,
) -> Option<()> {
    // Traffic that needs certificates which cannot be used is denied.
    if let Some(context) = &rules.terminating_tls {
        rule.downstream_tls_context = Some(tls::terminating(context, peers)?);
    }
    if let Some(context) = &rules.originating_tls {
        rule.upstream_tls_context = Some(tls::originating(context, peers)?);
    }
    rule.server_names = rules.server_names.iter().map(|name| http::server_name(name)).collect();
    match (&rules.l7, parser) {
        (L7Rules::Http(list), Parser::Http) => rule.l7 = Some(L7::HttpRules(http::rules(list, peers)?)),
        (_, Parser::Custom) => {
            let protocol = filter.ports.as_ref()?.protocol;
            let listener = rules.listener.as_ref()?.name.clone();
            let redirect = Redirect { direction, protocol, port, parser, listener };
            rule.proxy_id = peers.listener_port(&redirect)?.into();
        }
        // Queries of DNS are not for Envoy.
        _ => {}
    }
    Some(())
}

/// Returns the precedence below which later tiers begin: the lowest one of the last priority before them, which no rule
/// has.
fn pass_precedence(filters: &[Filter], tier: Tier) -> u32 {
    let later = filters.iter().filter(|filter| filter.tier > tier).flat_map(|filter| &filter.peers);
    let first = later.map(|peer| peer.effect.precedence() >> KIND_BITS).max().unwrap_or_default();
    first.saturating_add(1) << KIND_BITS
}

/// Returns the rules in the order of precedence, without those that a rule for all peers shadows. The order is total:
/// equal policies have equal bytes, and are not sent again.
fn in_order(mut rules: Vec<PortNetworkPolicyRule>) -> Vec<PortNetworkPolicyRule> {
    let requests = |rule: &PortNetworkPolicyRule| match &rule.l7 {
        Some(L7::HttpRules(rules)) => rules.http_rules.len(),
        None => 0,
    };
    rules.sort_by_cached_key(|rule| {
        let precedence = Reverse(rule.precedence);
        (precedence, rule.l7.is_some(), requests(rule), rule.remote_policies.clone(), rule.encode_to_vec())
    });
    rules.dedup();
    let decides = |rule: &PortNetworkPolicyRule| {
        let has_tls = rule.downstream_tls_context.is_some() || rule.upstream_tls_context.is_some();
        let is_plain = rule.l7.is_none() && rule.server_names.is_empty() && rule.proxy_id == 0 && !has_tls;
        is_plain
            && rule.remote_policies.is_empty()
            && !matches!(rule.verdict, Some(Verdict::PassPrecedence(_)))
    };
    if let Some(at) = rules.iter().position(decides) {
        rules.truncate(at + 1);
    }
    rules
}
