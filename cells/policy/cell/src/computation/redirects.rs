//! The redirects that endpoints need, as rows of the table that proxies read.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy_engine::{ProxyPorts as _, Redirect, Redirects};
use proxy_ports::{EndpointRedirect, PeerRules, ReadyPorts, proxy_name};

/// The rows by endpoint and redirect.
pub(crate) type Wanted = BTreeMap<(u16, Redirect), EndpointRedirect>;

/// Protocols of which packets can be redirected.
const PROTOCOLS: [u8; 2] = [6, 17];

/// Adds the redirects of an endpoint whose proxies have a port; they replace those of the same traffic.
pub(crate) fn add(wanted: &mut Wanted, endpoint: u16, redirects: &Redirects, ready: &ReadyPorts) {
    for (redirect, rules) in redirects.iter().filter(|(redirect, _)| PROTOCOLS.contains(&redirect.protocol)) {
        let Some((proxy, port)) = proxy_name(redirect).zip(ready.port(redirect)) else { continue };
        let rules = rules.iter().map(|(selector, rules)| {
            let (selector, rules) = (Arc::clone(selector), Arc::clone(rules));
            PeerRules { selector, rules }
        });
        let row = EndpointRedirect::new(endpoint, redirect.clone(), proxy, port, rules.collect());
        wanted.insert((endpoint, redirect.clone()), row);
    }
}
