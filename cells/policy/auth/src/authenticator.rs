//! The job that authenticates identities, and keeps the authentications in the kernel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bpf::Map;
use datapath_abi::runtime_config::UTIME_SHIFT;
use datapath_abi::signal::{AuthEntry, AuthKey};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use hive::{Health, JobCx};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::certificates::Certificates;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::mutual;
use crate::pending::Pending;
use crate::spire::Change;

/// Handshakes at once.
const MAX_IN_FLIGHT: usize = 64;
/// Reserved identities are below this one; workloads have no certificate with them.
const FIRST_WORKLOAD_IDENTITY: u32 = 100;
/// Types of authentication, as in map entries.
const SPIRE: u8 = 1;
const ALWAYS_FAIL: u8 = 2;

/// Options of the job.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) capacity: usize,
    pub(crate) pause: Duration,
    pub(crate) gc_interval: Duration,
    pub(crate) limit: Duration,
    /// The port of handshakes; `None` if they are disabled.
    pub(crate) port: Option<u16>,
}

/// The job.
pub(crate) struct Authenticator {
    pub(crate) settings: Settings,
    pub(crate) map: Arc<Map<AuthKey, AuthEntry>>,
    pub(crate) cluster: Arc<Mutex<dyn Cluster>>,
    pub(crate) certificates: watch::Receiver<Arc<Certificates>>,
    pub(crate) required: mpsc::Receiver<AuthKey>,
    pub(crate) changes: mpsc::Receiver<Change>,
}

type Attempt = BoxFuture<'static, (AuthKey, Result<SystemTime, Error>)>;

