//! Random graphs against a model that is simple enough to be evidently correct: which object each node gets, the order
//! in which constructors run, at most once in each lifecycle, the reported errors, and the times at which hooks run.

mod cells;
mod model;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::time::Instant;

use self::cells::{Cells, HookRan, Hooks, Log, Switches, gens, hooks, layers};
use self::model::{Faults, Model};
use crate::cell::{bundle, config};
use crate::error::{GraphError, HiveError, Site};
use crate::hive_type::Hive;
use crate::key::Key;

/// Returns the errors that the hive found, as the model counts them; cycles separately.
fn found(errors: &[GraphError]) -> (Faults, Vec<Vec<(usize, Key)>>) {
    let (mut faults, mut cycles) = (BTreeMap::new(), vec![]);
    let number = |site: &Site| site.place.function.parse::<usize>().unwrap();
    for error in errors {
        let (kind, key, site) = match error {
            GraphError::Duplicate { key, second, .. } => ("duplicate", key, second),
            GraphError::Ambiguous { key, second, .. } => ("ambiguous", key, second),
            GraphError::Uncertain { key, needed_by, .. } => ("uncertain", key, needed_by),
            GraphError::Private { key, needed_by, .. } => ("private", key, needed_by),
            GraphError::Missing { key, needed_by, hints } => {
                let off = hints.iter().any(|hint| hint.contains(" is off: option"));
                (if off { "off" } else { "missing" }, key, needed_by)
            }
            GraphError::Cycle { steps } => {
                cycles.push(steps.iter().map(|(site, key)| (number(site), *key)).collect());
                continue;
            }
            other => panic!("{other}"),
        };
        *faults.entry((kind, key.to_string(), number(site))).or_default() += 1;
    }
    (faults, cycles)
}

/// Starts, stops and starts each scope with a handle, and those inside: each start builds the content of the scope
/// again, and nothing else. Returns the number of scopes.
fn live<'a>(cells: &'a Cells, model: &'a Model) -> BoxFuture<'a, Result<usize, TestCaseError>> {
    async move {
        let handles = std::mem::take(&mut *cells.handles.lock());
        let mut count = handles.len();
        for (number, handle) in handles {
            for again in [false, true] {
                handle.start().await.unwrap();
                prop_assert_eq!(std::mem::take(&mut *cells.log.lock()), model.runs(model.life(number)));
                match again {
                    true => count += live(cells, model).await?,
                    false => cells.handles.lock().clear(),
                }
                handle.stop().await.unwrap();
                prop_assert!(cells.log.lock().is_empty());
            }
        }
        Ok(count)
    }
    .boxed()
}

