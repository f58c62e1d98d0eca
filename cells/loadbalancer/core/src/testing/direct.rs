//! The path from cluster objects to the maps, without a hive.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_tables::Row;
use k8s_tables::core::{EndpointSlice, Service as Manifest};
use reconciler::{Handle, Reconciler};
use statedb::{Db, RwTable};

use crate::config::ServicesConfig;
use crate::lbmap::rows::{LbMaps, MapError};
use crate::metrics::Events;
use crate::model::families::Families;
use crate::reconciler::balancer::Balancer;
use crate::reconciler::desired::Settings;
use crate::reconciler::operations::{LbOps, ReconcileContext, Unserved};
use crate::reflectors::objects::Reflector;
use crate::writer::select::Place;
use crate::writer::services_writer::{NodeInfo, Rules, ServicesWriter};

/// The tables of objects, the reflector, the writer and the reconciler with the agent's default options; each step runs
/// when a test requests it.
pub struct Direct {
    /// Services of the cluster.
    pub services: RwTable<Row<Manifest>>,
    /// Their endpoints.
    pub slices: RwTable<Row<EndpointSlice>>,
    writer: ServicesWriter,
    reflector: Reflector,
    handle: Handle,
}

/// Returns a writer to tables of services without a reconciler, of both families and with the default rules. Other
/// tables of the same database: `writer().services().db()`.
pub fn writer() -> Result<ServicesWriter, MapError> {
    let db = Db::new();
    let (services, frontends, backends) = (db.table()?, db.table()?, db.table()?);
    let place = || Place { node: "node".to_owned(), ..Place::default() };
    let (node_info, rules) = (NodeInfo::new(place, BTreeSet::new), Rules::default());
    let families = Families { v4: true, v6: true };
    let events = Events::default();
    Ok(ServicesWriter::new(services, frontends, backends, node_info, families, rules, events))
}

impl Direct {
    /// Restores the maps, with empty tables, and runs the reconciler until `work` is done. The tables are complete
    /// after the first [`reflect`](Self::reflect).
    pub async fn run(maps: Arc<dyn LbMaps>, work: impl AsyncFnOnce(&mut Direct)) -> Result<(), MapError> {
        let (writer, families) = (writer()?, Families { v4: true, v6: true });
        let services = writer.services();
        let (manifests, slices): (RwTable<Row<Manifest>>, RwTable<Row<EndpointSlice>>) =
            (services.db().table()?, services.db().table()?);
        let objects = (manifests.reader(), slices.reader());
        let reflector = Reflector::new(writer.clone(), objects, families, String::new(), BTreeMap::new);
        let settings = Settings::from_config(&ServicesConfig::default());
        let context = ReconcileContext { settings, addresses: None, frontends: writer.frontends() };
        let balancer = Balancer::restore(maps)?;
        let ops = LbOps { balancer, comparisons: Arc::default(), context, unserved: Unserved::default() };
        let (handle, reconciler) = Reconciler::builder(writer.frontends_for_statuses())
            .status(|frontend| &frontend.status, |frontend, status| frontend.status = status)
            .merge(|current, reconciled| current.id = reconciled.id)
            .batch_ops(ops)
            .round(1000, 1_000_000, 1000)
            .refresh(Duration::ZERO, 1)
            .build();
        let mut direct = Direct { services: manifests, slices, writer, reflector, handle };
        reconciler.run_until(work(&mut direct)).await;
        Ok(())
    }

    /// Returns the writer of the tables.
    pub fn writer(&self) -> &ServicesWriter {
        &self.writer
    }

    /// Reflects the changes of the objects.
    pub fn reflect(&mut self) {
        while self.reflector.round().more {}
    }

    /// Waits until the current state of all frontends is in the maps, and their statuses are done.
    pub async fn reconciled(&self) {
        let table = self.writer.frontends();
        let revision = table.revision(&table.snapshot());
        // `None` means that it has stopped, which does not happen before the work is done.
        let _ = self.handle.wait_until_ok(revision).await;
    }

    /// Waits until the maps were pruned.
    pub async fn pruned(&self) {
        let _ = self.handle.pruned().await;
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").field("writer", &self.writer.frontends()).finish_non_exhaustive()
    }
}
