//! Operations that store a unique key of another row: the row is not changed except for the error, and is retried.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use reconciler::{
    AsyncOps, Handle, OpCx, OpResult, Operations, Ops, Reconciler, Report, Status, StatusField, StatusKind,
};
use serde::Serialize;
use statedb::{Db, Index, Obj, Query, Rows, RwTable, Table};
use tokio::task::JoinSet;

use crate::world::{Fault, MS, Target, degraded, pass};

/// An object with a unique handle, which the target sets.
#[derive(Clone, Debug, Serialize, Table)]
#[table(name = "leases", index(BY_HANDLE))]
pub(crate) struct Lease {
    #[primary]
    pub(crate) id: u32,
    pub(crate) via: String,
    /// None until the target has set it.
    pub(crate) handle: Option<u32>,
    pub(crate) status: Status,
}

const BY_HANDLE: Index<Lease, u32> =
    Index::unique("handle", |lease, keys| lease.handle.iter().for_each(|handle| keys.add(handle)));

pub(crate) fn lease(id: u32, via: &str) -> Lease {
    Lease { id, via: via.to_owned(), handle: None, status: Status::pending() }
}

/// A target that sets the handle of each object, by default a unique one, before it injects faults.
#[derive(Clone, Default)]
pub(crate) struct Lender {
    pub(crate) target: Target,
    pub(crate) handles: Arc<Mutex<BTreeMap<u32, u32>>>,
}

impl Lender {
    pub(crate) fn lend(&self, id: u32, handle: u32) {
        self.handles.lock().insert(id, handle);
    }

    pub(crate) fn heal(&self) {
        self.handles.lock().clear();
        self.target.heal();
    }
}

/// Returns the default handle of an object.
pub(crate) fn own_handle(id: u32) -> u32 {
    id + 1_000_000
}

impl Ops<Lease> for Lender {
    fn update(&mut self, _: &OpCx<'_>, lease: &mut Lease) -> OpResult {
        let handle = self.handles.lock().get(&lease.id).copied();
        lease.handle = Some(handle.unwrap_or(own_handle(lease.id)));
        self.target.check("update", lease.id)?;
        self.target.0.lock().rows.insert(lease.id, lease.via.clone());
        Ok(())
    }

    fn delete(&mut self, _: &OpCx<'_>, lease: &Lease) -> OpResult {
        self.target.check("delete", lease.id)?;
        self.target.0.lock().rows.remove(&lease.id);
        Ok(())
    }

    fn prune(&mut self, _: &OpCx<'_>, _: Rows<'_, Lease>) -> OpResult {
        Ok(())
    }
}

/// The same target with a delay.
struct Slow(Lender);

impl AsyncOps<Lease> for Slow {
    fn update<'a>(&'a mut self, cx: &'a OpCx<'a>, lease: &'a mut Lease) -> BoxFuture<'a, OpResult> {
        Box::pin(async move {
            tokio::time::sleep(10 * MS).await;
            self.0.update(cx, lease)
        })
    }

    fn delete<'a>(&'a mut self, cx: &'a OpCx<'a>, lease: &'a Lease) -> BoxFuture<'a, OpResult> {
        Box::pin(async move { self.0.delete(cx, lease) })
    }

    fn prune<'a>(&'a mut self, _: &'a OpCx<'a>, _: Vec<Obj<Lease>>) -> BoxFuture<'a, OpResult> {
        Box::pin(async { Ok(()) })
    }
}

type Ready = reconciler::Builder<Lease, StatusField<Lease>, Operations<Lease>>;

struct Leases {
    table: RwTable<Lease>,
    lender: Lender,
    reports: Arc<Mutex<Vec<Report>>>,
    tasks: JoinSet<()>,
}

impl Leases {
    fn new() -> Self {
        let table = Db::new().table().unwrap();
        Leases { table, lender: Lender::default(), reports: Arc::default(), tasks: JoinSet::new() }
    }

    fn builder(&self) -> Ready {
        leases_builder(&self.table).ops(self.lender.clone())
    }

    fn run(&mut self, builder: Ready) -> Handle {
        let reports = self.reports.clone();
        let (handle, reconciler) = builder.report(move |report| reports.lock().push(report)).build();
        self.tasks.spawn(reconciler.run());
        handle
    }

    fn put(&self, lease: Lease) -> u64 {
        let (_, snapshot) = self.table.transact(|w| drop(w.try_insert(lease).unwrap()));
        self.table.revision(&snapshot)
    }

    fn get(&self, id: u32) -> Lease {
        (**self.table.get(&self.table.snapshot(), Query::primary(id)).unwrap()).clone()
    }
}

pub(crate) fn leases_builder(table: &RwTable<Lease>) -> reconciler::Builder<Lease, StatusField<Lease>> {
    Reconciler::builder(table.clone())
        .status(|lease: &Lease| &lease.status, |lease, status| lease.status = status)
        .prune(Duration::ZERO)
        .refresh(Duration::ZERO, 1)
}

const CONFLICT: &str = "table `leases`: another object has the same key of unique index `handle`";

