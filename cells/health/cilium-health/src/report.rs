//! Nodes that cannot be reached, in words: which path, which check, and the likely cause.

use std::fmt;

use crate::row::{Failure, NodeHealth, Path, Reachability, primary};

/// A node that cannot be reached, or only in part.
pub(crate) struct Unreachable<'a>(pub(crate) &'a NodeHealth);

impl Unreachable<'_> {
    /// Whether it is one.
    pub(crate) fn is(node: &NodeHealth) -> bool {
        node.host.iter().chain(&node.endpoint).any(|path| path.reachability() == Reachability::Unreachable)
    }

    /// Returns the likely cause.
    fn cause(&self) -> &'static str {
        let node = self.0;
        let host = node.host.iter().find(|path| path.reachability() == Reachability::Unreachable);
        let Some(path) = host else {
            return match primary(&node.host) {
                Some(Reachability::Reachable) => {
                    "the node itself answers: check the tunnel, or the routes, to its pods"
                }
                _ => "the node's own addresses have no result yet",
            };
        };
        match (&path.icmp, &path.http) {
            (Some(Ok(_)) | None, Some(Err(Failure::Refused(_)))) => {
                "no agent listens there: it does not run, has health checking off, or another cluster-health-port"
            }
            (Some(Ok(_)), Some(Err(Failure::TimedOut))) => "a firewall drops TCP to the health port",
            (Some(Ok(_)), Some(Err(Failure::Other(_)))) => "another program answers on the health port",
            (Some(Err(_)), Some(Ok(_))) => "a firewall drops ICMP",
            _ => "the node is down, or no route leads to it, or a firewall drops all its packets",
        }
    }
}

/// `node7: node 192.0.2.7: ICMP Connection timed out, HTTP Connection timed out (cause)`.
impl fmt::Display for Unreachable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.0.name)?;
        let paths = |kind: &'static str, paths: &[Path], f: &mut fmt::Formatter<'_>| {
            for path in paths.iter().filter(|path| path.reachability() == Reachability::Unreachable) {
                write!(f, " {kind} {}", path.ip)?;
                for (name, check) in [("ICMP", &path.icmp), ("HTTP", &path.http)] {
                    if let Some(Err(failure)) = check {
                        write!(f, " {name} {failure},")?;
                    }
                }
            }
            Ok(())
        };
        paths("node", &self.0.host, f)?;
        paths("endpoint", &self.0.endpoint, f)?;
        write!(f, " likely cause: {}", self.cause())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::row::CheckResult;

    fn node(icmp: Option<CheckResult>, http: Option<CheckResult>) -> NodeHealth {
        let path = Path { ip: [192, 0, 2, 7].into(), last_probed: None, icmp, http };
        NodeHealth { name: "node7".into(), local: false, host: vec![path], endpoint: vec![] }
    }

    fn failed(failure: Failure) -> Option<CheckResult> {
        Some(Err(failure))
    }

    #[test]
    fn the_cause_follows_from_what_works() {
        let ok = || Some(Ok(Duration::from_millis(1)));
        let cause = |icmp, http| Unreachable(&node(icmp, http)).cause();
        let refused = || failed(Failure::Refused("refused".into()));
        assert!(cause(ok(), refused()).starts_with("no agent listens there"));
        assert!(cause(None, refused()).starts_with("no agent listens there"));
        assert_eq!(cause(ok(), failed(Failure::TimedOut)), "a firewall drops TCP to the health port");
        assert_eq!(cause(failed(Failure::TimedOut), ok()), "a firewall drops ICMP");
        assert!(cause(failed(Failure::TimedOut), failed(Failure::TimedOut)).starts_with("the node is down"));
        assert_eq!(
            cause(ok(), failed(Failure::Other("unhealthy: status 404".into()))),
            "another program answers on the health port"
        );
        let mut endpoint = node(ok(), ok());
        let path = Path { http: failed(Failure::TimedOut), ..endpoint.host[0].clone() };
        endpoint.endpoint.push(path);
        assert!(Unreachable::is(&endpoint));
        assert_eq!(
            Unreachable(&endpoint).to_string(),
            "node7: endpoint 192.0.2.7 HTTP Connection timed out, likely cause: the node itself answers: \
             check the tunnel, or the routes, to its pods"
        );
    }

    #[test]
    fn a_reachable_or_unknown_node_is_none() {
        let ok = || Some(Ok(Duration::from_millis(1)));
        assert!(!Unreachable::is(&node(None, None)));
        assert!(!Unreachable::is(&node(ok(), ok())));
        assert!(!Unreachable::is(&node(None, ok())));
    }
}
