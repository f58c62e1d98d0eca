//! The handles of proxies and of policy.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use policy_engine::{Parser, Redirect, SecretRef};
use statedb::{Initializer, RwTable, Table, Watch, Writer};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::ProxyConfig;
use crate::error::Error;
use crate::metrics::Verdicts;
use crate::open::open_ports;
use crate::port::{PortState, ProxyPort, choose, proxy_name};
use crate::receiver::PolicyReceiver;
use crate::redirect::EndpointRedirect;

/// A proxy that wants traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The name, as in Cilium; the comment of rules and the key in the file of ports.
    pub name: Arc<str>,
    /// The kind of proxy.
    pub parser: Parser,
    /// Whether it takes traffic to endpoints.
    pub ingress: bool,
    /// The port that it must have; `None` for any.
    pub fixed: Option<u16>,
}

/// The ports of proxies and the redirects that lead to them.
#[derive(Clone, Debug)]
pub struct Proxies {
    ports: RwTable<ProxyPort>,
    redirects: RwTable<EndpointRedirect>,
    config: ProxyConfig,
    /// Whether the kernel routes marked packets to the host.
    routed: Arc<AtomicBool>,
    /// Whether rules can lead packets to proxies.
    has_rules: Arc<AtomicBool>,
    verdicts: Verdicts,
    receiver: Arc<OnceLock<Arc<dyn PolicyReceiver>>>,
    secret_faults: Arc<watch::Sender<SecretFaults>>,
    dns_bypass: Arc<watch::Sender<DnsBypass>>,
}

/// The secrets of rules that a proxy cannot use, with the reasons: the traffic of their rules is denied.
pub type SecretFaults = Arc<BTreeSet<(SecretRef, String)>>;

/// Whether queries pass without the DNS proxy where rules allow every name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DnsBypass {
    /// They go to the proxy.
    #[default]
    Off,
    /// They are to pass, from the next round of policy on.
    Requested,
    /// They pass.
    InForce,
}

/// The proxies that redirects can lead to, at one moment: the engine's view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyPorts(BTreeMap<Arc<str>, u16>);

impl policy_engine::ProxyPorts for ReadyPorts {
    fn port(&self, redirect: &Redirect) -> Option<u16> {
        self.0.get(&proxy_name(redirect)?).copied()
    }
}

impl Proxies {
    pub(crate) fn new(
        ports: RwTable<ProxyPort>,
        redirects: RwTable<EndpointRedirect>,
        config: ProxyConfig,
        routed: bool,
    ) -> Proxies {
        Proxies {
            ports,
            redirects,
            config,
            routed: Arc::new(AtomicBool::new(routed)),
            has_rules: Arc::new(AtomicBool::new(true)),
            verdicts: Verdicts::default(),
            receiver: Arc::default(),
            secret_faults: Arc::new(watch::Sender::default()),
            dns_bypass: Arc::new(watch::Sender::default()),
        }
    }

    /// Inserts ports of the previous run for proxies that have none.
    pub(crate) fn restore(&self, rows: Vec<ProxyPort>) {
        self.ports.transact(|txn| {
            for row in rows {
                if txn.get(ProxyPort::by_name(&row.name)).is_none() {
                    txn.insert(row);
                }
            }
        });
    }

    /// Declares whether the kernel routes marked packets to the host; without that, no redirect is made.
    pub(crate) fn set_routed(&self, routed: bool) {
        if self.routed.swap(routed, Ordering::AcqRel) != routed {
            // Wakes those that wait for proxies.
            self.ports.transact(|txn| {
                let rows: Vec<ProxyPort> = txn.all().map(|row| ProxyPort::clone(row)).collect();
                rows.into_iter().for_each(|row| drop(txn.insert(row)));
            });
        }
    }

    /// Declares, in a constructor, that no rules lead packets to proxies, as they are off.
    pub fn set_without_rules(&self) {
        self.has_rules.store(false, Ordering::Release);
    }

