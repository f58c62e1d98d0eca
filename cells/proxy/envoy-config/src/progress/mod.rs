//! The way of a configuration into Envoy: which of its resources are published when, and when its services are redirected.
//!
//! Clusters come before the listeners that refer to them, listeners before rules that lead packets to their ports, rules
//! before redirects of services. Removal takes the opposite order: redirects end before the listeners
//! that they lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use envoy_api::Types;
use envoy_proxy::{Delivery, Kind, Value};
use loadbalancer::ServiceName;
use proxy_ports::Registration;
use tokio::time::Instant;

use crate::parse::{Parsed, Settings};
use crate::redirects::Redirect;

/// Resources of one configuration, encoded.
pub(crate) type Set = BTreeMap<(Kind, Arc<str>), Value>;

/// Texts of refusals after which another port may do.
const BIND_ERRORS: [&str; 3] = ["cannot bind", "address already in use", "eaddrinuse"];
/// The number of ports that are tried before a listener counts as refused.
const MAX_PORTS: usize = 3;
/// The longest time for which listeners are kept for services that are still redirected in the kernel.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// The step that a configuration is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// All but listeners and routes are published, Envoy has not answered for the clusters yet.
    Clusters,
    /// All is published, Envoy has not answered for the listeners yet.
    Listeners,
    /// Envoy listens; rules that lead packets there are not in place yet.
    Rules,
    /// Services are redirected; what was before is still published until the kernel has followed.
    Draining,
    /// Nothing but what is wanted is published.
    Done,
    /// Envoy refuses it: what was accepted before is published.
    Failed(String),
}

/// The port of a listener.
pub(crate) struct Port {
    registration: Registration,
    port: u16,
    refused: BTreeSet<u16>,
}

/// A configuration on its way.
pub(crate) struct Progress {
    pub(crate) parsed: Arc<Parsed>,
    ports: BTreeMap<Arc<str>, Port>,
    wanted: Arc<Set>,
    accepted: Arc<Set>,
    /// Whether the accepted resources are those of the previous run: Envoy has them if it has run on.
    is_assumed: bool,
    pub(crate) phase: Phase,
    pub(crate) since: Instant,
    /// The versions at which the changed resources were published; unset before.
    versions: BTreeMap<Kind, u64>,
    /// The redirects in force.
    pub(crate) redirects: Vec<Redirect>,
    /// The services of these redirects, and those that were redirected before.
    touched: BTreeSet<ServiceName>,
    /// Whether the redirects have been written to the services since the phase began.
    is_written: bool,
    /// Whether it is to be removed.
    is_leaving: bool,
}

/// The world that a step depends on.
pub(crate) trait World {
    /// Registers the proxy of a listener.
    fn register(&self, name: &Arc<str>) -> Registration;
    /// Returns the port of a listener in the previous run, while nothing else has it.
    fn restored(&self, name: &str) -> Option<u16>;
    /// Whether rules lead packets to the port of a listener.
    fn is_ready(&self, name: &str) -> bool;
    /// Returns the progress of a resource.
    fn delivery(&self, kind: Kind, name: &str, version: u64) -> Delivery;
    /// Whether a refusal is about a resource of another configuration or source.
    fn is_about_other(&self, kind: Kind, text: &str, own: &Set) -> bool;
    /// Whether the kernel has the redirects of these services.
    fn is_reconciled(&self, services: &BTreeSet<ServiceName>) -> bool;
    /// Returns what listeners are completed with.
    fn settings(&self) -> &Settings;
    /// Returns the types of messages.
    fn types(&self) -> &Types;
}

/// The answer of Envoy for several resources.
enum Answer {
    Pending,
    Accepted,
    Refused(String),
}

impl Progress {
    /// Begins with a configuration. With `restores`, listeners that had a port in the previous run count as listening.
    pub(crate) fn begin(parsed: Arc<Parsed>, restores: bool, world: &dyn World) -> Progress {
        let mut progress = Progress {
            parsed: parsed.clone(),
            ports: BTreeMap::new(),
            wanted: Arc::default(),
            accepted: Arc::default(),
            is_assumed: false,
            phase: Phase::Done,
            since: Instant::now(),
            versions: BTreeMap::new(),
            redirects: Vec::new(),
            touched: BTreeSet::new(),
            is_written: false,
            is_leaving: false,
        };
        let known = |(name, _): (&Arc<str>, _)| world.restored(name).is_some();
        let needs = || parsed.listeners.iter().filter(|(_, listener)| listener.needs_port());
        let restores = restores && needs().next().is_some() && needs().all(known);
        progress.update(parsed.clone(), world);
        if restores && !matches!(progress.phase, Phase::Failed(_)) && progress.announce().is_ok() {
            progress.accepted = progress.wanted.clone();
            progress.is_assumed = true;
            progress.redirect(progress.wanted_redirects());
        }
        progress
    }

    /// Goes on with a changed object.
    pub(crate) fn update(&mut self, parsed: Arc<Parsed>, world: &dyn World) {
        self.parsed = parsed;
        self.is_leaving = false;
        self.begin_again(world);
    }

