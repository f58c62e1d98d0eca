//! Explanations of verdicts: the deciding row and its rules.

use std::fmt;

use crate::lookup::{Decision, Verdict, lookup};
use crate::model::{Authentication, Direction};
use crate::plan::Reason;
use crate::resolve::Resolved;
use crate::rows::{Key, L4, Row};

/// The verdict of an endpoint's policy on a packet, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The decision.
    pub decision: Decision,
    /// The authentication that the packet needs to pass, as in [`Row::auth`].
    pub auth: u8,
    /// The row that decides, with its reason; `None` if no row matches.
    pub row: Option<(Key, Row, Reason)>,
    /// Whether policy is enforced in this direction.
    pub enforced: bool,
    /// The number of rules that select the endpoint in this direction.
    pub rules: usize,
    /// Revision of the policies.
    pub revision: u64,
}

impl Resolved {
    /// Returns the datapath's verdict on a packet. `peer` is the identity of the other end, `port` the destination
    /// port, for ICMP the type.
    pub fn lookup(&self, direction: Direction, peer: u32, protocol: u8, port: u16) -> Verdict {
        lookup(&self.rows, direction, peer, protocol, port)
    }

    /// Returns the verdict with its reason; see [`lookup`](Self::lookup).
    pub fn explain(&self, direction: Direction, peer: u32, protocol: u8, port: u16) -> Explanation {
        let Verdict { decision, row, auth } = self.lookup(direction, peer, protocol, port);
        Explanation {
            decision,
            auth,
            row: row.map(|(key, row)| (key, row, self.reason(row))),
            enforced: self.enforced(direction),
            rules: self.rules(direction),
            revision: self.revision,
        }
    }
}

/// Formats one line: `allowed by cnp/shop/web spec.ingress[0] (selector ...), row 20128 TCP/80`.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((key, row, reason)) = &self.row else {
            return match self.rules {
                0 => f.write_str("denied: no rule selects the endpoint"),
                1 => f.write_str("denied: the one rule that selects the endpoint does not match"),
                rules => write!(f, "denied: none of the {rules} rules that select the endpoint matches"),
            };
        };
        let verb = if self.decision == Decision::Allow { "allowed" } else { "denied" };
        match reason {
            Reason::NotEnforced => write!(f, "{verb}: policy is not enforced in this direction")?,
            Reason::NoDefaultDeny => write!(f, "{verb}: no selecting rule denies by default")?,
            Reason::DefaultDeny => write!(f, "{verb}: passed on, and no rule of the next tiers matches")?,
            Reason::Localhost => write!(f, "{verb}: the node reaches its own endpoints")?,
            Reason::Rules(matches) => {
                write!(f, "{verb} by ")?;
                for (index, found) in matches.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{} {}", found.rule.resource, found.rule.path)?;
                    match key.identity == 0 {
                        true => write!(f, " (any peer)")?,
                        false => write!(f, " (selector {})", found.selector)?,
                    }
                }
            }
        }
        match key.identity {
            0 => write!(f, "; row any {}", key.l4)?,
            identity => write!(f, "; row {identity} {}", key.l4)?,
        }
        if row.proxy_port > 0 {
            write!(f, ", through proxy port {}", row.proxy_port)?;
        }
        let kind = self.auth & !Row::EXPLICIT_AUTH;
        match Authentication::ALL.into_iter().find(|mode| mode.auth_type() == kind && kind > 0) {
            Some(mode) => write!(f, ", authentication {}", mode.mode()),
            None => Ok(()),
        }
    }
}

/// Formats `ANY`, `TCP`, `TCP/80`, `TCP/1024-2047`; protocols without a name by number.
impl fmt::Display for L4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bits, self.protocol) {
            (0, _) => return f.write_str("ANY"),
            (_, 1) => f.write_str("ICMP")?,
            (_, 6) => f.write_str("TCP")?,
            (_, 17) => f.write_str("UDP")?,
            (_, 58) => f.write_str("ICMPv6")?,
            (_, 132) => f.write_str("SCTP")?,
            (_, number) => write!(f, "{number}")?,
        }
        match self.bits {
            0..=8 => Ok(()),
            L4::EXACT => write!(f, "/{}", self.port),
            bits => write!(f, "/{}-{}", self.port, self.port | u16::MAX >> (bits - 8)),
        }
    }
}

#[cfg(test)]
mod tests {
    use labels::{Label, LabelArray};
    use serde_json::json;

    use super::*;
    use crate::{Engine, Kind, NamedPorts, Settings, parse};

    fn pod(app: &str) -> LabelArray {
        let texts = [
            &format!("k8s:app={app}"),
            "k8s:io.kubernetes.pod.namespace=shop",
            "k8s:io.cilium.k8s.policy.cluster=default",
        ];
        texts.into_iter().map(Label::parse).collect()
    }

    #[test]
    fn an_explanation_names_rule_selector_and_row() {
        let mut engine = Engine::new(Settings::default());
        for (id, app) in [(1000, "web"), (1001, "client"), (1002, "other")] {
            engine.add_identity(id, pod(app), NamedPorts::default());
        }
        let ports = |first: &str, last: u16| json!([{"ports": [{"port": first, "endPort": last, "protocol": "TCP"}]}]);
        let manifest = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "endpointSelector": {"matchLabels": {"app": "web"}},
                "ingress": [
                    {"fromEndpoints": [{"matchLabels": {"app": "client"}}], "toPorts": ports("80", 81)},
                    {"fromEndpoints": [{"matchLabels": {"app": "client"}}], "toPorts": ports("80", 80)},
                    {"fromEndpoints": [{"matchLabels": {"k8s:app": "client"}}], "toPorts": ports("80", 80)},
                ],
                "ingressDeny": [{"toPorts": ports("6000", 6063)}],
            },
        });
        let resolve = |engine: &Engine, id| engine.resolve(id, &NamedPorts::default(), 100).unwrap();
        let said =
            |resolved: &Resolved, peer, port| resolved.explain(Direction::Ingress, peer, 6, port).to_string();
        let free = resolve(&engine, 1000);
        assert_eq!(said(&free, 1002, 80), "allowed: policy is not enforced in this direction; row any ANY");

        engine.set(parse(Kind::CiliumNetworkPolicy, &manifest, engine.settings()).unwrap());
        let web = resolve(&engine, 1000);
        let found = said(&web, 1001, 81);
        let rule = "allowed by cnp/shop/web spec.ingress[0] (selector &LabelSelector{MatchLabels:";
        assert!(found.starts_with(rule) && found.ends_with("); row 1001 TCP/80-81"), "{found}");
        // Two rules share one row, which is longer than the row of the first rule's range.
        let found = said(&web, 1001, 80);
        assert!(found.contains("ingress[1]") && found.contains(", cnp/shop/web spec.ingress[2]"), "{found}");
        assert!(!found.contains("spec.ingress[0]"), "{found}");
        assert!(
            said(&web, 1001, 6001)
                .starts_with("denied by cnp/shop/web spec.ingressDeny[0] (any peer); row any")
        );
        assert!(said(&web, 1001, 6001).ends_with("TCP/6000-6015"), "{}", said(&web, 1001, 6001));
        assert_eq!(said(&web, 1, 79), "allowed: the node reaches its own endpoints; row 1 ANY");
        assert_eq!(said(&web, 1002, 80), "denied: none of the 4 rules that select the endpoint matches");
    }
}