    /// Whether rules can lead packets to proxies; to be asked once the cells are built. A proxy without them should
    /// withdraw: policy waits for registered proxies.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.has_rules.load(Ordering::Acquire)
    }

    /// Releases the ports of proxies that have been gone for this time, or have not returned since the start.
    pub(crate) fn release(&self, started: Instant, keep: Duration) {
        let is_over = |row: &ProxyPort| match row.state {
            PortState::Restored => started.elapsed() >= keep,
            PortState::Withdrawn { since } => since.elapsed() >= keep,
            PortState::Reserved | PortState::Listening | PortState::Ready => false,
        };
        let snapshot = self.ports.snapshot();
        if !self.ports.all(&snapshot).any(|row| row.port != 0 && is_over(row)) {
            return;
        }
        self.ports.transact(|txn| {
            let over = txn.all().filter(|row| row.port != 0 && is_over(row));
            let over: Vec<ProxyPort> = over.map(|row| ProxyPort::clone(row)).collect();
            for mut row in over {
                row.former.push(row.port);
                txn.insert(ProxyPort { port: 0, ..row });
            }
        });
    }

    /// Returns the options.
    #[must_use]
    pub fn config(&self) -> &ProxyConfig {
        &self.config
    }

    /// Sets the proxy that gets policies before maps do, in a constructor. Only the first one counts.
    pub fn set_policy_receiver(&self, receiver: Arc<dyn PolicyReceiver>) {
        let _ = self.receiver.set(receiver);
    }

    /// Returns the proxy that gets policies before maps do, while redirects lead to it.
    #[must_use]
    pub fn policy_receiver(&self) -> Option<&Arc<dyn PolicyReceiver>> {
        self.receiver.get().filter(|receiver| receiver.is_in_use())
    }

    /// Sets the secrets of rules that cannot be used, with the reasons.
    pub fn set_secret_faults(&self, faults: &BTreeSet<(SecretRef, String)>) {
        self.secret_faults.send_if_modified(|known| {
            let is_change = **known != *faults;
            if is_change {
                *known = Arc::new(faults.clone());
            }
            is_change
        });
    }

    /// Returns the secrets of rules that cannot be used, and changes with them.
    #[must_use]
    pub fn secret_faults(&self) -> watch::Receiver<SecretFaults> {
        self.secret_faults.subscribe()
    }

    /// Lets queries pass without the DNS proxy, until the agent ends, where rules allow every name. Returns when no policy
    /// map leads such queries to the proxy, which policy has to report.
    pub async fn bypass_dns(&self) {
        let mut bypass = self.dns_bypass.subscribe();
        self.dns_bypass.send_if_modified(|bypass| {
            let is_first = *bypass == DnsBypass::Off;
            if is_first {
                *bypass = DnsBypass::Requested;
            }
            is_first
        });
        // The sender is that of the handle.
        let _ = bypass.wait_for(|bypass| *bypass == DnsBypass::InForce).await;
    }

    /// Declares that no policy map leads queries to the DNS proxy where rules allow every name, as was
    /// [requested](Self::bypass_dns).
    pub fn set_dns_bypassed(&self) {
        self.dns_bypass.send_replace(DnsBypass::InForce);
    }

    /// Returns whether queries are to pass without the DNS proxy where rules allow every name, and changes with it.
    #[must_use]
    pub fn dns_bypass(&self) -> watch::Receiver<DnsBypass> {
        self.dns_bypass.subscribe()
    }

    /// Returns the counter of requests, which proxies share.
    #[must_use]
    pub fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    /// Returns the table of ports.
    #[must_use]
    pub fn ports(&self) -> Table<ProxyPort> {
        self.ports.reader()
    }

    /// Returns the table of redirects.
    #[must_use]
    pub fn redirects(&self) -> Table<EndpointRedirect> {
        self.redirects.reader()
    }

    /// Registers a proxy, in a constructor: until rules lead packets to it, or its registration is dropped, policy of
    /// the previous run stays in force, for a limited time.
    #[must_use]
    pub fn register(&self, proxy: Proxy) -> Registration {
        let initializer = {
            let mut txn = self.ports.write();
            let initializer = txn.register_initializer(&proxy.name);
            txn.commit();
            initializer
        };
        Registration {
            proxies: self.clone(),
            proxy: Arc::new(proxy),
            initializer: Mutex::new(Some(initializer)),
        }
    }

    /// Registers a proxy while the agent runs: policy does not wait for it.
    #[must_use]
    pub fn register_late(&self, proxy: Proxy) -> Registration {
        Registration { proxies: self.clone(), proxy: Arc::new(proxy), initializer: Mutex::new(None) }
    }

    /// Returns the proxies that redirects can lead to, and a watch on changes of the table.
    #[must_use]
    pub fn ready(&self) -> (Arc<ReadyPorts>, Watch) {
        let snapshot = self.ports.snapshot();
        let (rows, watch) = self.ports.all_watch(&snapshot);
        let is_routed = self.routed.load(Ordering::Acquire);
        let ready = rows.filter(|row| is_routed && row.state == PortState::Ready);
        (Arc::new(ReadyPorts(ready.map(|row| (row.name.clone(), row.port)).collect())), watch)
    }

    /// Declares that rules lead packets to these ports of proxies, and to no others. Without effect if programs assign
    /// packets to their sockets, which needs no rules.
    pub fn set_reachable(&self, reachable: &BTreeMap<Arc<str>, u16>) {
        if self.config.is_assigned_by_programs() {
            return;
        }
        self.ports.transact(|txn| {
            let changed = |row: &ProxyPort| {
                let is_reachable = reachable.get(&row.name) == Some(&row.port);
                let state = if is_reachable { PortState::Ready } else { PortState::Listening };
                (row.state.is_listening() && row.state != state).then(|| ProxyPort { state, ..row.clone() })
            };
            let rows: Vec<ProxyPort> = txn.all().filter_map(|row| changed(row)).collect();
            rows.into_iter().for_each(|row| drop(txn.insert(row)));
        });
    }

    /// Upserts redirects of endpoints, before their policy maps lead packets to the proxies.
    pub fn upsert_redirects(&self, redirects: Vec<EndpointRedirect>) {
        let is_equal = |new: &EndpointRedirect| {
            let snapshot = self.redirects.snapshot();
            let old =
                self.redirects.get(&snapshot, EndpointRedirect::by_redirect(new.endpoint, &new.redirect));
            old.is_some_and(|old| **old == *new)
        };
        if redirects.iter().all(is_equal) {
            return;
        }
        self.redirects.transact(|txn| redirects.into_iter().for_each(|row| drop(txn.insert(row))));
        self.count_references();
    }

    /// Deletes all redirects but these, after policy maps lead no packets to their proxies.
    pub fn retain_redirects(&self, keep: impl Fn(&EndpointRedirect) -> bool) {
        let snapshot = self.redirects.snapshot();
        if self.redirects.all(&snapshot).all(|row| keep(row)) {
            return;
        }
        self.redirects.transact(|txn| txn.retain(keep));
        self.count_references();
    }

    fn count_references(&self) {
        let mut counts: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for row in self.redirects.all(&self.redirects.snapshot()) {
            *counts.entry(row.proxy.clone()).or_default() += 1;
        }
        self.ports.transact(|txn| {
            let count = |row: &ProxyPort| counts.get(&row.name).copied().unwrap_or_default();
            let changed = txn.all().filter(|row| count(row) != row.references);
            let changed: Vec<ProxyPort> =
                changed.map(|row| ProxyPort { references: count(row), ..ProxyPort::clone(row) }).collect();
            changed.into_iter().for_each(|row| drop(txn.insert(row)));
        });
    }

    /// Writes a proxy's row, which keeps its references and former ports.
    fn set(&self, txn: &mut Writer<'_, ProxyPort>, proxy: &Proxy, port: u16, state: PortState) {
        let old = txn.get(ProxyPort::by_name(&proxy.name));
        let (references, mut former) =
            old.map_or((0, Vec::new()), |old| (old.references, old.former.clone()));
        // A port of the previous run counts, too: its connections may be alive.
        former.extend(old.map(|old| old.port).filter(|old| *old != port && *old != 0));
        former.retain(|old| *old != port);
        let (name, parser, ingress) = (proxy.name.clone(), proxy.parser, proxy.ingress);
        txn.insert(ProxyPort { name, parser, ingress, port, state, references, former });
    }
}