#[tokio::test(start_paused = true)]
async fn an_object_with_a_unique_key_conflict_fails_and_is_retried() {
    let mut leases = Leases::new();
    let handle = leases.run(leases.builder());
    leases.lender.lend(1, 5);
    leases.lender.lend(2, 5);
    leases.put(lease(1, "a"));
    let revision = leases.put(lease(2, "a"));
    let progress = handle.wait_until(revision).await.unwrap();
    assert_eq!((progress.failing_since, progress.is_ok(revision)), (Some(revision), false));
    pass(MS).await;
    let refused = leases.get(2);
    assert_eq!((refused.status.kind(), refused.status.error()), (StatusKind::Error, Some(CONFLICT)));
    assert_eq!((refused.handle, refused.via.as_str()), (None, "a"), "the row as it was");
    assert_eq!(leases.get(1).handle, Some(5));
    assert_eq!(leases.reports.lock().last(), Some(&degraded(1, CONFLICT)));
    let counts = || (handle.metrics().errors.value(), handle.metrics().errors_current.value());
    assert_eq!(counts(), (1, 1));
    leases.lender.target.take_log();
    pass(300 * MS).await;
    assert_eq!(leases.lender.target.take_log(), ["update 2"], "tried again after 200 ms");
    assert_eq!(counts(), (2, 1));
    // The handle becomes free: a retry succeeds.
    leases.table.transact(|w| w.delete(Query::primary(1u32)));
    handle.wait_until_ok(revision).await.unwrap();
    pass(MS).await;
    assert_eq!((leases.get(2).handle, leases.get(2).status.is_done()), (Some(5), true));
    assert_eq!(leases.reports.lock().last(), Some(&Report::Ok("OK, 1 object(s)".into())));
    assert_eq!(counts().1, 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_operation_with_a_unique_key_conflict_is_retried() {
    let mut leases = Leases::new();
    let handle = leases.run(leases.builder());
    leases.lender.lend(1, 5);
    leases.lender.lend(2, 5);
    leases.lender.target.set(2, Fault::Fail);
    leases.put(lease(1, "a"));
    let revision = leases.put(lease(2, "a"));
    handle.wait_until(revision).await.unwrap();
    pass(MS).await;
    let failed = leases.get(2);
    assert_eq!(failed.status.error(), Some("update of 2 refused"), "the operation's own error");
    assert_eq!((failed.handle, handle.metrics().errors.value()), (None, 1));
    leases.lender.target.heal();
    pass(250 * MS).await;
    assert_eq!(leases.get(2).status.error(), Some(CONFLICT), "tried again after 200 ms");
    leases.lender.lend(2, 6);
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(leases.get(2).handle, Some(6));
}

#[tokio::test(start_paused = true)]
async fn a_merged_object_with_a_unique_key_conflict_keeps_concurrent_writes() {
    for fails in [false, true] {
        let mut leases = Leases::new();
        let builder = leases_builder(&leases.table).async_ops(Slow(leases.lender.clone()));
        let handle = leases.run(builder.merge(|current, reconciled| current.handle = reconciled.handle));
        leases.lender.lend(1, 5);
        leases.lender.lend(2, 5);
        let revision = leases.put(lease(1, "a"));
        handle.wait_until_ok(revision).await.unwrap();
        if fails {
            leases.lender.target.set(2, Fault::Fail);
        }
        let revision = leases.put(lease(2, "a"));
        pass(5 * MS).await;
        // Another field is written while the operation is in flight: the status is still the one being reconciled.
        leases.put(Lease { via: "b".into(), ..leases.get(2) });
        handle.wait_until(revision).await.unwrap();
        pass(MS).await;
        let refused = leases.get(2);
        let error = if fails { "update of 2 refused" } else { CONFLICT };
        assert_eq!((refused.status.error(), refused.via.as_str()), (Some(error), "b"));
        assert_eq!((refused.handle, handle.progress().is_ok(revision)), (None, false));
        leases.lender.target.heal();
        leases.lender.lend(2, 6);
        handle.wait_until_ok(revision).await.unwrap();
        assert_eq!(leases.get(2).handle, Some(6));
        assert_eq!(leases.lender.target.0.lock().rows[&2], "b");
    }
}

#[tokio::test(start_paused = true)]
async fn a_merge_that_changes_the_primary_key_moves_no_row() {
    let mut leases = Leases::new();
    let builder = leases_builder(&leases.table).async_ops(Slow(leases.lender.clone()));
    let handle = leases.run(builder.merge(|current, _| current.id += 100));
    let revision = leases.put(lease(1, "a"));
    pass(5 * MS).await;
    leases.put(Lease { via: "b".into(), ..leases.get(1) });
    handle.wait_until(revision).await.unwrap();
    pass(MS).await;
    assert_eq!(leases.get(1).status.error(), Some("merge changed the primary key"));
    assert_eq!(leases.table.len(&leases.table.snapshot()), 1);
    handle.wait_until_ok(revision).await.unwrap();
}
