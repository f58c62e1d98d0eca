//! Random orders of writes, deletes, faults of the target and conflicts of the handles that it sets, compared at each
//! step with a naive model of the reconciler.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use reconciler::StatusKind;
use statedb::{Db, Query, RwTable};
use tokio::task::JoinSet;

use crate::conflicts::{Lease, Lender, lease, leases_builder, own_handle};
use crate::world::*;

/// The time between steps in ms: no retry of any step is due near another step (200, 600, 1400, ... ms after it).
const STEP: u64 = 530;

#[derive(Clone, Debug)]
enum Step {
    /// First object, count, version.
    Put(u32, u32, u8),
    Delete(u32, u32),
    /// Every n-th object fails from now on, or panics.
    Fault(u32, bool),
    /// First object, count, handle: the target sets the same handle for all of them; since it is unique, only one of
    /// them can store it.
    Lend(u32, u32, u32),
    Heal,
    /// A pause of a number of steps.
    Rest(u64),
}

fn step(objects: u32) -> impl Strategy<Value = Step> {
    let some = move || (0..objects, 1..=objects / 3 + 1);
    prop_oneof![
        4 => (some(), any::<u8>()).prop_map(|((from, count), version)| Step::Put(from, count, version)),
        2 => some().prop_map(|(from, count)| Step::Delete(from, count)),
        2 => (2..7u32).prop_map(|nth| Step::Fault(nth, false)),
        1 => (700..999u32).prop_map(|nth| Step::Fault(nth, true)),
        2 => (some(), 0..3u32).prop_map(|((from, count), handle)| Step::Lend(from, count, handle)),
        1 => Just(Step::Heal),
        2 => (1..20u64).prop_map(Step::Rest),
    ]
}

/// The model: one operation on one object at a time.
#[derive(Default)]
struct Naive {
    /// Versions and stored handles by id.
    rows: BTreeMap<u32, (String, Option<u32>)>,
    /// The row of each stored handle.
    owners: BTreeMap<u32, u32>,
    target: BTreeMap<u32, String>,
    faults: BTreeMap<u32, Fault>,
    /// The handles that the target sets in place of the default ones.
    handles: BTreeMap<u32, u32>,
    /// Due time and number of failures by id; ids without a row are failed deletes.
    retries: BTreeMap<u32, (u64, u32)>,
    operations: u64,
    errors: u64,
}

impl Naive {
    fn attempt(&mut self, id: u32, now: u64) {
        self.operations += 1;
        let well = !self.faults.contains_key(&id);
        let stored = self.store_handle(id);
        if well {
            match self.rows.get(&id) {
                Some((via, _)) => drop(self.target.insert(id, via.clone())),
                None => drop(self.target.remove(&id)),
            }
        }
        if well && stored {
            self.retries.remove(&id);
        } else {
            self.errors += 1;
            let failures = self.retries.get(&id).map_or(1, |(_, failures)| failures + 1);
            self.retries.insert(id, (now + (100 << failures).min(60_000), failures));
        }
    }

    /// Stores the object's handle, also for failing operations. Returns false if another row has the handle.
    fn store_handle(&mut self, id: u32) -> bool {
        let Some((_, stored)) = self.rows.get_mut(&id) else { return true };
        let handle = self.handles.get(&id).copied().unwrap_or(own_handle(id));
        let free = *self.owners.entry(handle).or_insert(id) == id;
        if free && let Some(released) = stored.replace(handle).filter(|released| *released != handle) {
            self.owners.remove(&released);
        }
        free
    }

    fn put(&mut self, id: u32, version: u8) {
        self.delete(id);
        self.rows.insert(id, (version.to_string(), None));
    }

    fn delete(&mut self, id: u32) -> bool {
        let row = self.rows.remove(&id);
        if let Some((_, Some(handle))) = &row {
            self.owners.remove(handle);
        }
        row.is_some()
    }

    fn written(&mut self, id: u32, now: u64) {
        self.retries.remove(&id);
        self.attempt(id, now);
    }