/// The registration of a proxy. Dropping it withdraws the proxy: redirects to it end.
pub struct Registration {
    proxies: Proxies,
    proxy: Arc<Proxy>,
    /// Keeps policy of the previous run in force; gone once rules lead packets to the proxy.
    initializer: Mutex<Option<Initializer<ProxyPort>>>,
}

impl Registration {
    /// Returns the port that the proxy should bind: the one that it must have, or that of the previous run unless it is
    /// open already. `None` without either: bind any and [announce](Self::listening) it, or [reserve](Self::reserve)
    /// one of the range.
    ///
    /// Call it in a start hook or later: constructors run before the ports of the previous run are read.
    #[must_use]
    pub fn preferred(&self) -> Option<u16> {
        let previous = || {
            let snapshot = self.proxies.ports.snapshot();
            let row = self.proxies.ports.get(&snapshot, ProxyPort::by_name(&self.proxy.name))?;
            (row.port != 0 && !open_ports().contains(&row.port)).then_some(row.port)
        };
        self.proxy.fixed.or_else(previous)
    }

    /// Reserves a port of the range and returns it: the preferred one if it is free and not `refused`, else one that no
    /// proxy has had.
    ///
    /// # Errors
    /// If no port of the range is free.
    pub fn reserve(&self, refused: &BTreeSet<u16>) -> Result<u16, Error> {
        let preferred = self.preferred().filter(|port| !refused.contains(port));
        let mut open = open_ports();
        open.extend(refused);
        let range = self.proxies.config.range();
        let start = RandomState::new().hash_one("proxy-port");
        let (port, _snapshot) = self.proxies.ports.transact(|txn| {
            let others = || txn.all().filter(|row| row.name != self.proxy.name);
            let preferred = preferred.filter(|port| others().all(|row| row.port != *port));
            let rows: Vec<&ProxyPort> = txn.all().map(|row| &**row).collect();
            let port = preferred.or_else(|| choose(&rows, &range, &open, start))?;
            self.proxies.set(txn, &self.proxy, port, PortState::Reserved);
            Some(port)
        });
        port.ok_or_else(|| Error::Exhausted { name: self.proxy.name.to_string(), range })
    }

