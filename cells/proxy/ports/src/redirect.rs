//! The row of table `proxy-redirects`.

use std::sync::Arc;

use policy_engine::{ProxyRules, Redirect};
use serde::{Serialize, Serializer};
use statedb::{Prefix, Query, TableDisplay, TableSpec};

/// A redirect of an endpoint's traffic to a proxy. It is in the table before the endpoint's policy map leads packets to
/// the proxy, until after it no longer does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct EndpointRedirect {
    /// The endpoint.
    pub endpoint: u16,
    /// Its id, as in Cilium: `<endpoint>:egress:UDP:53:`.
    pub id: Arc<str>,
    /// The traffic.
    #[serde(serialize_with = "redirect_text")]
    pub redirect: Redirect,
    /// The proxy.
    pub proxy: Arc<str>,
    /// The proxy's port.
    pub port: u16,
    /// The rules that the proxy enforces, by peers.
    #[serde(skip)]
    pub rules: Arc<[PeerRules]>,
}

/// The rules for peers of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRules {
    /// The selector's text; its identities are in table `selectors`.
    pub selector: Arc<str>,
    /// The requests that the proxy allows.
    pub rules: Arc<ProxyRules>,
}

fn redirect_text<S: Serializer>(redirect: &Redirect, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(redirect)
}

impl EndpointRedirect {
    /// Returns a redirect.
    #[must_use]
    pub fn new(
        endpoint: u16,
        redirect: Redirect,
        proxy: Arc<str>,
        port: u16,
        rules: Arc<[PeerRules]>,
    ) -> Self {
        Self { endpoint, id: Self::id_of(endpoint, &redirect), redirect, proxy, port, rules }
    }

    fn id_of(endpoint: u16, redirect: &Redirect) -> Arc<str> {
        format!("{endpoint}:{redirect}").into()
    }

    /// Queries a redirect of an endpoint.
    #[must_use]
    pub fn by_redirect(endpoint: u16, redirect: &Redirect) -> Query<EndpointRedirect> {
        Query::primary((endpoint, &*Self::id_of(endpoint, redirect)))
    }

    /// Queries all redirects of an endpoint.
    #[must_use]
    pub fn of_endpoint(endpoint: u16) -> Prefix<EndpointRedirect> {
        Prefix::primary(&endpoint)
    }
}

impl TableSpec for EndpointRedirect {
    const NAME: &'static str = "proxy-redirects";
    const PRIMARY: &'static str = "id";
    type Key<'a> = (u16, &'a str);

    fn key(&self) -> (u16, &str) {
        (self.endpoint, &self.id)
    }
}

impl TableDisplay for EndpointRedirect {
    fn columns() -> &'static [&'static str] {
        &["ID", "Proxy", "Port"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.proxy.to_string(), self.port.to_string()]
    }
}
