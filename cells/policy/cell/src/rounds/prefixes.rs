//! The prefixes that rules name: their identities, and this cell's claims on the ipcache.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use identity::Prefixes;
use ipcache::{Change, Claim, Entry, IpcacheWriter, Mapping, NotApplied, Source};
use ipnetwork::IpNetwork;
use statedb::Initializer;

/// The resource of this cell's claims in the ipcache.
const RESOURCE: &str = "policy";
/// An upper bound of the time between a program's lookup in the ipcache and its lookup in the policy map: rows of an
/// identity are kept at least this long after the ipcache has lost it.
const IN_FLIGHT: Duration = Duration::from_millis(1);

/// Identities of prefixes, allocated and published.
pub(crate) struct PolicyPrefixes {
    pub(crate) allocator: Arc<Prefixes>,
    pub(crate) ipcache: Arc<IpcacheWriter>,
    /// Completed when the prefixes of the first rules are in the ipcache, which prunes nothing before that.
    pub(crate) initializer: Option<Initializer<Entry>>,
}

impl PolicyPrefixes {
    /// Allocates identities for all prefixes, or for none on an error.
    pub(crate) async fn allocate(
        &self,
        prefixes: Vec<IpNetwork>,
    ) -> Result<BTreeMap<IpNetwork, u32>, identity::Error> {
        let allocator = self.allocator.clone();
        hive::blocking(move || allocator.allocate(&prefixes)).await
    }

    /// Upserts prefixes into the ipcache and waits until the kernel has them.
    pub(crate) async fn publish(&self, identities: &BTreeMap<IpNetwork, u32>) -> Result<(), NotApplied> {
        let prefixes: Vec<IpNetwork> = identities.keys().copied().collect();
        let resource: Arc<str> = RESOURCE.into();
        let claim = |identity| Claim {
            source: Source::Generated,
            resource: resource.clone(),
            mapping: Mapping::identity(identity),
        };
        let changes = identities.iter().map(|(prefix, id)| Change::Upsert(*prefix, claim(*id)));
        let revision = self.ipcache.apply(changes);
        match self.ipcache.applied(revision, &prefixes).await {
            // The ipcache retries and reports it: rules that do not name the prefix must not wait.
            Err(error @ NotApplied::Refused { .. }) => {
                tracing::warn!(%error, "Prefixes of policies do not take effect yet");
            }
            other => other?,
        }
        tokio::time::sleep(IN_FLIGHT).await;
        Ok(())
    }

    /// Releases prefixes: from the ipcache first, then their identities, so that no packet carries an identity that may
    /// be assigned to another prefix.
    pub(crate) async fn release(&self, prefixes: Vec<IpNetwork>) -> Result<(), NotApplied> {
        if prefixes.is_empty() {
            return Ok(());
        }
        let delete = |prefix: &IpNetwork| Change::Delete(*prefix, Source::Generated, RESOURCE.into());
        let revision = self.ipcache.apply(prefixes.iter().map(delete));
        self.ipcache.applied(revision, &[]).await?;
        tokio::time::sleep(IN_FLIGHT).await;
        let allocator = self.allocator.clone();
        hive::blocking(move || allocator.release(&prefixes)).await;
        Ok(())
    }

    /// Completes the initializer: the prefixes of all rules are in the ipcache.
    pub(crate) fn complete(&mut self) {
        if let Some(initializer) = self.initializer.take() {
            self.ipcache.complete(initializer);
        }
    }
}