    /// Begins to remove the configuration.
    pub(crate) fn leave(&mut self) {
        if !self.is_leaving {
            self.is_leaving = true;
            self.wanted = Arc::default();
            self.redirect(Vec::new());
            self.enter(Phase::Draining);
        }
    }

    /// Whether it is being removed.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whether it has been removed.
    pub(crate) fn has_left(&self) -> bool {
        self.is_leaving && self.phase == Phase::Done
    }

    /// Tries again what Envoy has refused.
    pub(crate) fn retry(&mut self, world: &dyn World) {
        self.ports.values_mut().for_each(|port| port.refused.clear());
        self.begin_again(world);
    }

    fn begin_again(&mut self, world: &dyn World) {
        let parsed = self.parsed.clone();
        for (name, _) in parsed.listeners.iter().filter(|(_, listener)| listener.needs_port()) {
            if !self.ports.contains_key(name) {
                let registration = world.register(name);
                let port = Port { registration, port: 0, refused: BTreeSet::new() };
                self.ports.insert(name.clone(), port);
            }
        }
        for port in self.ports.values_mut().filter(|port| port.port == 0) {
            match port.registration.reserve(&port.refused) {
                Ok(reserved) => port.port = reserved,
                Err(error) => return self.enter(Phase::Failed(error.to_string())),
            }
        }
        self.encode(world);
        self.enter(Phase::Clusters);
    }

    fn encode(&mut self, world: &dyn World) {
        let listeners = self.parsed.listeners.iter().map(|(name, listener)| {
            let port = self.ports.get(name).map(|port| port.port);
            let value = listener.encode(port, world.settings(), world.types());
            ((Kind::Listeners, name.clone()), value)
        });
        let mut wanted: Set = listeners.collect();
        wanted.extend(self.parsed.others.iter().map(|(key, value)| (key.clone(), value.clone())));
        self.wanted = Arc::new(wanted);
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
        self.versions.clear();
        self.is_written = false;
    }

    fn redirect(&mut self, redirects: Vec<Redirect>) {
        self.redirects = redirects;
        self.touched.extend(self.redirects.iter().map(|redirect| redirect.service.clone()));
    }

    /// Notes that the redirects have been written to the services.
    pub(crate) fn written(&mut self) {
        self.is_written = true;
    }

    /// Returns the port of a listener.
    pub(crate) fn port(&self, name: &Arc<str>) -> Option<u16> {
        let fixed = self.parsed.listeners.get(name).and_then(|listener| listener.fixed_port);
        fixed.or_else(|| self.ports.get(name).map(|port| port.port)).filter(|port| *port != 0)
    }

    /// Returns the resources to be published.
    pub(crate) fn published(&self) -> Set {
        let later = |kind: Kind| matches!(kind, Kind::Listeners | Kind::Routes);
        let mut all = match self.phase {
            Phase::Done => Set::new(),
            _ => Set::clone(&self.accepted),
        };
        let wanted = self.wanted.iter().filter(|((kind, _), _)| match self.phase {
            Phase::Clusters => !later(*kind),
            Phase::Failed(_) => false,
            Phase::Listeners | Phase::Rules | Phase::Draining | Phase::Done => true,
        });
        all.extend(wanted.map(|(key, value)| (key.clone(), value.clone())));
        all
    }

    /// Notes the version of a type that has the published resources.
    pub(crate) fn note(&mut self, kind: Kind, version: u64) {
        self.versions.entry(kind).or_insert(version);
    }

    /// Returns the names of the resources of a type that Envoy has not accepted yet.
    fn names(&self, kind: Kind) -> impl Iterator<Item = &Arc<str>> {
        let is_new = move |key: &&(Kind, Arc<str>)| {
            key.0 == kind && (self.is_assumed || self.accepted.get(*key) != self.wanted.get(*key))
        };
        self.wanted.keys().filter(is_new).map(|(_, name)| name)
    }

    /// Takes all steps that are possible. Returns whether it has taken one.
    pub(crate) fn advance(&mut self, world: &dyn World) -> bool {
        let before = (self.phase.clone(), self.since);
        match self.phase {
            Phase::Clusters => self.follow_clusters(world),
            Phase::Listeners => self.follow_listeners(world),
            Phase::Rules => self.follow_rules(world),
            Phase::Draining => {
                let is_in_force = self.is_written && world.is_reconciled(&self.touched);
                if is_in_force || self.since.elapsed() >= DRAIN_LIMIT {
                    self.finish();
                }
            }
            Phase::Done | Phase::Failed(_) => {}
        }
        before != (self.phase.clone(), self.since)
    }

