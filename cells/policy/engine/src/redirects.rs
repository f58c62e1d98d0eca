//! The redirects of an endpoint with the rules that proxies enforce, from its filters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use labels::NamedPorts;

use crate::engine::Engine;
use crate::filters::{Filter, Filters};
use crate::model::{Action, Direction, Port, PortSpec};
use crate::proxy::{ProxyRules, Redirect};

/// The redirects of an endpoint, each with its rules: the text of the peers' selector, and what the proxy lets pass.
pub type Redirects = BTreeMap<Redirect, Vec<(Arc<str>, Arc<ProxyRules>)>>;

impl Filters {
    /// Whether there are redirects of ports that peers name: they differ when peers come or change.
    pub fn redirects_depend_on_peers(&self) -> bool {
        let is_named =
            |filter: &&Filter| matches!(filter.ports, Some(PortSpec { port: Port::Named { .. }, .. }));
        self.egress
            .iter()
            .filter(is_named)
            .any(|filter| filter.peers.iter().any(|peer| peer.effect.proxy.is_some()))
    }
}

impl Engine {
    /// Returns the redirects of an endpoint with these filters and named ports, whether their proxies have ports or not.
    /// A name on egress stands for each number that it has at any peer.
    pub fn redirects(&self, filters: &Filters, ports: &NamedPorts) -> Redirects {
        let mut redirects = Redirects::new();
        for (direction, filters) in
            [(Direction::Ingress, &filters.ingress), (Direction::Egress, &filters.egress)]
        {
            for filter in filters {
                self.add_redirects(direction, filter, ports, &mut redirects);
            }
        }
        redirects
    }

    fn add_redirects(
        &self,
        direction: Direction,
        filter: &Filter,
        ports: &NamedPorts,
        redirects: &mut Redirects,
    ) {
        let Some(PortSpec { protocol, port }) = &filter.ports else { return };
        let peers = filter.peers.iter().filter(|peer| peer.effect.action == Action::Allow);
        let rules = peers.filter_map(|peer| {
            let rules = peer.effect.proxy.as_ref()?;
            Some((rules.parser()?, &peer.selector, rules))
        });
        let mut rules = rules.peekable();
        if rules.peek().is_none() {
            return;
        }
        let numbers: BTreeSet<u16> = match (port, direction) {
            (Port::All, _) => BTreeSet::from([0]),
            (Port::Range(first, _), _) => BTreeSet::from([*first]),
            (Port::Named { name, .. }, Direction::Ingress) => {
                ports.port(name, *protocol).into_iter().collect()
            }
            (Port::Named { name, .. }, Direction::Egress) => self.numbers(name, *protocol),
        };
        for (parser, selector, rules) in rules {
            let listener =
                rules.listener.as_ref().map_or_else(|| "".into(), |listener| listener.name.clone());
            for port in &numbers {
                let (protocol, port, listener) = (*protocol, *port, Arc::clone(&listener));
                let redirect = Redirect { direction, protocol, port, parser, listener };
                redirects.entry(redirect).or_default().push((selector.into(), rules.clone()));
            }
        }
    }

    /// Returns the numbers of a named port at all identities.
    fn numbers(&self, name: &str, protocol: u8) -> BTreeSet<u16> {
        self.identities.ports().filter_map(|ports| ports.port(name, protocol)).collect()
    }
}
