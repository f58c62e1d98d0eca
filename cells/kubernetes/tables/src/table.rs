//! Tables that are kept equal to sources.

use std::sync::Arc;

use hive::Param;
use hive::prelude::*;
use statedb::{RwTable, Table};

use k8s_types::{Selection, Source};

use crate::numbers::Numbers;
use crate::page::page;
use crate::reflect::Reflection;
use crate::row::{Reflected, Row, Tabled};
use crate::sources::Sources;

/// The table of a type of objects, for the list of cells of a module: rows [`Row<T>`](Row) of all [`Source`]s of the hive
/// (members of `Group<Arc<dyn Source>>`) that have the kind. Readers take `Arc<Table<Row<T>>>`.
///
/// It is complete when each of them has been listed once; without any it is complete and empty. A job for each keeps it so:
/// a list is a difference, an object that is wrong keeps its last good version, and one that two sources have is the
/// one's that had it first.
pub fn table<T: Tabled>() -> Cell {
    selected::<T, _>(|()| Selection::all(T::KIND))
}

/// The same of the objects that a function selects, by whatever it asks the hive for.
pub fn selected<T: Tabled, P: Param>(select: impl Fn(P) -> Selection + Send + Sync + 'static) -> Cell {
    let reflect = move |wanted: P, table: Arc<RwTable<Row<T>>>, sources: Reflecting| {
        sources.reflect(&table, T::TABLE, select(wanted));
    };
    let list = |table: Arc<Table<Row<T>>>| Member(page(T::TABLE, T::KIND, (*table).clone()));
    bundle([statedb::table::<Row<T>>(), provide(list), invoke(reflect)])
}

/// The same of all objects, if a function returns true for its dependency: an option of the feature that reads them.
/// Without it the table is complete and empty, and no source is asked.
pub fn optional<T: Tabled, P: Param>(is_enabled: impl Fn(P) -> bool + Send + Sync + 'static) -> Cell {
    let reflect = move |options: P, table: Arc<RwTable<Row<T>>>, sources: Reflecting| {
        if is_enabled(options) {
            sources.reflect(&table, T::TABLE, Selection::all(T::KIND));
        }
    };
    let list = |table: Arc<Table<Row<T>>>| Member(page(T::TABLE, T::KIND, (*table).clone()));
    bundle([statedb::table::<Row<T>>(), provide(list), invoke(reflect)])
}

/// Dependencies of a table's jobs.
#[derive(Params)]
pub(crate) struct Reflecting {
    sources: Group<Arc<dyn Source>>,
    refresh: Option<Arc<Sources>>,
    numbers: Option<Arc<Numbers>>,
    jobs: JobGroup,
}

impl Reflecting {
    /// A job for each source.
    pub(crate) fn reflect<R: Reflected>(&self, table: &Arc<RwTable<R>>, name: &str, selection: Selection) {
        let numbers = self.numbers.as_deref().cloned().unwrap_or_default();
        for source in self.sources.iter().filter(|source| source.has(selection.kind)) {
            let job = format!("k8s-reflector-{name}-{}", source.name());
            let reflection =
                Reflection::new(source.clone(), selection.clone(), (**table).clone(), numbers.clone());
            let requests = self.refresh.as_deref().cloned().unwrap_or_default().join_table();
            self.jobs.one_shot(job, move |cx| reflection.run(requests, cx)).add();
        }
    }
}
