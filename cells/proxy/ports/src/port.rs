//! The row of table `proxy-ports`, and the choice of a port.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use policy_engine::{Direction, Parser, Redirect};
use serde::{Serialize, Serializer};
use statedb::{Query, TableDisplay, TableSpec};
use tokio::time::Instant;

/// The name of the DNS proxy, as in Cilium.
pub const DNS_PROXY: &str = "cilium-dns-egress";

/// The state of a proxy's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// Of the previous run; no proxy has registered for it yet.
    Restored,
    /// The proxy is registered and does not listen yet.
    Reserved,
    /// The proxy listens; rules that lead packets to it are not in place yet.
    Listening,
    /// Rules lead packets to it: redirects use it.
    Ready,
    /// The proxy is gone; the port is kept for its return.
    Withdrawn {
        /// Since when.
        since: Instant,
    },
}

impl PortState {
    fn text(self) -> &'static str {
        match self {
            PortState::Restored => "restored",
            PortState::Reserved => "reserved",
            PortState::Listening => "listening",
            PortState::Ready => "ready",
            PortState::Withdrawn { .. } => "withdrawn",
        }
    }

    /// Whether the proxy listens at its port.
    #[must_use]
    pub fn is_listening(self) -> bool {
        matches!(self, PortState::Listening | PortState::Ready)
    }
}

impl Serialize for PortState {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.text())
    }
}

/// A proxy and its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ProxyPort {
    /// The name, as in Cilium: `cilium-dns-egress`, `cilium-http-ingress`, or that of a listener.
    pub name: Arc<str>,
    /// The kind of proxy.
    #[serde(serialize_with = "parser_name")]
    pub parser: Parser,
    /// Whether it takes traffic to endpoints.
    pub ingress: bool,
    /// The port; 0 while there is none.
    pub port: u16,
    /// The state.
    pub state: PortState,
    /// The number of redirects that lead to it.
    pub references: usize,
    /// Ports that it had before in this run: connections to them may remain, so they are given out last.
    pub former: Vec<u16>,
}

fn parser_name<S: Serializer>(parser: &Parser, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(parser.name())
}

impl ProxyPort {
    /// Queries the port of a proxy.
    #[must_use]
    pub fn by_name(name: &str) -> Query<ProxyPort> {
        Query::primary(name)
    }
}

impl TableSpec for ProxyPort {
    const NAME: &'static str = "proxy-ports";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }
}

impl TableDisplay for ProxyPort {
    fn columns() -> &'static [&'static str] {
        &["Name", "Type", "Ingress", "Port", "State", "References"]
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.name.to_string(),
            self.parser.name().to_owned(),
            self.ingress.to_string(),
            self.port.to_string(),
            self.state.text().to_owned(),
            self.references.to_string(),
        ]
    }
}

/// Returns the name of the proxy that takes a redirect; `None` if there is no such kind in its direction.
#[must_use]
pub fn proxy_name(redirect: &Redirect) -> Option<Arc<str>> {
    let name: Arc<str> = match (redirect.parser, redirect.direction) {
        (Parser::Custom, Direction::Egress) => redirect.listener.clone(),
        (Parser::Dns, Direction::Egress) => DNS_PROXY.into(),
        (Parser::Http, Direction::Egress) => "cilium-http-egress".into(),
        (Parser::Http, Direction::Ingress) => "cilium-http-ingress".into(),
        (Parser::Tls, Direction::Egress) => "cilium-tls-egress".into(),
        (Parser::Tls, Direction::Ingress) => "cilium-tls-ingress".into(),
        (Parser::Custom | Parser::Dns, Direction::Ingress) => return None,
    };
    (!name.is_empty()).then_some(name)
}

/// Returns a port of the range that is neither open nor of another proxy, beginning at `start`; one that proxies had
/// before only if there is no other.
pub(crate) fn choose(
    rows: &[&ProxyPort],
    range: &RangeInclusive<u16>,
    open: &BTreeSet<u16>,
    start: u64,
) -> Option<u16> {
    let taken: BTreeSet<u16> = rows.iter().map(|row| row.port).collect();
    let former: BTreeSet<u16> = rows.iter().flat_map(|row| row.former.iter().copied()).collect();
    let count = u64::from(*range.end() - *range.start()) + 1;
    let candidate = |step: u64| {
        // Below `count`, which is at most 65536, so that the sum is a port of the range.
        range.start() + u16::try_from((start % count + step) % count).unwrap_or_default()
    };
    let free = || (0..count).map(candidate).filter(|port| !taken.contains(port) && !open.contains(port));
    free().find(|port| !former.contains(port)).or_else(|| free().next())
}
