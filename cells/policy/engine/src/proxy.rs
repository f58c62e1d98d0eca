//! Rules that a proxy enforces: layer 7, TLS and listeners of `toPorts`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::model::Direction;

/// The kind of proxy that a redirect needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parser {
    /// TLS only: server names, termination, origination.
    Tls,
    /// HTTP requests.
    Http,
    /// DNS queries.
    Dns,
    /// A listener of an Envoy configuration.
    Custom,
}

impl Parser {
    /// Returns the name in the API and in names of proxy ports.
    pub fn name(self) -> &'static str {
        match self {
            Parser::Tls => "tls",
            Parser::Http => "http",
            Parser::Dns => "dns",
            Parser::Custom => "crd",
        }
    }

    /// Returns the priority among redirects of the same traffic; lower numbers take precedence.
    fn priority(self) -> u8 {
        match self {
            Parser::Http => 101,
            Parser::Tls => 116,
            Parser::Dns => 121,
            Parser::Custom => 126,
        }
    }
}

/// The rules for a proxy: what it lets pass, and how it handles TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ProxyRules {
    /// Rules on requests.
    pub l7: L7Rules,
    /// The listener that gets the traffic.
    pub listener: Option<Listener>,
    /// The certificate by which the proxy terminates TLS of clients.
    pub terminating_tls: Option<TlsContext>,
    /// The authorities that the proxy trusts when it originates TLS to servers.
    pub originating_tls: Option<TlsContext>,
    /// Names of TLS servers that clients may ask for; empty for any.
    pub server_names: BTreeSet<String>,
}

/// Rules on requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum L7Rules {
    /// None: every request passes.
    #[default]
    None,
    /// Requests that one of these matches pass.
    Http(BTreeSet<HttpRule>),
    /// Queries that one of these matches pass.
    Dns(BTreeSet<DnsRule>),
}

/// A rule on HTTP requests; empty texts match every request. Method, path and host are regular expressions (RE2) on
/// the whole value.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRule {
    /// The path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The method.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// The host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Headers: `Name: value`, or a name for its presence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Headers with an action on mismatch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub header_matches: Vec<HeaderMatch>,
}

/// A requirement on a header.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// The action on a mismatch: `LOG`, `ADD`, `DELETE`, `REPLACE`, or empty to deny the request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mismatch: String,
    /// Its name.
    pub name: String,
    /// The secret with the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretRef>,
    /// The value; empty for presence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// A rule on DNS queries: those for the name or a name of the pattern.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsRule {
    /// A name; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub match_name: String,
    /// A pattern with `*`; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub match_pattern: String,
}

/// A listener of an Envoy configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener {
    /// `<namespace>/<configuration>/<listener>`, the namespace empty for cluster-wide configurations.
    pub name: Arc<str>,
    /// Priority from 1 (highest) to 100; 0 is the lowest.
    pub priority: u8,
}

/// Certificates of a side of TLS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsContext {
    /// The secret.
    pub secret: SecretRef,
    /// Key of the trusted authorities in the secret; empty for the default.
    #[serde(rename = "trustedCA", skip_serializing_if = "String::is_empty")]
    pub trusted_ca: String,
    /// Key of the certificate in the secret; empty for the default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// Key of the private key in the secret; empty for the default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub private_key: String,
}

/// The name of a secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Its namespace: by default that of the policy, `default` of a policy of the whole cluster.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl L7Rules {
    /// Whether these are rules of DNS of which one allows every name.
    pub fn allow_every_query(&self) -> bool {
        matches!(self, L7Rules::Dns(rules) if rules.iter().any(|rule| rule.match_pattern == "*"))
    }

    /// Returns the rules with one that matches every request; none stay none.
    pub(crate) fn with_wildcard(mut self) -> L7Rules {
        match &mut self {
            L7Rules::None => {}
            L7Rules::Http(rules) => _ = rules.insert(HttpRule::default()),
            L7Rules::Dns(rules) => {
                rules.insert(DnsRule { match_pattern: "*".to_owned(), ..DnsRule::default() });
            }
        }
        self
    }

    fn merge(self, other: L7Rules) -> Result<L7Rules, &'static str> {
        match (self, other) {
            (L7Rules::None, rules) | (rules, L7Rules::None) => Ok(rules.with_wildcard()),
            (L7Rules::Http(mut rules), L7Rules::Http(more)) => {
                rules.extend(more);
                Ok(L7Rules::Http(rules))
            }
            (L7Rules::Dns(mut rules), L7Rules::Dns(more)) => {
                rules.extend(more);
                Ok(L7Rules::Dns(rules))
            }
            _ => Err("rules of DNS and of HTTP"),
        }
    }
}

impl ProxyRules {
    /// Returns the kind of proxy that enforces the rules; `None` if none is needed.
    pub fn parser(&self) -> Option<Parser> {
        let tls = self.terminating_tls.is_some() || self.originating_tls.is_some();
        match (&self.listener, &self.l7) {
            (Some(_), _) => Some(Parser::Custom),
            (None, L7Rules::Http(_)) => Some(Parser::Http),
            (None, L7Rules::Dns(_)) => Some(Parser::Dns),
            (None, L7Rules::None) if tls || !self.server_names.is_empty() => Some(Parser::Tls),
            (None, L7Rules::None) => None,
        }
    }

