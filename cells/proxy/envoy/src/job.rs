//! The job that feeds Envoy: policies of endpoints, and a listener for each proxy that rules need.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{OptionFuture, join_all};
use hive::health::summarize;
use hive::{Health, JobCx};
use policy::EndpointPolicy;
use policy_engine::{Action, Direction, Filter, Filters, Parser, Redirect, SecretRef};
use proxy_ports::{Proxies, proxy_name};
use tokio::time::{Instant, sleep, sleep_until};
use xds::{Delivery, Value};

use crate::kind::Kind;
use crate::listeners::Settings;
use crate::policies::{Memo, Policies, Tables};
use crate::receiver::{Requests, Waiting};
use crate::resources::{Owner, Resources, encoded};
use crate::slot::{Slot, State};

/// The time for which changes of tables are gathered.
const GATHER_INTERVAL: Duration = Duration::from_millis(5);
/// The time after which a listener that Envoy has refused is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// The protocol of the traffic that Envoy takes.
const TCP: u8 = 6;
/// The time for the secrets of rules; afterwards policies go to Envoy without the rules that need missing ones.
const SECRETS_LIMIT: Duration = Duration::from_secs(10);
const MAX_REPORTED: usize = 4;

/// The job.
pub(crate) struct Job {
    pub(crate) slots: Vec<Slot>,
    pub(crate) tables: Tables,
    pub(crate) proxies: Arc<Proxies>,
    pub(crate) resources: Resources,
    pub(crate) settings: Settings,
    /// Policy that waits for the policies in Envoy.
    pub(crate) requests: Requests,
    /// The longest time until Envoy gets policies although not all are known.
    pub(crate) restore_limit: Duration,
}

