//! The names of policies in messages.

use std::collections::BTreeSet;

use hubble_api::flow::layer4::Protocol;
use hubble_api::flow::{DropReason, Flow, Policy};
use policy::EndpointPolicy;
use policy_engine::{Direction, Filter, Reason};

/// The number of names in a message, of which Kubernetes cuts none off.
const MAX_NAMES: usize = 10;

/// Returns the sentence of the policies that deny the packet of a flow; those that select the endpoint if no rule denies
/// it. Empty if none is known.
pub(crate) fn sentence(flow: &Flow, is_ingress: bool, row: &EndpointPolicy) -> String {
    if !matches!(flow.drop_reason_desc(), DropReason::PolicyDenied | DropReason::PolicyDeny) {
        return String::new();
    }
    let direction = if is_ingress { Direction::Ingress } else { Direction::Egress };
    let filters = if is_ingress { &row.realized_filters.ingress } else { &row.realized_filters.egress };
    text(denying(flow, direction, row), applied(filters))
}

fn text(denying: BTreeSet<String>, applied: impl Iterator<Item = Policy>) -> String {
    if !denying.is_empty() {
        return format!(" Denied by policies: {}.", list(denying));
    }
    let (mut local, mut clusterwide) = (BTreeSet::new(), BTreeSet::new());
    for Policy { name, namespace, .. } in applied {
        match namespace.is_empty() {
            true => clusterwide.insert(name),
            false => local.insert(name),
        };
    }
    let part = |kind: &str, names: BTreeSet<String>| match names.is_empty() {
        true => String::new(),
        false => format!(" Applied {kind}policies: {}.", list(names)),
    };
    part("", local) + &part("clusterwide ", clusterwide)
}

/// Returns the policies with a rule that denies the packet, as `KIND/NAME`.
fn denying(flow: &Flow, direction: Direction, row: &EndpointPolicy) -> BTreeSet<String> {
    let peer = if direction == Direction::Ingress { flow.source.as_ref() } else { flow.destination.as_ref() };
    let (Some(peer), Some((protocol, port))) = (peer, port(flow)) else { return BTreeSet::new() };
    let explained = row.decisions.explain(direction, peer.identity, protocol, port);
    let rules = match explained.and_then(|explained| explained.row) {
        Some((_, _, Reason::Rules(rules))) => rules,
        _ => return BTreeSet::new(),
    };
    let denying = rules.iter().filter(|found| found.rule.action == policy_engine::Action::Deny);
    let policies = denying.map(|found| hubble::policy_of(&found.rule.labels, row.realized));
    policies.map(|policy| format!("{}/{}", policy.kind, policy.name)).collect()
}

fn applied(filters: &[Filter]) -> impl Iterator<Item = Policy> {
    let rules = filters.iter().flat_map(|filter| &filter.peers).flat_map(|peer| peer.effect.rules.iter());
    rules.map(|labels| hubble::policy_of(labels, 0)).filter(|policy| !policy.name.is_empty())
}

/// Returns the protocol and the port by which policies select the packet of a flow, for ICMP its type.
fn port(flow: &Flow) -> Option<(u8, u16)> {
    let (protocol, port) = match flow.l4.as_ref()?.protocol.as_ref()? {
        Protocol::Tcp(tcp) => (6, tcp.destination_port),
        Protocol::Udp(udp) => (17, udp.destination_port),
        Protocol::Sctp(sctp) => (132, sctp.destination_port),
        Protocol::IcmPv4(icmp) => (1, icmp.r#type),
        Protocol::IcmPv6(icmp) => (58, icmp.r#type),
        Protocol::Vrrp(_) | Protocol::Igmp(_) => return None,
    };
    Some((protocol, u16::try_from(port).ok()?))
}

fn list(names: BTreeSet<String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let shown: Vec<String> = names.into_iter().take(MAX_NAMES).collect();
    let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
    shown.join(",") + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(names: &[(&str, &str)]) -> Vec<Policy> {
        let policy = |(namespace, name): &(&str, &str)| Policy {
            name: (*name).to_owned(),
            namespace: (*namespace).to_owned(),
            ..Policy::default()
        };
        names.iter().map(policy).collect()
    }

    #[test]
    fn denying_policies_are_named_else_those_that_select_the_endpoint() {
        let all = policies(&[("shop", "b"), ("", "cluster"), ("shop", "a"), ("shop", "b")]);
        let denying = ["CiliumNetworkPolicy/x", "NetworkPolicy/y"].map(str::to_owned).into();
        let named = " Denied by policies: CiliumNetworkPolicy/x,NetworkPolicy/y.";
        assert_eq!(text(denying, all.clone().into_iter()), named);
        let named = " Applied policies: a,b. Applied clusterwide policies: cluster.";
        assert_eq!(text(BTreeSet::new(), all.into_iter()), named);
        assert_eq!(text(BTreeSet::new(), std::iter::empty()), "");
        let many: BTreeSet<String> = (0..12).map(|number| format!("{number:02}")).collect();
        assert!(list(many).ends_with("08,09 and 2 more"));
    }

    #[test]
    fn policies_have_the_names_of_their_rules_labels() {
        let labels = |name: &str| [format!("k8s:io.cilium.k8s.policy.name={name}")].into();
        let peer = |rules: Vec<std::sync::Arc<[String]>>| policy_engine::FilterPeer {
            selector: "".into(),
            effect: std::sync::Arc::new(policy_engine::PeerEffect {
                action: policy_engine::Action::Allow,
                priority: 0,
                proxy: None,
                authentication: None,
                rules: rules.into(),
            }),
        };
        let filter = Filter {
            tier: policy_engine::Tier::Normal,
            ports: None,
            peers: vec![peer(vec![labels("web"), [].into()]), peer(vec![labels("db")])],
        };
        let names: Vec<String> = applied(&[filter]).map(|policy| policy.name).collect();
        assert_eq!(names, ["web", "db"]);
    }
}