    fn follow_clusters(&mut self, world: &dyn World) {
        let has_listeners = |set: &Set| set.keys().any(|(kind, _)| *kind == Kind::Listeners);
        if !has_listeners(&self.wanted) && !has_listeners(&self.accepted) {
            // Nothing refers to it that takes traffic: Envoy takes it when it likes.
            return self.finish();
        }
        match self.answer(Kind::Clusters, world) {
            Some(Answer::Refused(error)) => self.fail(error),
            // Without a client there is nothing to wait for; one that comes gets clusters first.
            None | Some(Answer::Accepted) => self.enter(Phase::Listeners),
            Some(Answer::Pending) => {}
        }
    }

    fn follow_listeners(&mut self, world: &dyn World) {
        let is_unchanged = self.names(Kind::Listeners).next().is_none();
        match self.answer(Kind::Listeners, world) {
            Some(Answer::Accepted) => self.accept(),
            None if is_unchanged => self.accept(),
            Some(Answer::Refused(error)) => self.refuse(error, world),
            None | Some(Answer::Pending) => {}
        }
    }

    fn accept(&mut self) {
        self.is_assumed = false;
        match self.announce() {
            Ok(()) => self.enter(Phase::Rules),
            Err(error) => self.fail(error),
        }
    }

    fn announce(&mut self) -> Result<(), String> {
        let needs = |name: &Arc<str>| self.parsed.listeners.contains_key(name);
        for (_, port) in self.ports.iter().filter(|(name, _)| needs(name)) {
            port.registration.listening(port.port).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn follow_rules(&mut self, world: &dyn World) {
        let targets = self.parsed.services.iter();
        let targets = targets.filter_map(|service| self.parsed.target(service.listener.as_ref()));
        let mut needed = targets.filter(|name| self.ports.contains_key(*name));
        if needed.all(|name| world.is_ready(name)) {
            self.redirect(self.wanted_redirects());
            self.enter(Phase::Draining);
        }
    }

    fn wanted_redirects(&self) -> Vec<Redirect> {
        let redirect = |service: &crate::parse::RedirectedService| {
            let proxy_port = self.port(self.parsed.target(service.listener.as_ref())?)?;
            let (service, ports) = (service.service.clone(), service.ports.clone());
            Some(Redirect { service, ports, proxy_port })
        };
        self.parsed.services.iter().filter_map(redirect).collect()
    }

    fn finish(&mut self) {
        self.is_assumed = false;
        self.accepted = self.wanted.clone();
        if self.is_leaving {
            self.ports.clear();
        } else {
            let parsed = self.parsed.clone();
            self.ports.retain(|name, _| parsed.listeners.get(name).is_some_and(|one| one.needs_port()));
            self.redirect(self.wanted_redirects());
        }
        self.touched = self.redirects.iter().map(|redirect| redirect.service.clone()).collect();
        self.enter(Phase::Done);
    }

    /// Returns the answer of Envoy for the changed resources of a type; `None` if none has changed or Envoy is not there.
    fn answer(&self, kind: Kind, world: &dyn World) -> Option<Answer> {
        self.names(kind).next()?;
        let Some(version) = self.versions.get(&kind).copied() else { return Some(Answer::Pending) };
        let mut found = None;
        for name in self.names(kind) {
            match world.delivery(kind, name, version) {
                Delivery::NoClient => return None,
                Delivery::Done => found = found.or(Some(Answer::Accepted)),
                Delivery::Pending => found = Some(Answer::Pending),
                // Of a response with a resource that is refused, the others are in force.
                Delivery::Refused(text) if world.is_about_other(kind, &text, &self.wanted) => {
                    found = found.or(Some(Answer::Accepted));
                }
                Delivery::Refused(text) => return Some(Answer::Refused(text)),
            }
        }
        found
    }

    /// Envoy refuses the listeners: with other ports if it cannot bind these, else what was before stays.
    fn refuse(&mut self, error: String, world: &dyn World) {
        let lower = error.to_ascii_lowercase();
        let is_bind_error = BIND_ERRORS.iter().any(|text| lower.contains(text));
        let is_named = |name: &Arc<str>| error.contains(&**name);
        let any_named = self.ports.keys().any(is_named);
        let mut concerned: Vec<&mut Port> = self
            .ports
            .iter_mut()
            .filter(|(name, _)| !any_named || is_named(name))
            .map(|(_, port)| port)
            .collect();
        let has_tries = concerned.iter().all(|port| port.refused.len() + 1 < MAX_PORTS);
        if !is_bind_error || concerned.is_empty() || !has_tries {
            return self.fail(error);
        }
        for port in &mut concerned {
            // Redirects must not lead to a port at which something else listens.
            port.registration.withdraw();
            port.refused.insert(port.port);
            port.port = 0;
        }
        self.drop_assumed();
        self.begin_again(world);
    }

    fn fail(&mut self, error: String) {
        self.drop_assumed();
        self.enter(Phase::Failed(error));
    }

    /// Drops the assumption that Envoy has the listeners of the previous run: no service may be redirected to them.
    fn drop_assumed(&mut self) {
        if std::mem::take(&mut self.is_assumed) {
            self.accepted = Arc::default();
            self.redirects.clear();
        }
    }
}

#[cfg(test)]
mod tests;
