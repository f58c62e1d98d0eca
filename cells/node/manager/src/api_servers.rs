//! The addresses of the API server, which policies select by the entity `kube-apiserver`: the endpoints of the service
//! `default/kubernetes`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ::identity::Prefixes;
use ipcache::{Change, Claim, IpcacheWriter, Mapping, Source};
use k8s_tables::core::EndpointSlice;
use k8s_tables::{Row, SERVICE_NAME};
use statedb::{Snapshot, Table, Watch};

use crate::follow::IN_FLIGHT;

/// The namespace and the name of the service.
const NAMESPACE: &str = "default";
const SERVICE: &str = "kubernetes";
/// The resource of the claims on the ipcache.
const RESOURCE: &str = "service/default/kubernetes";

/// Reads the addresses. Without a table there are none.
pub(crate) struct ApiServers(pub(crate) Option<Arc<Table<Row<EndpointSlice>>>>);

impl ApiServers {
    /// Returns the addresses, `None` until the slices are listed, with a watch on changes.
    pub(crate) fn read(&self, snapshot: &Snapshot) -> (Option<BTreeSet<IpAddr>>, Option<Watch>) {
        let Some(slices) = &self.0 else { return (Some(BTreeSet::new()), None) };
        let (is_listed, listed) = slices.initialized_watch(snapshot);
        if !is_listed {
            return (None, Some(listed));
        }
        let (rows, watch) = slices.prefix_watch(snapshot, Row::in_namespace(NAMESPACE));
        let of_service =
            rows.filter(|row| row.metadata.labels.get(SERVICE_NAME).is_some_and(|name| name == SERVICE));
        let endpoints = of_service.flat_map(|row| &row.endpoints).flat_map(|endpoint| &*endpoint.addresses);
        (Some(endpoints.filter_map(|address| address.parse().ok()).collect()), Some(watch))
    }
}

/// The claims of addresses that no node has: those of an API server outside of the cluster.
pub(crate) struct OutsideServers {
    pub(crate) prefixes: Prefixes,
    pub(crate) ipcache: Arc<IpcacheWriter>,
    /// The addresses with their identities.
    claimed: BTreeMap<IpAddr, u32>,
}

impl OutsideServers {
    pub(crate) fn new(prefixes: Prefixes, ipcache: Arc<IpcacheWriter>) -> OutsideServers {
        OutsideServers { prefixes, ipcache, claimed: BTreeMap::new() }
    }

    /// Makes these the addresses: policy has rows for a new identity before packets carry it, and until no packet carries one
    /// that goes. An error of an allocation leaves the new addresses out; they are tried again with the next change.
    pub(crate) async fn set(&mut self, addresses: BTreeSet<IpAddr>) -> Result<(), ::identity::Error> {
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<IpAddr, u32>) = std::mem::take(&mut self.claimed)
            .into_iter()
            .partition(|(address, _)| addresses.contains(address));
        self.claimed = kept;
        let new: Vec<IpAddr> =
            addresses.into_iter().filter(|address| !self.claimed.contains_key(address)).collect();
        if gone.is_empty() && new.is_empty() {
            return Ok(());
        }
        let (allocator, wanted) = (self.prefixes.clone(), new.clone());
        let allocated = hive::blocking(move || allocator.allocate_api_servers(&wanted)).await;
        let ids = allocated.as_deref().unwrap_or_default();
        let new: BTreeMap<IpAddr, u32> = new.into_iter().zip(ids.iter().copied()).collect();
        if !new.is_empty() {
            self.prefixes.of_nodes().policy_follows().await;
        }
        let deletes = gone
            .keys()
            .map(|address| Change::Delete((*address).into(), Source::KubeApiServer, RESOURCE.into()));
        let upserts = new.iter().map(|(address, id)| {
            let (source, resource) = (Source::KubeApiServer, RESOURCE.into());
            Change::Upsert((*address).into(), Claim { source, resource, mapping: Mapping::identity(*id) })
        });
        let revision = self.ipcache.apply(deletes.chain(upserts));
        self.claimed.extend(new);
        // An error means that the agent stops: the identities stay as they are.
        if !gone.is_empty() && self.ipcache.applied(revision, &[]).await.is_ok() {
            tokio::time::sleep(IN_FLIGHT).await;
            let (allocator, ids) = (self.prefixes.clone(), gone.into_values().collect::<Vec<_>>());
            hive::blocking(move || allocator.release_api_servers(&ids)).await;
        }
        allocated.map(drop)
    }
}
