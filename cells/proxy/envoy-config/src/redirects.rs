//! Which configuration redirects a service.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadbalancer::{ProxyRedirect, ServiceName};

/// A service with the port that a configuration redirects it to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) service: ServiceName,
    /// The redirected ports; empty for all.
    pub(crate) ports: Vec<u16>,
    pub(crate) proxy_port: u16,
}

/// The redirects of all services, and the conflicts by configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) services: BTreeMap<ServiceName, Vec<ProxyRedirect>>,
    pub(crate) conflicts: BTreeMap<Arc<str>, String>,
}

/// A configuration with the ports that it redirects.
type Owner<'c> = (&'c Arc<str>, &'c [u16]);

/// Assigns services to configurations, which come in the order of precedence: the oldest first. A redirect of ports that
/// an earlier one has is left out; it takes effect when that one ends.
pub(crate) fn assign<'c>(configs: impl Iterator<Item = (&'c Arc<str>, &'c [Redirect])>) -> Assigned {
    let mut assigned = Assigned::default();
    let mut owners: BTreeMap<&ServiceName, Vec<Owner<'_>>> = BTreeMap::new();
    for (config, redirects) in configs {
        for redirect in redirects {
            let taken = owners.entry(&redirect.service).or_default();
            let overlaps = |ports: &[u16]| {
                let is_all = ports.is_empty() || redirect.ports.is_empty();
                is_all || ports.iter().any(|port| redirect.ports.contains(port))
            };
            if let Some((owner, _)) = taken.iter().find(|(_, ports)| overlaps(ports)) {
                let conflict = format!(
                    "service {} is redirected by {owner}, which is older: remove it from one of both",
                    redirect.service
                );
                assigned.conflicts.entry(config.clone()).or_insert(conflict);
                continue;
            }
            taken.push((config, &redirect.ports));
            let redirects = assigned.services.entry(redirect.service.clone()).or_default();
            redirects.push(ProxyRedirect { proxy_port: redirect.proxy_port, ports: redirect.ports.clone() });
        }
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(ports: &[u16], proxy_port: u16) -> Redirect {
        Redirect { service: ServiceName::new("web", "store"), ports: ports.to_vec(), proxy_port }
    }

    #[test]
    fn the_oldest_wins_and_its_end_restores_the_next() {
        let (a, b, c) = (Arc::from("web/a"), Arc::from("web/b"), Arc::from("web/c"));
        let (of_a, of_b, of_c) = ([redirect(&[80], 1)], [redirect(&[], 2)], [redirect(&[443], 3)]);
        let all = assign([(&a, &of_a[..]), (&b, &of_b[..]), (&c, &of_c[..])].into_iter());
        let of = |proxy_port, ports: &[u16]| ProxyRedirect { proxy_port, ports: ports.to_vec() };
        let store = ServiceName::new("web", "store");
        assert_eq!(all.services[&store], [of(1, &[80]), of(3, &[443])]);
        assert_eq!(all.conflicts.keys().map(|name| &**name).collect::<Vec<_>>(), ["web/b"]);
        assert!(all.conflicts[&b].contains("web/a"), "{all:?}");
        let rest = assign([(&b, &of_b[..]), (&c, &of_c[..])].into_iter());
        assert_eq!(rest.services[&store], [of(2, &[])]);
        assert_eq!(rest.conflicts.len(), 1);
    }
}