    /// Iterates over the secrets that the rules name; some repeatedly.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretRef> {
        let contexts = [&self.terminating_tls, &self.originating_tls].into_iter().flatten();
        let rules = if let L7Rules::Http(rules) = &self.l7 { Some(rules) } else { None };
        let headers = rules.into_iter().flatten().flat_map(|rule| &rule.header_matches);
        contexts.map(|context| &context.secret).chain(headers.filter_map(|header| header.secret.as_ref()))
    }

    /// Returns the priority among redirects of the same traffic, 1 to 126; lower numbers take precedence.
    pub fn priority(&self) -> u8 {
        match (&self.listener, self.parser()) {
            (Some(listener), _) if listener.priority > 0 => listener.priority,
            (_, parser) => parser.map_or(0, Parser::priority),
        }
    }

    /// Returns the rules for traffic that `rules` or `other` allow; an allow without a proxy has no rules. The error is
    /// the reason why both cannot be in force for the same peers and ports.
    pub(crate) fn merge(
        rules: &mut Option<Arc<ProxyRules>>,
        other: Option<&Arc<ProxyRules>>,
    ) -> Result<(), &'static str> {
        if rules.as_ref() == other {
            return Ok(());
        }
        let plain = Arc::default();
        let (a, b) = (rules.as_ref().unwrap_or(&plain), other.unwrap_or(&plain));
        let merged = ProxyRules {
            l7: a.l7.clone().merge(b.l7.clone())?,
            listener: merge_listeners(a.listener.as_ref(), b.listener.as_ref())?,
            terminating_tls: merge_tls(a.terminating_tls.as_ref(), b.terminating_tls.as_ref())?,
            originating_tls: merge_tls(a.originating_tls.as_ref(), b.originating_tls.as_ref())?,
            // Names that one rule requires are required of all traffic, as in Cilium: a proxy cannot enforce the other
            // rule on connections without a name.
            server_names: &a.server_names | &b.server_names,
        };
        match (a.parser(), b.parser()) {
            (Some(Parser::Custom), Some(other)) | (Some(other), Some(Parser::Custom))
                if other != Parser::Custom =>
            {
                return Err("a listener and rules of another proxy");
            }
            (Some(Parser::Dns), Some(other)) | (Some(other), Some(Parser::Dns)) if other != Parser::Dns => {
                return Err("rules of DNS and of another proxy");
            }
            _ => {}
        }
        if !merged.server_names.is_empty() && merged.l7 != L7Rules::None && merged.terminating_tls.is_none() {
            return Err("names of TLS servers, and rules of HTTP without termination of TLS");
        }
        *rules = Some(Arc::new(merged));
        Ok(())
    }
}

fn merge_listeners(a: Option<&Listener>, b: Option<&Listener>) -> Result<Option<Listener>, &'static str> {
    let rank = |listener: &Listener| if listener.priority == 0 { u8::MAX } else { listener.priority };
    match (a, b) {
        (Some(a), Some(b)) if a.name == b.name => {
            let first = std::cmp::min_by_key(a, b, |listener| rank(listener));
            Ok(Some(first.clone()))
        }
        (Some(a), Some(b)) if rank(a) == rank(b) => Err("different listeners of one priority"),
        (Some(a), Some(b)) => Ok(Some(std::cmp::min_by_key(a, b, |listener| rank(listener)).clone())),
        (a, b) => Ok(a.or(b).cloned()),
    }
}

fn merge_tls(a: Option<&TlsContext>, b: Option<&TlsContext>) -> Result<Option<TlsContext>, &'static str> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err("different TLS contexts"),
        (a, b) => Ok(a.or(b).cloned()),
    }
}

/// A redirect of an endpoint's traffic to a proxy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Redirect {
    /// The direction.
    pub direction: Direction,
    /// The protocol.
    pub protocol: u8,
    /// The port; of a range the first one.
    pub port: u16,
    /// The kind of proxy.
    pub parser: Parser,
    /// The name of the listener; empty for the proxy's own.
    pub listener: Arc<str>,
}

/// Formats the id as in Cilium, without the endpoint: `egress:TCP:80:`.
impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        write!(f, "{direction}:")?;
        match self.protocol {
            6 => f.write_str("TCP")?,
            17 => f.write_str("UDP")?,
            132 => f.write_str("SCTP")?,
            number => write!(f, "{number}")?,
        }
        write!(f, ":{}:{}", self.port, self.listener)
    }
}

/// The ports of proxies, which the owner of the proxies implements. A redirect without a port cannot be made: its
/// traffic is not allowed.
pub trait ProxyPorts: fmt::Debug + Send + Sync {
    /// Returns the proxy's port for a redirect.
    fn port(&self, redirect: &Redirect) -> Option<u16>;
}

/// Redirects with their ports; the empty map makes none.
impl ProxyPorts for BTreeMap<Redirect, u16> {
    fn port(&self, redirect: &Redirect) -> Option<u16> {
        self.get(redirect).copied()
    }
}