    fn pass_until(&mut self, until: u64) {
        while let Some((id, due)) =
            self.retries.iter().map(|(id, (due, _))| (*id, *due)).min_by_key(|(_, due)| *due)
            && due < until
        {
            self.attempt(id, due);
        }
    }
}

async fn compare(objects: u32, steps: Vec<Step>) {
    let table: RwTable<Lease> = Db::new().table().unwrap();
    let lender = Lender::default();
    let builder = leases_builder(&table).ops(lender.clone()).round(100_000, 1_000_000, 1000);
    let (handle, reconciler) = builder.build();
    let mut tasks = JoinSet::new();
    tasks.spawn(reconciler.run());
    let (mut naive, mut now) = (Naive::default(), 0);
    for step in steps {
        let ids = |from: u32, count: u32| (from..from + count).map(move |id| id % objects);
        let mut rest = 1;
        match step {
            Step::Put(from, count, version) => {
                table.transact(|w| {
                    for id in ids(from, count) {
                        w.try_insert(lease(id, &version.to_string())).expect("a row without a handle");
                        naive.put(id, version);
                    }
                });
                ids(from, count).for_each(|id| naive.written(id, now));
            }
            Step::Delete(from, count) => {
                let there: Vec<u32> = ids(from, count).filter(|id| naive.delete(*id)).collect();
                table.transact(|w| {
                    for id in ids(from, count) {
                        w.delete(Query::primary(id));
                    }
                });
                there.into_iter().for_each(|id| naive.written(id, now));
            }
            Step::Fault(nth, panics) => {
                let fault = if panics { Fault::Panic } else { Fault::Fail };
                naive.faults.extend((0..objects).step_by(nth as usize).map(|id| (id, fault)));
                lender.target.0.lock().faults.clone_from(&naive.faults);
            }
            Step::Lend(from, count, handle) => {
                naive.handles.extend(ids(from, count).map(|id| (id, handle)));
                lender.handles.lock().clone_from(&naive.handles);
            }
            Step::Heal => {
                naive.faults.clear();
                naive.handles.clear();
                lender.heal();
            }
            Step::Rest(steps) => rest = steps,
        }
        pass(Duration::from_millis(rest * STEP)).await;
        now += rest * STEP;
        naive.pass_until(now);
        assert_eq!(lender.target.0.lock().rows, naive.target);
        let snapshot = table.snapshot();
        let rows = table.all(&snapshot).map(|lease| (lease.id, (lease.via.clone(), lease.handle)));
        assert_eq!(rows.collect::<BTreeMap<_, _>>(), naive.rows);
        let failing = table.all(&snapshot).filter(|lease| lease.status.kind() == StatusKind::Error);
        let failing_rows = naive.retries.keys().filter(|id| naive.rows.contains_key(id));
        assert!(failing.map(|lease| &lease.id).eq(failing_rows), "failing rows say so");
        let metrics = handle.metrics();
        assert_eq!(
            (metrics.objects.value(), metrics.errors.value(), metrics.errors_current.value() as usize),
            (naive.operations, naive.errors, naive.retries.len())
        );
    }
    lender.heal();
    let revision = table.revision(&table.snapshot());
    handle.wait_until_ok(revision).await.unwrap();
    let rows: BTreeMap<u32, String> = naive.rows.into_iter().map(|(id, (via, _))| (id, via)).collect();
    assert_eq!(lender.target.0.lock().rows, rows, "all is well in the end");
    let snapshot = table.snapshot();
    assert!(table.all(&snapshot).all(|lease| lease.status.is_done()));
}

fn run(objects: u32, steps: Vec<Step>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(compare(objects, steps));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn few_objects_are_reconciled_when_the_model_expects(steps in prop::collection::vec(step(6), 1..40)) {
        run(6, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4) })]

    #[test]
    fn ten_thousand_objects_with_failures_converge(steps in prop::collection::vec(step(10_000), 3..8)) {
        run(10_000, steps);
    }
}
