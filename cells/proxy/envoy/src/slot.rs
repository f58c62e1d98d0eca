//! A proxy of Envoy that redirects lead to: when it gets a port and a listener, and when traffic.

use std::collections::BTreeSet;
use std::sync::Arc;

use policy_engine::Parser;
use proxy_ports::{PortState, Proxies, Proxy, ProxyPort, Registration};
use xds::Delivery;

/// The number of ports that are tried before the listener counts as refused, as in Cilium.
const MAX_TRIES: usize = 5;
/// Texts of refusals after which another port may do.
const BIND_ERRORS: [&str; 3] = ["cannot bind", "address already in use", "eaddrinuse"];

/// A kind of proxy, with Cilium's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProxyKind {
    pub(crate) name: &'static str,
    pub(crate) parser: Parser,
    pub(crate) is_ingress: bool,
}

/// The proxies that rules need. Those of listeners that rules name are made from Envoy configurations.
pub(crate) const PROXIES: [ProxyKind; 4] = [
    ProxyKind { name: "cilium-http-egress", parser: Parser::Http, is_ingress: false },
    ProxyKind { name: "cilium-http-ingress", parser: Parser::Http, is_ingress: true },
    ProxyKind { name: "cilium-tls-egress", parser: Parser::Tls, is_ingress: false },
    ProxyKind { name: "cilium-tls-ingress", parser: Parser::Tls, is_ingress: true },
];

/// The state of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// No rule needs it.
    Unused,
    /// Its listener waits for Envoy.
    Pending(u16),
    /// Its listener is in Envoy, or was in the previous run: redirects lead to its port.
    Announced(u16),
    /// It cannot be made.
    Failed(Arc<str>),
}

/// A proxy.
pub(crate) struct Slot {
    pub(crate) kind: ProxyKind,
    pub(crate) registration: Arc<Registration>,
    pub(crate) state: State,
    /// The version at which its listener was added.
    pub(crate) version: u64,
    /// Ports that Envoy was unable to bind.
    refused: BTreeSet<u16>,
}

impl Slot {
    /// Registers a proxy, in a constructor.
    pub(crate) fn new(kind: ProxyKind, proxies: &Proxies) -> Slot {
        let (name, parser, ingress) = (kind.name.into(), kind.parser, kind.is_ingress);
        let registration = Arc::new(proxies.register(Proxy { name, parser, ingress, fixed: None }));
        Slot { kind, registration, state: State::Unused, version: 0, refused: BTreeSet::new() }
    }

    /// Continues with the port of the previous run: Envoy, which has run meanwhile, still listens there. Returns whether
    /// there is one. Otherwise policy does not wait for the proxy.
    pub(crate) fn restore(&mut self, proxies: &Proxies) -> bool {
        let table = proxies.ports();
        let snapshot = table.snapshot();
        let row = table.get(&snapshot, ProxyPort::by_name(self.kind.name));
        let port = row.filter(|row| row.state == PortState::Restored && row.port != 0).map(|row| row.port);
        if let Some(port) = port
            && self.registration.listening(port).is_ok()
        {
            self.state = State::Announced(port);
            return true;
        }
        self.registration.withdraw();
        false
    }

    /// Returns the port of its listener.
    pub(crate) fn port(&self) -> Option<u16> {
        match self.state {
            State::Pending(port) | State::Announced(port) => Some(port),
            State::Unused | State::Failed(_) => None,
        }
    }

    /// Returns the name of its listener: another port is another listener, so that connections of the former drain.
    pub(crate) fn listener(&self) -> Option<String> {
        self.port().map(|port| format!("{}:{port}", self.kind.name))
    }

    /// Reserves a port for a proxy that rules need.
    pub(crate) fn reserve(&mut self) {
        self.state = match self.registration.reserve(&self.refused) {
            Ok(port) => State::Pending(port),
            Err(error) => State::Failed(error.to_string().into()),
        };
    }

    /// Withdraws a proxy that no rule needs; its port is kept for a while.
    pub(crate) fn release(&mut self) {
        self.registration.withdraw();
        self.refused.clear();
        self.state = State::Unused;
    }

    /// Tries a failed proxy again.
    pub(crate) fn retry(&mut self) {
        self.refused.clear();
        self.state = State::Unused;
    }

    /// Applies the progress of its listener. Returns whether the state has changed.
    pub(crate) fn apply(&mut self, delivery: &Delivery, has_policies: bool) -> bool {
        match (&self.state, delivery) {
            (State::Pending(port), Delivery::Done) if has_policies => {
                self.state = match self.registration.listening(*port) {
                    Ok(()) => State::Announced(*port),
                    Err(error) => State::Failed(error.to_string().into()),
                };
                true
            }
            (State::Pending(port) | State::Announced(port), Delivery::Refused(error)) => {
                self.refuse(*port, error);
                true
            }
            _ => false,
        }
    }

    fn refuse(&mut self, port: u16, error: &str) {
        // Redirects must not lead to a port at which something else may listen.
        self.registration.withdraw();
        self.refused.insert(port);
        let lower = error.to_ascii_lowercase();
        let is_bind_error = BIND_ERRORS.iter().any(|text| lower.contains(text));
        if is_bind_error && self.refused.len() < MAX_TRIES {
            self.reserve();
        } else {
            self.state = State::Failed(error.into());
        }
    }
}
