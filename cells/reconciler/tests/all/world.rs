//! A table of routes with two statuses, and a target with fault injection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use reconciler::{
    AsyncOps, BatchEntry, BatchOps, Builder, Handle, OpCx, OpResult, Operations, Ops, Reconciler, Report,
    Status, StatusField,
};
use serde::Serialize;
use statedb::{Db, Obj, Query, Rows, RwTable, TableDisplay, TableSpec};
use tokio::task::JoinSet;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Route {
    pub(crate) id: u32,
    pub(crate) via: String,
    /// Set by the target.
    pub(crate) handle: u32,
    pub(crate) status: Status,
    pub(crate) other: Status,
}

impl TableSpec for Route {
    const NAME: &'static str = "routes";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.id
    }
}

impl TableDisplay for Route {
    fn columns() -> &'static [&'static str] {
        &["ID", "Via", "Status"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.via.clone(), self.status.to_string()]
    }
}

/// A fault that the target injects into the operations on one object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    Fail,
    Panic,
    Slow(Duration),
    /// Hangs until the fault is changed.
    Hang,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) rows: BTreeMap<u32, String>,
    pub(crate) faults: BTreeMap<u32, Fault>,
    pub(crate) prune_fails: bool,
    /// A fault of prunes, in addition.
    pub(crate) prune_fault: Option<Fault>,
    /// The calls, in order.
    pub(crate) log: Vec<String>,
}

/// A stand-in for a kernel map.
#[derive(Clone, Default)]
pub(crate) struct Target(pub(crate) Arc<Mutex<State>>);

impl Target {
    pub(crate) fn set(&self, id: u32, fault: Fault) {
        self.0.lock().faults.insert(id, fault);
    }

    pub(crate) fn heal(&self) {
        let mut state = self.0.lock();
        state.faults.clear();
        (state.prune_fails, state.prune_fault) = (false, None);
    }

    pub(crate) fn rows(&self) -> Vec<u32> {
        self.0.lock().rows.keys().copied().collect()
    }

    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().log)
    }

    /// Blocks the thread while the fault is set. Asynchronous operations have awaited its end before, see
    /// [`SlowTarget`].
    fn hang(&self, fault: impl Fn(&State) -> Option<Fault>) {
        while fault(&self.0.lock()) == Some(Fault::Hang) {
            std::thread::sleep(MS);
        }
    }

    pub(crate) fn check(&self, op: &str, id: u32) -> OpResult {
        self.0.lock().log.push(format!("{op} {id}"));
        self.hang(|state| state.faults.get(&id).copied());
        let state = self.0.lock();
        match state.faults.get(&id) {
            Some(Fault::Fail) => Err(format!("{op} of {id} refused").into()),
            Some(Fault::Panic) => {
                drop(state);
                panic!("{op} of {id} exploded")
            }
            Some(Fault::Slow(_) | Fault::Hang) | None => Ok(()),
        }
    }
}

impl Ops<Route> for Target {
    fn update(&mut self, _: &OpCx<'_>, route: &mut Route) -> OpResult {
        self.check("update", route.id)?;
        route.handle = route.id + 1000;
        self.0.lock().rows.insert(route.id, route.via.clone());
        Ok(())
    }

    fn delete(&mut self, _: &OpCx<'_>, route: &Route) -> OpResult {
        self.check("delete", route.id)?;
        self.0.lock().rows.remove(&route.id);
        Ok(())
    }

    fn prune(&mut self, _: &OpCx<'_>, wanted: Rows<'_, Route>) -> OpResult {
        let wanted: Vec<u32> = wanted.map(|route| route.id).collect();
        self.0.lock().log.push(format!("prune {wanted:?}"));
        self.hang(|state| state.prune_fault);
        let mut state = self.0.lock();
        if state.prune_fails {
            return Err("prune refused".into());
        }
        if state.prune_fault == Some(Fault::Panic) {
            drop(state);
            panic!("prune exploded");
        }
        state.rows.retain(|id, _| wanted.contains(id));
        Ok(())
    }
}

