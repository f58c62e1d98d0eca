//! Any order of writes, deletes and moods of the target against a naive model of what a reconciler does when.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use statedb::Query;

use crate::world::*;

/// Between steps: no retry of any step falls near another step (they come 200, 600, 1400, ... ms after it).
const STEP: u64 = 530;

#[derive(Clone, Debug)]
enum Step {
    /// From which object on, how many, in which version.
    Put(u32, u32, u8),
    Delete(u32, u32),
    /// Every so many-th object fails from now on, or panics.
    Mood(u32, bool),
    Heal,
    /// So many steps without any.
    Rest(u64),
}

fn step(objects: u32) -> impl Strategy<Value = Step> {
    let some = move || (0..objects, 1..=objects / 3 + 1);
    prop_oneof![
        4 => (some(), any::<u8>()).prop_map(|((from, count), version)| Step::Put(from, count, version)),
        2 => some().prop_map(|(from, count)| Step::Delete(from, count)),
        2 => (2..7u32).prop_map(|nth| Step::Mood(nth, false)),
        1 => (700..999u32).prop_map(|nth| Step::Mood(nth, true)),
        1 => Just(Step::Heal),
        2 => (1..20u64).prop_map(Step::Rest),
    ]
}

/// One operation at a time, one object at a time.
#[derive(Default)]
struct Naive {
    rows: BTreeMap<u32, String>,
    target: BTreeMap<u32, String>,
    moods: BTreeMap<u32, Mood>,
    /// When what failed comes again, and how often it has failed; deletes are of rows that are not there.
    retries: BTreeMap<u32, (u64, u32)>,
    operations: u64,
    errors: u64,
}

impl Naive {
    fn attempt(&mut self, id: u32, now: u64) {
        self.operations += 1;
        if self.moods.contains_key(&id) {
            self.errors += 1;
            let failures = self.retries.get(&id).map_or(1, |(_, failures)| failures + 1);
            self.retries.insert(id, (now + (100 << failures).min(60_000), failures));
            return;
        }
        self.retries.remove(&id);
        match self.rows.get(&id) {
            Some(via) => drop(self.target.insert(id, via.clone())),
            None => drop(self.target.remove(&id)),
        }
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
    let mut world = World::new();
    let builder = world.builder().round(100_000, 1_000_000, 1000).prune(Duration::ZERO);
    let handle = world.run(builder.refresh(Duration::ZERO, 1));
    let (mut naive, mut now) = (Naive::default(), 0);
    for step in steps {
        let ids = |from: u32, count: u32| (from..from + count).map(move |id| id % objects);
        let mut rest = 1;
        match step {
            Step::Put(from, count, version) => {
                world.routes.transact(|w| {
                    for id in ids(from, count) {
                        w.insert(route(id, &version.to_string()));
                        naive.rows.insert(id, version.to_string());
                    }
                });
                ids(from, count).for_each(|id| naive.written(id, now));
            }
            Step::Delete(from, count) => {
                let there: Vec<u32> = ids(from, count).filter(|id| naive.rows.remove(id).is_some()).collect();
                world.routes.transact(|w| {
                    for id in ids(from, count) {
                        w.delete(Query::primary(id));
                    }
                });
                there.into_iter().for_each(|id| naive.written(id, now));
            }
            Step::Mood(nth, panics) => {
                let mood = if panics { Mood::Panic } else { Mood::Fail };
                naive.moods.extend((0..objects).step_by(nth as usize).map(|id| (id, mood)));
                world.target.0.lock().moods.clone_from(&naive.moods);
            }
            Step::Heal => {
                naive.moods.clear();
                world.target.heal();
            }
            Step::Rest(steps) => rest = steps,
        }
        pass(Duration::from_millis(rest * STEP)).await;
        now += rest * STEP;
        naive.pass_until(now);
        assert_eq!(world.target.0.lock().rows, naive.target);
        let metrics = handle.metrics();
        assert_eq!(
            (metrics.objects.value(), metrics.errors.value(), metrics.errors_current.value() as usize),
            (naive.operations, naive.errors, naive.retries.len())
        );
    }
    world.target.heal();
    let revision = world.routes.revision(&world.routes.snapshot());
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(world.target.0.lock().rows, naive.rows, "all is well in the end");
    let snapshot = world.routes.snapshot();
    assert!(world.routes.all(&snapshot).all(|route| route.status.is_done()));
}

fn run(objects: u32, steps: Vec<Step>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(compare(objects, steps));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn a_few_objects_are_worked_on_when_the_model_says(steps in prop::collection::vec(step(6), 1..40)) {
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