impl Authenticator {
    /// Authenticates pairs that packets require until the job is cancelled.
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let mut pending = Pending::new(self.settings.capacity, self.settings.pause);
        let mut attempts: FuturesUnordered<Attempt> = FuturesUnordered::new();
        let mut gc = tokio::time::interval(self.settings.gc_interval.max(Duration::from_secs(1)));
        gc.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate: what is needed is not known yet.
        gc.reset();
        cx.health.ok("No pair has failed to authenticate");
        loop {
            while attempts.len() < MAX_IN_FLIGHT
                && let Some(key) = pending.next()
            {
                attempts.push(self.attempt(key));
            }
            let mut changes = Vec::new();
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                Some(key) = self.required.recv() => {
                    if is_authenticable(&key) {
                        pending.request(key, Instant::now());
                    }
                }
                Some((key, result)) = attempts.next(), if !attempts.is_empty() => {
                    self.ended(key, result, &mut pending, &cx.health);
                }
                count = self.changes.recv_many(&mut changes, self.settings.capacity), if !self.changes.is_closed() => {
                    if count > 0 {
                        self.apply(changes, &mut pending).await?;
                    }
                }
                _ = gc.tick() => {
                    self.collect().await?;
                    report(&mut pending, &cx.health, None);
                }
            }
        }
    }

    /// Returns an attempt to authenticate a pair.
    fn attempt(&self, key: AuthKey) -> Attempt {
        let (certificates, limit) = (self.certificates.borrow().clone(), self.settings.limit);
        let (cluster, port) = (self.cluster.clone(), self.settings.port);
        Box::pin(async move {
            let attempt = async {
                match key.auth_type {
                    SPIRE => {}
                    ALWAYS_FAIL => return Err(Error::AlwaysFails),
                    other => return Err(Error::UnknownType(other)),
                }
                port.ok_or(Error::NoPort)?;
                let node = key.remote_node;
                let peer = hive::blocking(move || cluster.lock().peer(node)).await;
                let peer = peer.ok_or(Error::NoNode(node))?;
                let identities = (key.local_identity, key.remote_identity);
                mutual::connect(&certificates, peer, identities, limit).await
            };
            (key, attempt.await)
        })
    }

    fn ended(&self, key: AuthKey, result: Result<SystemTime, Error>, pending: &mut Pending, health: &Health) {
        let result = result.and_then(|end| {
            // SPIRE may have withdrawn the certificate during the handshake.
            if self.certificates.borrow().key(key.local_identity).is_none() {
                return Err(Error::NoCertificate(key.local_identity));
            }
            Ok(self.map.update(&key, &AuthEntry { expiration: utime(end) })?)
        });
        let failures = pending.ended(key, result.is_ok(), Instant::now());
        let AuthKey { local_identity, remote_identity, remote_node, .. } = key;
        match result {
            Ok(()) => {
                tracing::debug!(
                    local_identity,
                    remote_identity,
                    remote_node,
                    "Identities have authenticated"
                );
                report(pending, health, None);
            }
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                // Later failures of a pair are in health.
                if failures == 1 {
                    tracing::warn!(
                        local_identity,
                        remote_identity,
                        remote_node,
                        error,
                        "Identities have not authenticated: their packets are dropped, trying again on demand"
                    );
                }
                report(pending, health, Some((key, error)));
            }
        }
    }

    /// Deletes authentications of withdrawn certificates, and renews those of renewed ones.
    async fn apply(&self, changes: Vec<Change>, pending: &mut Pending) -> anyhow::Result<()> {
        let (mut renewed, mut withdrawn) = (BTreeSet::new(), BTreeSet::new());
        for change in changes {
            match change {
                // Entries of the previous run stay as they are: their identities have authenticated.
                Change::Added(identity) => {
                    pending.end_pauses(identity);
                    withdrawn.remove(&identity)
                }
                Change::Renewed(identity) => {
                    pending.end_pauses(identity);
                    withdrawn.remove(&identity);
                    renewed.insert(identity)
                }
                Change::Withdrawn(identity) => {
                    renewed.remove(&identity);
                    withdrawn.insert(identity)
                }
            };
        }
        let map = self.map.clone();
        let of = |identities: &BTreeSet<u32>, key: &AuthKey| {
            identities.contains(&key.local_identity) || identities.contains(&key.remote_identity)
        };
        let keys = hive::blocking(move || -> bpf::Result<Vec<AuthKey>> {
            let (deleted, others): (Vec<_>, Vec<_>) =
                map.keys()?.into_iter().partition(|key| of(&withdrawn, key));
            for key in &deleted {
                map.delete(key)?;
            }
            Ok(others.into_iter().filter(|key| of(&renewed, key)).collect())
        });
        pending.renew(keys.await?);
        Ok(())
    }

    /// Deletes authentications that have expired or are not needed.
    async fn collect(&self) -> anyhow::Result<()> {
        let (map, cluster) = (self.map.clone(), self.cluster.clone());
        let deleted = hive::blocking(move || -> bpf::Result<usize> {
            let entries = map.entries()?;
            if entries.is_empty() {
                return Ok(0);
            }
            let (needs, now) = (cluster.lock().needs(), utime(SystemTime::now()));
            let mut deleted = 0;
            for (key, entry) in entries {
                if entry.expiration <= now || !needs.has(&key) {
                    deleted += usize::from(map.delete(&key)?);
                }
            }
            Ok(deleted)
        });
        let deleted = deleted.await?;
        if deleted > 0 {
            tracing::info!(deleted, "Removed authentications that are not needed");
        }
        Ok(())
    }
}

/// Reports pairs that have failed to authenticate; without an error, the last report stays while there are any.
fn report(pending: &mut Pending, health: &Health, error: Option<(AuthKey, String)>) {
    let failing = pending.failing(Instant::now());
    match (failing, error) {
        (_, Some((key, error))) => {
            let AuthKey { local_identity, remote_identity, remote_node, .. } = key;
            let message = format!("{failing} pairs of identities have not authenticated");
            let pair = format!("{local_identity} with {remote_identity} on node id {remote_node}");
            health.degraded(message, format!("{pair}: {error}"));
        }
        (0, None) => health.ok("No pair has failed to authenticate"),
        (_, None) => {}
    }
}

/// Whether agents can authenticate two identities: both are those of workloads.
fn is_authenticable(key: &AuthKey) -> bool {
    key.local_identity >= FIRST_WORKLOAD_IDENTITY && key.remote_identity >= FIRST_WORKLOAD_IDENTITY
}

/// Returns a time in the units of the map; zero for one before 1970.
pub(crate) fn utime(time: SystemTime) -> u64 {
    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos() >> UTIME_SHIFT).unwrap_or(u64::MAX)
}