#[test]
fn as_the_model_says() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seen_by_run = std::cell::RefCell::new(&mut seen);
    let mut runner = TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    let result = runner.run(&(gens(), any::<[bool; 2]>()), |(gens, switches)| {
        let log = Log::default();
        let mut generated = Cells::new(&log);
        let cells = generated.all(&gens);
        let model = Model::of(&gens, switches);
        let built = Hive::builder([bundle(cells), config::<Switches>()])
            .set("a", switches[0])
            .set("b", switches[1])
            .build();
        let (order, cyclic) = model.order();
        let faults = model.faults();
        let count = |what| *seen_by_run.borrow_mut().entry(what).or_default() += 1;
        match built {
            Ok(mut hive) => {
                prop_assert!(faults.is_empty() && !cyclic, "not found: {:?}, cycle: {}", faults, cyclic);
                runtime.block_on(hive.start()).unwrap();
                prop_assert_eq!(std::mem::take(&mut *log.lock()), model.runs(&[]));
                let lived = runtime.block_on(live(&generated, &model))?;
                count(["no scope", "a scope", "scopes"][lived.min(2)]);
                runtime.block_on(hive.stop()).unwrap();
                count(if order.len() > 3 { "built with more than three" } else { "built" });
            }
            Err(HiveError::Graph(errors)) => {
                let (found, cycles) = found(&errors);
                prop_assert_eq!(&found, &faults);
                prop_assert_eq!(!cycles.is_empty(), cyclic, "{:?}", cycles);
                for steps in cycles {
                    count("cycle");
                    for (position, (from, key)) in steps.iter().enumerate() {
                        let (to, _) = steps[(position + 1) % steps.len()];
                        prop_assert!(model.served(*from, *key).contains(&to), "{:?}", steps);
                    }
                }
                found.keys().for_each(|(kind, ..)| count(kind));
                prop_assert!(log.lock().is_empty(), "nothing runs of a wrong graph");
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
        Ok(())
    });
    result.unwrap();
    // Guards against a generator that produces trivial graphs only.
    let kinds = [
        "a scope",
        "scopes",
        "built",
        "built with more than three",
        "cycle",
        "duplicate",
        "ambiguous",
        "uncertain",
        "private",
        "missing",
        "off",
    ];
    for kind in kinds {
        assert!(seen.get(kind).is_some_and(|count| *count >= 20), "{kind} in {seen:?}");
    }
}

/// Graphs whose constructors add hooks, parallel or not, each with a duration: with a paused clock they begin and end
/// exactly when the model predicts.
#[test]
fn hooks_run_as_the_model_says() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (mut overlapping, mut shuffled) = (0, 0);
    let counts = std::cell::RefCell::new((&mut overlapping, &mut shuffled));
    let graphs = prop_oneof![gens(), layers()];
    let mut runner = TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    let result =
        runner.run(&(graphs, any::<[bool; 2]>(), hooks(), any::<u64>()), |(gens, switches, of, seed)| {
            let model = Model::of(&gens, switches);
            if !model.faults().is_empty() || model.order().1 {
                return Ok(());
            }
            let of = Arc::new(of);
            let start = |seed: Option<u64>| {
                runtime.block_on(async {
                    let mut generated = Cells::new(&Log::default());
                    let hooks = Hooks { of: of.clone(), ran: Arc::default(), begin: Instant::now() };
                    generated.hooks = Some(hooks.clone());
                    let builder = Hive::builder([bundle(generated.all(&gens)), config::<Switches>()])
                        .set("a", switches[0])
                        .set("b", switches[1]);
                    let builder = match seed {
                        Some(seed) => builder.shuffle(seed),
                        None => builder,
                    };
                    let mut hive = builder.build().unwrap();
                    hive.start().await.unwrap();
                    let ran = std::mem::take(&mut *hooks.ran.lock());
                    hive.stop().await.unwrap();
                    (ran, hooks)
                })
            };
            let (mut ran, hooks) = start(None);
            let wanted = model.hooks(&hooks);
            let overlap = |ran: &[HookRan]| {
                ran.iter().any(|a| ran.iter().any(|b| a.begin < b.begin && b.begin < a.end))
            };
            *counts.borrow_mut().0 += usize::from(overlap(&ran));
            ran.sort_by_key(|ran| wanted.iter().position(|other| other.hook == ran.hook));
            prop_assert_eq!(&ran, &wanted);

            // In any legal order: one after the other, each once, none before the hooks of its constructor's
            // dependencies.
            let (ran, _) = start(Some(seed));
            prop_assert!(!overlap(&ran));
            let order: Vec<(usize, usize)> = ran.iter().map(|ran| ran.hook).collect();
            let mut sorted = order.clone();
            sorted.sort_by_key(|hook| wanted.iter().position(|other| other.hook == *hook));
            let registered: Vec<(usize, usize)> = wanted.iter().map(|ran| ran.hook).collect();
            prop_assert_eq!(&sorted, &registered);
            for (at, (node, hook)) in order.iter().enumerate() {
                let used = model.uses(*node);
                for (later, other) in &order[at + 1..] {
                    prop_assert!(!used.contains(later), "{node}.{hook} before {later}.{other}");
                    prop_assert!(node != later || hook < other);
                }
            }
            *counts.borrow_mut().1 += usize::from(order != registered);
            Ok(())
        });
    result.unwrap();
    assert!(
        overlapping >= 80 && shuffled >= 200,
        "{overlapping} with hooks side by side, {shuffled} in another order"
    );
}