    /// Announces that the proxy listens at a port, for TCP and UDP as far as it takes them, on the loopback addresses.
    /// Redirects lead to it as soon as rules do, see [`ready`](Self::ready), or at once if programs assign packets to
    /// its sockets.
    ///
    /// # Errors
    /// If another proxy has the port.
    pub fn listening(&self, port: u16) -> Result<(), Error> {
        let (result, _snapshot) = self.proxies.ports.transact(|txn| {
            let name = &self.proxy.name;
            let is_other = |row: &ProxyPort| row.port == port && row.name != *name;
            let other = txn.all().find(|row| is_other(row)).map(|row| row.as_ref().clone());
            if let Some(other) = other {
                // The port of a proxy that does not run is only kept for it.
                if other.state.is_listening() {
                    let (name, other) = (name.to_string(), other.name.to_string());
                    return Err(Error::Taken { name, port, other });
                }
                txn.insert(ProxyPort { port: 0, ..other });
            }
            let row = txn.get(ProxyPort::by_name(name));
            if row.is_none_or(|row| row.port != port || !row.state.is_listening()) {
                let by_programs = self.proxies.config.is_assigned_by_programs();
                let state = if by_programs { PortState::Ready } else { PortState::Listening };
                self.proxies.set(txn, &self.proxy, port, state);
            }
            Ok(())
        });
        result
    }

    /// Waits until rules lead packets to the proxy. Policy maps follow.
    pub async fn ready(&self) {
        loop {
            let watch = {
                let snapshot = self.proxies.ports.snapshot();
                let (row, watch) =
                    self.proxies.ports.get_watch(&snapshot, ProxyPort::by_name(&self.proxy.name));
                if row.is_some_and(|row| row.state == PortState::Ready) {
                    break;
                }
                watch
            };
            watch.changed().await;
        }
        self.complete();
    }

    /// Withdraws the proxy, which no longer listens: redirects to it end, its port is kept for a while.
    pub fn withdraw(&self) {
        self.proxies.ports.transact(|txn| {
            let row = txn.get(ProxyPort::by_name(&self.proxy.name)).map(|row| row.as_ref().clone());
            if let Some(row) = row.filter(|row| row.state.is_listening() || row.state == PortState::Reserved)
            {
                txn.insert(ProxyPort { state: PortState::Withdrawn { since: Instant::now() }, ..row });
            }
        });
        self.complete();
    }

    /// Policy need not wait for the proxy any more.
    fn complete(&self) {
        if let Some(initializer) = self.initializer.lock().take() {
            self.proxies.ports.transact(|txn| initializer.done(txn));
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.withdraw();
    }
}
