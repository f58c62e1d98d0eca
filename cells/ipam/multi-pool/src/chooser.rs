//! The tables behind the choice of a pool.

use std::fmt;
use std::sync::Arc;

use ipam::{ChoosePool, Error, Family};
use k8s_tables::Row;
use k8s_types::cilium::CiliumPodIPPool;
use k8s_types::core::{Namespace, Pod};
use statedb::Table;

use crate::choice::{self, Facts};
use crate::waiting::Waiting;

/// The annotation of a pool that leaves the cluster without masquerading.
const SKIP_MASQUERADE: &str = "ipam.cilium.io/skip-masquerade";

/// Chooses by tables of the cluster's objects.
pub(crate) struct TableChooser {
    pub(crate) default_pool: Arc<str>,
    pub(crate) only_default_is_masqueraded: bool,
    pub(crate) pods: Arc<Table<Row<Pod>>>,
    pub(crate) namespaces: Arc<Table<Row<Namespace>>>,
    pub(crate) pools: Arc<Table<Row<CiliumPodIPPool>>>,
    pub(crate) waiting: Arc<Waiting>,
}

impl fmt::Debug for TableChooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableChooser").field("default_pool", &self.default_pool).finish_non_exhaustive()
    }
}

impl ChoosePool for TableChooser {
    fn default_pool(&self) -> Arc<str> {
        self.default_pool.clone()
    }

    fn choose(&self, owner: &str, family: Family) -> Result<Arc<str>, Error> {
        let Some((namespace, name)) = choice::pod_name(owner) else { return Ok(self.default_pool.clone()) };
        let snapshot = self.pools.snapshot();
        if !self.pools.initialized(&snapshot) {
            return Err(Error::PoolsNotSynced);
        }
        let facts = Facts {
            pod: self.pods.get(&snapshot, Row::by_name(namespace, name)).map(|row| &row.object),
            namespace: self.namespaces.get(&snapshot, Row::by_name("", namespace)).map(|row| &row.object),
        };
        let pools = self.pools.all(&snapshot).map(|row| &**row);
        let chosen = choice::choose((namespace, name), family, facts, pools)?;
        Ok(chosen.map_or_else(|| self.default_pool.clone(), |pool| pool.as_str().into()))
    }

    fn skips_masquerade(&self, pool: &str) -> bool {
        let snapshot = self.pools.snapshot();
        let object = self.pools.get(&snapshot, Row::by_name("", pool));
        let annotation = object.and_then(|object| object.metadata.annotations.get(SKIP_MASQUERADE));
        annotation.is_some_and(|value| value == "true")
            || (self.only_default_is_masqueraded && *pool != *self.default_pool)
    }

    fn wait(&self, pool: &Arc<str>, family: Family, owner: &str) {
        self.waiting.insert(pool, family, owner);
    }

    fn served(&self, pool: &Arc<str>, family: Family, owner: &str) {
        self.waiting.remove(pool, family, owner);
    }
}