impl BatchOps<Route> for Target {
    fn update_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Route>]) {
        self.0.lock().log.push(format!("updates {}", batch.len()));
        for entry in batch {
            entry.result = self.update(cx, &mut entry.object);
        }
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Route>>]) {
        self.0.lock().log.push(format!("deletes {}", batch.len()));
        for entry in batch {
            entry.result = self.delete(cx, &entry.object);
        }
    }
}

/// The same target with asynchronous operations.
pub(crate) struct SlowTarget(pub(crate) Target);

impl SlowTarget {
    async fn pause(&self, fault: impl Fn(&State) -> Option<Fault>) {
        let now = || fault(&self.0.0.lock());
        if let Some(Fault::Slow(time)) = now() {
            tokio::time::sleep(time).await;
        }
        while now() == Some(Fault::Hang) {
            tokio::time::sleep(MS).await;
        }
    }
}

impl AsyncOps<Route> for SlowTarget {
    fn update<'a>(&'a mut self, cx: &'a OpCx<'a>, route: &'a mut Route) -> BoxFuture<'a, OpResult> {
        Box::pin(async move {
            self.pause(|state| state.faults.get(&route.id).copied()).await;
            self.0.update(cx, route)
        })
    }

    fn delete<'a>(&'a mut self, cx: &'a OpCx<'a>, route: &'a Route) -> BoxFuture<'a, OpResult> {
        Box::pin(async move {
            self.pause(|state| state.faults.get(&route.id).copied()).await;
            self.0.delete(cx, route)
        })
    }

    fn prune<'a>(&'a mut self, _: &'a OpCx<'a>, wanted: Vec<Obj<Route>>) -> BoxFuture<'a, OpResult> {
        Box::pin(async move {
            self.0.0.lock().log.push("prune".to_owned());
            self.pause(|state| state.prune_fault).await;
            let wanted: Vec<u32> = wanted.iter().map(|route| route.id).collect();
            self.0.0.lock().rows.retain(|id, _| wanted.contains(id));
            Ok(())
        })
    }
}

pub(crate) type Ready = Builder<Route, StatusField<Route>, Operations<Route>>;

pub(crate) struct World {
    pub(crate) routes: RwTable<Route>,
    pub(crate) target: Target,
    pub(crate) reports: Arc<Mutex<Vec<Report>>>,
    tasks: JoinSet<()>,
}

impl World {
    pub(crate) fn new() -> Self {
        let routes = Db::new().table().unwrap();
        World { routes, target: Target::default(), reports: Arc::default(), tasks: JoinSet::new() }
    }

    /// Returns a builder on `status` with single operations.
    pub(crate) fn builder(&self) -> Ready {
        Reconciler::builder(self.routes.clone())
            .status(|route: &Route| &route.status, |route, status| route.status = status)
            .ops(self.target.clone())
    }

    /// Starts a reconciler.
    pub(crate) fn run(&mut self, builder: Ready) -> Handle {
        let reports = self.reports.clone();
        let (handle, reconciler) = builder.report(move |report| reports.lock().push(report)).build();
        self.tasks.spawn(reconciler.run());
        handle
    }

    pub(crate) fn put(&self, ids: impl IntoIterator<Item = u32>) -> u64 {
        let (_, snapshot) = self.routes.transact(|w| {
            for id in ids {
                w.insert(route(id, "a"));
            }
        });
        self.routes.revision(&snapshot)
    }

    pub(crate) fn delete(&self, id: u32) -> u64 {
        let (_, snapshot) = self.routes.transact(|w| w.delete(Query::primary(id)));
        self.routes.revision(&snapshot)
    }

    pub(crate) fn get(&self, id: u32) -> Route {
        (**self.routes.get(&self.routes.snapshot(), Query::primary(id)).unwrap()).clone()
    }

    pub(crate) fn stop(&mut self) {
        self.tasks = JoinSet::new();
    }
}

pub(crate) fn route(id: u32, via: &str) -> Route {
    Route { id, via: via.to_owned(), handle: 0, status: Status::pending(), other: Status::done() }
}

/// Returns a report of so many errors.
pub(crate) fn degraded(count: usize, errors: &str) -> Report {
    Report::degraded(format!("{count} error(s)"), errors)
}

/// Runs all tasks that are ready, and lets virtual time pass.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

pub(crate) const MS: Duration = Duration::from_millis(1);
