//! Tables and maps without a hive.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use statedb::Db;

use crate::balancer::Balancer;
use crate::convert::Families;
use crate::desired::Settings;
use crate::metrics::Events;
use crate::reconcile::{LbOps, Surroundings, Unserved};
use crate::rows::{LbMaps, MapError};
use crate::select::Place;
use crate::writer::{Questions, Rules, ServicesWriter};

/// Does what the reconciler does, when it is told to.
pub struct Direct {
    writer: ServicesWriter,
    ops: LbOps,
    /// The latest change that is in the maps.
    revision: u64,
}

impl Direct {
    /// Empty tables; the maps are taken over.
    pub fn new(maps: Arc<dyn LbMaps>) -> Result<Direct, MapError> {
        let db = Db::new();
        let families = Families { v4: true, v6: true };
        let (services, frontends, backends) = (db.table()?, db.table()?, db.table()?);
        let place = || Place { node: "node".to_owned(), zone: None };
        let (questions, rules) = (Questions::new(place, BTreeSet::new), Rules::default());
        let writer =
            ServicesWriter::new(services, frontends, backends, questions, families, rules, Events::default());
        let surroundings =
            Surroundings { settings: Settings::default(), addresses: None, frontends: writer.frontends() };
        let balancer = Balancer::restore(maps)?;
        let ops =
            LbOps { balancer, comparisons: Arc::default(), surroundings, unserved: Unserved::default() };
        Ok(Direct { writer, ops, revision: 0 })
    }

    /// Where changes come from.
    pub fn writer(&self) -> &ServicesWriter {
        &self.writer
    }

    /// Brings in the frontends that have changed since the last time, a thousand at a time; gives how many there were.
    pub fn reconcile(&mut self) -> Result<usize, MapError> {
        let (table, snapshot) = (self.writer.frontends(), self.writer.frontends().snapshot());
        let changed: Vec<_> = table.by_revision(&snapshot, self.revision + 1).cloned().collect();
        for batch in changed.chunks(1000) {
            let results = self.ops.bring(&snapshot, batch.iter().map(|frontend| &**frontend));
            results.into_iter().try_for_each(|result| result.map(drop))?;
        }
        self.revision = changed.last().map_or(self.revision, |frontend| frontend.revision());
        Ok(changed.len())
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").field("revision", &self.revision).finish_non_exhaustive()
    }
}
