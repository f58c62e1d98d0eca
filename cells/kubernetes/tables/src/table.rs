//! Tables that mirror sources.

use std::sync::Arc;

use hive::Param;
use hive::prelude::*;
use statedb::{RwTable, Table};

use k8s_types::{Resource as _, Selection, Source};

use crate::numbers::Numbers;
use crate::page::page;
use crate::projection::{Projected, Projection};
use crate::reflect::{Prune, Reflection};
use crate::row::{Reflected, Row, Tabled};
use crate::sources::Sources;

/// Provides the table of a type of objects, in the list of cells of a module: rows [`Row<T>`](Row) of all [`Source`]s
/// of the hive (members of `Group<Arc<dyn Source>>`) that have the kind. Readers take `Arc<Table<Row<T>>>`.
///
/// It is initialized when each of them has been listed once; without any it is initialized and empty. A job for each
/// source keeps the table in step: a list is applied as a difference, an invalid object keeps its last good version,
/// and an object of two sources belongs to the one that had it first.
pub fn table<T: Tabled>() -> Cell {
    selected::<T, _>(|()| Selection::all(T::KIND))
}

/// As [`table()`], for the objects that a function selects, from a dependency of the hive.
pub fn selected<T: Tabled, P: Param>(select: impl Fn(P) -> Selection + Send + Sync + 'static) -> Cell {
    let reflect = move |wanted: P, table: Arc<RwTable<Row<T>>>, sources: Reflecting| {
        sources.reflect(&table, T::TABLE, select(wanted));
    };
    let list = |table: Arc<Table<Row<T>>>| Member(page(T::TABLE, T::KIND, (*table).clone()));
    bundle([statedb::table::<Row<T>>(), provide(list), invoke(reflect)])
}

/// As [`table()`], of rows [`Projected<V>`](Projected), for readers that need a part of each object. A function returns what else
/// is removed from it, from a dependency of the hive. There is no page of the kind.
pub fn projected<V: Projection, P: Param>(prune: impl Fn(P) -> fn(&mut V) + Send + Sync + 'static) -> Cell {
    let reflect = move |options: P, table: Arc<RwTable<Projected<V>>>, sources: Reflecting| {
        let prune = prune(options);
        let prune: Prune<Projected<V>> = Arc::new(move |row: &mut Projected<V>| prune(row.part_mut()));
        sources.reflect_pruned(&table, V::Object::TABLE, Selection::all(V::Object::KIND), &prune);
    };
    bundle([statedb::table::<Projected<V>>(), invoke(reflect)])
}

/// As [`table()`], if a function returns true for its dependency, such as an option of the feature that reads the
/// objects. Otherwise the table is initialized and empty, and no source is watched.
pub fn optional<T: Tabled, P: Param>(is_enabled: impl Fn(P) -> bool + Send + Sync + 'static) -> Cell {
    optional_pruned(is_enabled, |_: &mut T| ())
}

/// As [`optional()`], without the parts of the objects that a function removes, such as what only other readers need.
pub fn optional_pruned<T: Tabled, P: Param>(
    is_enabled: impl Fn(P) -> bool + Send + Sync + 'static,
    prune: fn(&mut T),
) -> Cell {
    let reflect = move |options: P, table: Arc<RwTable<Row<T>>>, sources: Reflecting| {
        if is_enabled(options) {
            let prune: Prune<Row<T>> = Arc::new(move |row: &mut Row<T>| prune(&mut row.object));
            sources.reflect_pruned(&table, T::TABLE, Selection::all(T::KIND), &prune);
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
        self.reflect_pruned(table, name, selection, &(Arc::new(|_: &mut R| ()) as Prune<R>));
    }

    fn reflect_pruned<R: Reflected>(
        &self,
        table: &Arc<RwTable<R>>,
        name: &str,
        selection: Selection,
        prune: &Prune<R>,
    ) {
        let numbers = self.numbers.as_deref().cloned().unwrap_or_default();
        for source in self.sources.iter().filter(|source| source.has(selection.kind)) {
            let job = format!("k8s-reflector-{name}-{}", source.name());
            let reflection =
                Reflection::new(source.clone(), selection.clone(), (**table).clone(), numbers.clone())
                    .prune(prune.clone());
            let requests = self.refresh.as_deref().cloned().unwrap_or_default().join_table();
            self.jobs.one_shot(job, move |cx| reflection.run(requests, cx)).add();
        }
    }
}