impl Job {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        if !self.proxies.has_rules() {
            self.slots.iter_mut().for_each(Slot::release);
            cx.health.ok("Rules of iptables are off: no traffic reaches Envoy");
            return Ok(());
        }
        let mut restored = Vec::new();
        for slot in &mut self.slots {
            if slot.restore(&self.proxies) {
                restored.push(slot.registration.clone());
            }
        }
        let waits = restored.iter().map(|registration| registration.ready());
        let mut ready = join_all(waits).map(drop).fuse().boxed();
        let limit = Instant::now() + self.restore_limit;
        let secrets_limit = Instant::now() + SECRETS_LIMIT;
        let mut changed = self.resources.subscribe();
        let mut memo = Memo::default();
        let mut policies = self.read(&mut memo);
        let (mut is_complete, mut retry) = (false, None);
        let mut waiting = Vec::new();
        loop {
            let working = cx.working();
            changed.mark_unchanged();
            let now = Instant::now();
            let waits_for_secrets = policies.waits_for_secrets && now < secrets_limit;
            is_complete |= policies.is_complete && !waits_for_secrets || now >= limit;
            self.publish_policies(&policies, is_complete);
            self.reconcile(is_complete);
            let is_announced = self.slots.iter().any(|slot| matches!(slot.state, State::Announced(_)));
            self.requests.set_in_use(is_announced && self.resources.has_clients(Kind::Policies));
            // An Envoy that has run while the agent was away would lose listeners that are not known yet.
            self.resources.hold(Owner::Policy, Kind::Listeners, !is_complete && restored.is_empty());
            self.report(&cx.health, &policies);
            // Secrets that are still being read are no faults.
            if is_complete {
                self.proxies.set_secret_faults(&policies.faults);
            }
            if self.has_policies() {
                // Policy that no longer waits has dropped its end.
                waiting.drain(..).for_each(|answer: Waiting| _ = answer.send(()));
            }
            let has_failed = self.slots.iter().any(|slot| matches!(slot.state, State::Failed(_)));
            retry = has_failed.then(|| retry.unwrap_or_else(|| Instant::now() + RETRY_INTERVAL));
            let of_secrets = (!is_complete && waits_for_secrets).then_some(secrets_limit);
            let of_restore = (!is_complete).then_some(limit);
            let deadline = [retry, of_restore, of_secrets].into_iter().flatten().min();
            drop(working);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = policies.changed() => {
                    tokio::select! {
                        () = cx.cancelled() => return Ok(()),
                        () = sleep(GATHER_INTERVAL) => {}
                    }
                    policies = self.read(&mut memo);
                }
                Some(answer) = self.requests.requests.recv() => {
                    waiting.push(answer);
                    policies = self.read(&mut memo);
                }
                // The sender is that of `resources`.
                _ = changed.changed() => {}
                () = &mut ready => {}
                Some(()) = OptionFuture::from(deadline.map(sleep_until)) => {
                    if retry.is_some_and(|retry| Instant::now() >= retry) {
                        retry = None;
                        let failed = self.slots.iter_mut().filter(|slot| matches!(slot.state, State::Failed(_)));
                        failed.for_each(Slot::retry);
                    }
                }
            }
        }
    }

    fn read(&self, memo: &mut Memo) -> Policies {
        let policies = self.tables.read(memo);
        let Policies { resources, computed, .. } = &policies;
        tracing::debug!(endpoints = resources.len(), computed, "Policies of endpoints for Envoy");
        policies
    }

    /// Publishes policies while a client takes them. It gets none before all are known: an Envoy that has run while the
    /// agent was away would deny the traffic of endpoints whose policies are missing.
    fn publish_policies(&self, policies: &Policies, is_complete: bool) {
        let has_clients = self.resources.has_clients(Kind::Policies);
        if has_clients {
            self.resources.replace(Owner::Policy, Kind::Policies, policies.resources.clone());
        }
        self.resources.hold(Owner::Policy, Kind::Policies, !has_clients || !is_complete);
    }

    /// Makes and removes listeners, and announces those that Envoy has.
    fn reconcile(&mut self, is_complete: bool) {
        let snapshot = self.tables.policies.snapshot();
        // Nothing redirects the traffic of the ingress: it is Envoy's own.
        let rows = self.tables.policies.all(&snapshot).filter(|row| row.subject.has_policy_map());
        let needed = needed(rows.map(|row| &**row));
        drop(snapshot);
        for slot in &mut self.slots {
            match (&slot.state, needed.contains(slot.kind.name)) {
                (State::Unused, true) => slot.reserve(),
                (State::Unused, false) => {}
                // Rules that need a listener of the previous run may not be known yet.
                (_, false) if is_complete => slot.release(),
                _ => {}
            }
        }
        self.publish();
        while self.apply() {
            self.publish();
        }
    }

    /// Publishes the listeners of all proxies that have a port.
    fn publish(&mut self) {
        let listener = |slot: &Slot| {
            let (kind, port) = (slot.kind, slot.port()?);
            let is_http = kind.parser == Parser::Http;
            let listener = self.settings.listener(kind.name, is_http, kind.is_ingress, port);
            Some((Arc::from(listener.name.as_str()), encoded(&listener)))
        };
        let listeners: BTreeMap<Arc<str>, Value> = self.slots.iter().filter_map(listener).collect();
        // They stay after the last listener, whose connections are drained.
        if !listeners.is_empty() {
            let clusters = self.settings.clusters();
            let clusters = clusters.iter().map(|(name, cluster)| (Arc::from(*name), encoded(cluster)));
            self.resources.replace(Owner::Policy, Kind::Clusters, clusters.collect());
        }
        self.resources.replace(Owner::Policy, Kind::Listeners, listeners);
        let version = self.resources.version(Kind::Listeners);
        for slot in &mut self.slots {
            match slot.port() {
                Some(_) if slot.version == 0 => slot.version = version,
                Some(_) => {}
                None => slot.version = 0,
            }
        }
    }

    /// Applies what Envoy has answered. Returns whether listeners have to be published.
    fn apply(&mut self) -> bool {
        let deliveries: Vec<Delivery> = self.slots.iter().map(|slot| self.delivery(slot)).collect();
        // A refusal is of a response with all listeners, and names those that it is about.
        let is_named = |slot: &Slot, delivery: &Delivery| match (slot.listener(), delivery) {
            (Some(name), Delivery::Refused(text)) => text.contains(&name),
            _ => false,
        };
        let is_other = |delivery: &Delivery| match delivery {
            Delivery::Refused(text) => self.resources.names_other(Owner::Policy, Kind::Listeners, text),
            _ => false,
        };
        let any_named = self
            .slots
            .iter()
            .zip(&deliveries)
            .any(|(slot, delivery)| is_named(slot, delivery) || is_other(delivery));
        let has_policies = self.has_policies();
        let mut has_moved = false;
        for (slot, delivery) in self.slots.iter_mut().zip(&deliveries) {
            if any_named && matches!(delivery, Delivery::Refused(_)) && !is_named(slot, delivery) {
                // The next version, without the listener that is refused, decides about this one.
                slot.version = 0;
                continue;
            }
            let before = slot.port();
            slot.apply(delivery, has_policies);
            if slot.port() != before {
                slot.version = 0;
                has_moved = true;
            }
        }
        has_moved
    }

    fn delivery(&self, slot: &Slot) -> Delivery {
        match slot.listener() {
            Some(name) => self.resources.delivery(Kind::Listeners, &name, slot.version),
            None => Delivery::NoClient,
        }
    }

    /// Whether Envoy has the policies, if it takes any: traffic must not come before them.
    fn has_policies(&self) -> bool {
        let version = self.resources.version(Kind::Policies);
        // The empty name is part of subscriptions to all policies only.
        !matches!(self.resources.delivery(Kind::Policies, "", version), Delivery::Pending)
    }

    fn refusal_of_clusters(&self) -> Delivery {
        self.resources.delivery(Kind::Clusters, "", self.resources.version(Kind::Clusters))
    }

    fn report(&self, health: &Health, policies: &Policies) {
        let in_use: Vec<&Slot> = self.slots.iter().filter(|slot| slot.state != State::Unused).collect();
        let failed = in_use.iter().filter_map(|slot| match &slot.state {
            State::Failed(error) => Some(format!("{}: {error}", slot.kind.name)),
            _ => None,
        });
        let failed = summarize(failed, MAX_REPORTED, "; ");
        let waiting = in_use.iter().filter(|slot| matches!(slot.state, State::Pending(_)));
        let waiting = summarize(waiting.map(|slot| slot.kind.name.to_owned()), MAX_REPORTED, ", ");
        let version = self.resources.version(Kind::Policies);
        if in_use.is_empty() {
            health.ok("No rule needs Envoy");
        } else if !failed.is_empty() {
            let message = "Envoy refuses listeners: traffic of rules that need them is denied";
            if health.degraded_anew(message, &failed) {
                tracing::warn!(error = %failed, "{message}");
            }
        } else if !self.resources.has_clients(Kind::Listeners) {
            let listeners = in_use.iter().map(|slot| slot.kind.name.to_owned());
            let listeners = summarize(listeners, MAX_REPORTED, ", ");
            health.degraded(
                "Envoy is not connected: without it, traffic of rules that need it is denied",
                listeners,
            );
        } else if let Delivery::Refused(error) = self.refusal_of_clusters() {
            health.degraded("Envoy refuses clusters: listeners wait for them", error);
        } else if let Delivery::Refused(error) = self.resources.delivery(Kind::Policies, "", version) {
            health.degraded("Envoy refuses policies: the previous ones stay in force there", error);
        } else if !policies.faults.is_empty() {
            let message = "Secrets of rules cannot be used: their traffic is denied";
            let text = |(secret, reason): &(SecretRef, String)| {
                format!("secret {}/{} {reason}", secret.namespace, secret.name)
            };
            let faults = summarize(policies.faults.iter().map(text), MAX_REPORTED, "; ");
            if health.degraded_anew(message, &faults) {
                tracing::warn!(error = %faults, "{message}");
            }
        } else if !waiting.is_empty() {
            health.degraded("Listeners wait for Envoy: traffic of rules that need them is denied", waiting);
        } else {
            health.ok(format_args!("Envoy has {} listeners", in_use.len()));
        }
    }
}

