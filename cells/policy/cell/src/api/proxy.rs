//! Rules of proxies and authentication in the REST API.

use std::collections::BTreeSet;

use policy_engine::{Authentication, DnsRule, HttpRule, L7Rules, ProxyRules, TlsContext};
use serde::Serialize;

/// The rules of a proxy, with fields in Cilium's order.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Proxy<'a> {
    #[serde(rename = "terminatingTLS", skip_serializing_if = "Option::is_none")]
    terminating_tls: Option<&'a TlsContext>,
    #[serde(rename = "originatingTLS", skip_serializing_if = "Option::is_none")]
    originating_tls: Option<&'a TlsContext>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_names: Option<&'a BTreeSet<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    listener: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    listener_priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<&'a BTreeSet<HttpRule>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<&'a BTreeSet<DnsRule>>,
}

impl<'a> Proxy<'a> {
    pub(crate) fn new(rules: &'a ProxyRules) -> Proxy<'a> {
        let (http, dns) = match &rules.l7 {
            L7Rules::None => (None, None),
            L7Rules::Http(rules) => (Some(rules), None),
            L7Rules::Dns(rules) => (None, Some(rules)),
        };
        let listener = rules.listener.as_ref();
        Proxy {
            terminating_tls: rules.terminating_tls.as_ref(),
            originating_tls: rules.originating_tls.as_ref(),
            server_names: (!rules.server_names.is_empty()).then_some(&rules.server_names),
            listener: listener.map(|listener| &*listener.name),
            listener_priority: listener.map(|listener| listener.priority).filter(|priority| *priority > 0),
            http,
            dns,
        }
    }
}

/// A mode of authentication.
#[derive(Serialize)]
pub(crate) struct Mode {
    mode: &'static str,
}

impl Mode {
    pub(crate) fn new(authentication: Authentication) -> Mode {
        Mode { mode: authentication.mode() }
    }
}