/// Returns the names of the proxies that rules of endpoints need, those that are computed and those in force.
fn needed<'a>(rows: impl Iterator<Item = &'a EndpointPolicy>) -> BTreeSet<Arc<str>> {
    let mut seen: HashSet<*const Filters> = HashSet::new();
    let mut names = BTreeSet::new();
    for row in rows {
        for filters in [&row.filters, &row.realized_filters] {
            // Endpoints of one identity share their filters.
            if seen.insert(Arc::as_ptr(filters)) {
                names.extend(proxies_of(Direction::Ingress, &filters.ingress));
                names.extend(proxies_of(Direction::Egress, &filters.egress));
            }
        }
    }
    names
}

fn proxies_of(direction: Direction, filters: &[Filter]) -> impl Iterator<Item = Arc<str>> {
    let of_tcp =
        filters.iter().filter(|filter| filter.ports.as_ref().is_some_and(|spec| spec.protocol == TCP));
    let peers = of_tcp.flat_map(|filter| &filter.peers).filter(|peer| peer.effect.action == Action::Allow);
    peers.filter_map(move |peer| {
        let parser = peer.effect.proxy.as_ref()?.parser()?;
        proxy_name(&Redirect { direction, protocol: TCP, port: 0, parser, listener: "".into() })
    })
}
