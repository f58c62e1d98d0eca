//! Errors of graphs: every text as a user sees it, all of them in one report.

use std::sync::Arc;

use hive::prelude::*;
use hive::{GraphError, validate};

trait Ipam: Send + Sync {}
struct Pool;
impl Ipam for Pool {}
#[derive(Object)]
struct Allocator;
#[derive(Object)]
struct A;
#[derive(Object)]
struct B;
#[derive(Object)]
struct C;

fn new_ipam() -> Arc<dyn Ipam> {
    Arc::new(Pool)
}
fn other_ipam() -> Arc<dyn Ipam> {
    Arc::new(Pool)
}
fn new_allocator() -> Allocator {
    Allocator
}
fn new_a(_: Arc<B>) -> A {
    A
}
fn new_b(_: Arc<C>) -> B {
    B
}
async fn new_c(_: Arc<A>) -> C {
    C
}

/// Returns the error's text, with the line numbers of this file masked.
fn faults(cells: impl hive::IntoCells) -> String {
    let text = validate(cells).unwrap_err().to_string();
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("graph.rs:") {
        let (before, after) = rest.split_at(at + "graph.rs:".len());
        out.push_str(before);
        out.push('_');
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    out + rest
}

#[test]
fn missing_names_the_dependent_and_similar_types() {
    #[derive(Object)]
    struct Allocators;
    let consumer = module("api", "x", [invoke(|_: Arc<Allocators>, _: Arc<dyn Ipam + Sync>| ())]);
    let text = faults([consumer, provide(new_allocator), module("ipam", "x", [provide(new_ipam)])]);
    assert_eq!(
        text,
        "2 faults in the graph:
  - missing Arc<all::graph::missing_names_the_dependent_and_similar_types::Allocators>
    needed by all::graph::missing_names_the_dependent_and_similar_types::{{closure}} (hive/tests/all/graph.rs:_) in module `api`
    hint: did you mean Arc<all::graph::Allocator>, provided by all::graph::new_allocator (hive/tests/all/graph.rs:_) at the root?
  - missing Arc<dyn all::graph::Ipam + core::marker::Sync>
    needed by all::graph::missing_names_the_dependent_and_similar_types::{{closure}} (hive/tests/all/graph.rs:_) in module `api`
    hint: did you mean Arc<dyn all::graph::Ipam>, provided by all::graph::new_ipam (hive/tests/all/graph.rs:_) in module `ipam`?"
    );
}

#[test]
fn private_names_the_provider() {
    let text = faults([
        module("ipam", "x", [provide_private(new_allocator)]),
        module("api", "x", [invoke(|_: Arc<Allocator>| ())]),
    ]);
    assert_eq!(
        text,
        "1 fault in the graph:
  - private Arc<all::graph::Allocator>
    needed by all::graph::private_names_the_provider::{{closure}} (hive/tests/all/graph.rs:_) in module `api`
    it is private to all::graph::new_allocator (hive/tests/all/graph.rs:_) in module `ipam`
    hint: make it `provide`, or move the consumer into that module"
    );
}

#[test]
fn duplicate_names_both() {
    let text = faults([module("a", "x", [provide(new_ipam)]), module("b", "x", [provide(other_ipam)])]);
    assert_eq!(
        text,
        "1 fault in the graph:
  - duplicate Arc<dyn all::graph::Ipam>
    provided by all::graph::new_ipam (hive/tests/all/graph.rs:_) in module `a`
    and by      all::graph::other_ipam (hive/tests/all/graph.rs:_) in module `b`
    hint: make one `provide_private`, wrap it in a newtype, or contribute to a group with `Member<T>`"
    );
}

#[test]
fn cycle_names_every_step_once() {
    let text = faults([
        module("m1", "x", [provide(new_a), provide(new_b)]),
        module("m2", "x", [provide(new_c)]),
        invoke(|_: Arc<A>, _: Arc<B>, _: Arc<C>| ()),
    ]);
    assert_eq!(
        text,
        "1 fault in the graph:
  - dependency cycle
    all::graph::new_a (hive/tests/all/graph.rs:_) in module `m1`
      needs Arc<all::graph::B>, provided by
    all::graph::new_b (hive/tests/all/graph.rs:_) in module `m1`
      needs Arc<all::graph::C>, provided by
    all::graph::new_c (hive/tests/all/graph.rs:_) in module `m2`
      needs Arc<all::graph::A>, provided by
    all::graph::new_a (hive/tests/all/graph.rs:_) (back at the start)
    hint: break it with a start hook, or by moving the shared part into its own constructor"
    );
}

#[test]
fn uncertain_names_the_maybe_provider() {
    fn perhaps() -> Option<Arc<Allocator>> {
        None
    }
    let text = faults([provide(perhaps), invoke(|_: Arc<Allocator>| ())]);
    assert_eq!(
        text,
        "1 fault in the graph:
  - uncertain Arc<all::graph::Allocator>
    needed by all::graph::uncertain_names_the_maybe_provider::{{closure}} (hive/tests/all/graph.rs:_) at the root
    it may be absent: all::graph::uncertain_names_the_maybe_provider::perhaps (hive/tests/all/graph.rs:_) at the root returns an `Option`
    hint: take it as `Option<..>`"
    );
}

#[test]
fn module_ids_are_checked() {
    let text = faults([
        module("Bad", "x", []),
        module("twice", "x", [module("inner", "x", [])]),
        module("twice", "x", [module("inner", "x", [])]),
        decorate(|a: Arc<Allocator>| a, module("twice", "inside of a decoration is no other place", [])),
    ]);
    assert_eq!(
        text,
        "3 faults in the graph:
  - module id `Bad` (hive/tests/all/graph.rs:_) is not one lower-case letter followed by up to 30 of a-z, 0-9, `_`, `-`
  - module `twice` is there twice: hive/tests/all/graph.rs:_ and hive/tests/all/graph.rs:_
  - module `twice` is there twice: hive/tests/all/graph.rs:_ and hive/tests/all/graph.rs:_"
    );
}

#[test]
fn options_are_checked() {
    /// An alias that the derive macro cannot resolve.
    type Interval = std::time::Duration;
    #[derive(hive::Config)]
    struct One {
        #[flag(default = "thirty")]
        interval: Interval,
        shared: bool,
    }
    #[derive(hive::Config)]
    struct Two {
        shared: bool,
    }
    let text = faults([
        config::<One>(),
        module("two", "x", [config::<Two>()]),
        invoke(|c: Config<One>, d: Config<Two>| {
            let _ = (c.interval, c.shared, d.shared);
        }),
    ]);
    assert_eq!(
        text,
        "2 faults in the graph:
  - default of option `interval`: \"thirty\" is not a duration (such as 300ms, 30s, 1h15m) (expected a number at \"thirty\")
    declared by all::graph::options_are_checked::One (hive/tests/all/graph.rs:_) at the root
  - option `shared` is declared twice
    by all::graph::options_are_checked::One (hive/tests/all/graph.rs:_) at the root
    by all::graph::options_are_checked::Two (hive/tests/all/graph.rs:_) in module `two`
    hint: rename one with `#[flag(name = \"..\")]`"
    );
}

#[test]
fn a_config_that_is_listed_twice_is_one_error() {
    #[derive(hive::Config)]
    struct Twice {
        one: bool,
        two: bool,
    }
    let text = faults([
        module("a", "x", config::<Twice>()),
        module("b", "x", config::<Twice>()).when(|c: &Twice| c.one || c.two),
    ]);
    assert_eq!(
        text,
        "1 fault in the graph:
  - duplicate Config<all::graph::a_config_that_is_listed_twice_is_one_error::Twice>
    provided by all::graph::a_config_that_is_listed_twice_is_one_error::Twice (hive/tests/all/graph.rs:_) in module `a`
    and by      all::graph::a_config_that_is_listed_twice_is_one_error::Twice (hive/tests/all/graph.rs:_) in module `b`
    hint: list `config::<Twice>()` once, in the module that owns it"
    );
}

#[test]
fn an_undeclared_config_names_the_fix() {
    #[derive(hive::Config)]
    struct Forgotten {
        x: bool,
    }
    let text = faults(invoke(|c: Config<Forgotten>| assert!(c.x)));
    assert!(text.contains("missing Config<all::graph::"), "{text}");
    assert!(text.contains("hint: list `config::<Forgotten>()` in the module that owns it"), "{text}");
}

#[test]
fn missing_names_the_fix() {
    let text = faults(module("api", "x", invoke(|_: Arc<dyn Ipam>| ())));
    let what =
        "hint: no cell in the list provides it; add the module that does, or a constructor that gives ";
    assert!(text.ends_with(&format!("in module `api`\n    {what}Arc<dyn Ipam>")), "{text}");
    // The object is provided, but not as the trait.
    fn new_ipam_pool() -> Arc<IpamPool> {
        Arc::new(IpamPool)
    }
    struct IpamPool;
    let text = faults([provide(new_ipam_pool), invoke(|_: Arc<dyn Ipam>| ())]);
    assert!(
        text.contains("new_ipam_pool (hive/tests/all/graph.rs:_) at the root provides Arc<all::graph::")
            && text.ends_with("IpamPool>; if that is meant, let it give Arc<dyn Ipam> as well"),
        "{text}"
    );
}

#[test]
fn a_constructor_without_a_result_is_an_invocation() {
    fn announce(_: Arc<Allocator>) -> anyhow::Result<()> {
        Ok(())
    }
    let text = faults(module("api", "x", [provide(new_allocator), provide_private(announce)]));
    assert_eq!(
        text,
        "1 fault in the graph:
  - all::graph::a_constructor_without_a_result_is_an_invocation::announce (hive/tests/all/graph.rs:_) in module `api` gives nothing, so nobody can need it
    hint: use `invoke` for what is to run"
    );
    assert!(faults([provide(async || ()), provide(new_allocator)]).contains("gives nothing"));
    validate([provide(new_allocator), invoke(announce), invoke(async || ())]).unwrap();
}

#[test]
fn all_errors_are_reported_together() {
    let error = validate([
        module("Bad", "x", []),
        provide(new_ipam),
        provide(other_ipam),
        provide(new_a),
        provide(new_b),
        provide(new_c),
        module("x", "x", [provide_private(new_allocator)]),
        invoke(|_: Arc<A>, _: Arc<Allocator>, _: Arc<Pool>| ()),
    ])
    .unwrap_err();
    let kinds: Vec<_> = error
        .graph()
        .iter()
        .map(|fault| match fault {
            GraphError::ModuleId { .. } => "module",
            GraphError::Duplicate { .. } => "duplicate",
            GraphError::Cycle { .. } => "cycle",
            GraphError::Private { .. } => "private",
            GraphError::Missing { .. } => "missing",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["module", "duplicate", "private", "missing", "cycle"]);
}

#[test]
fn validation_runs_nothing() {
    fn explode() -> Arc<dyn Ipam> {
        unreachable!("a constructor ran")
    }
    fn explode_too(_: Arc<dyn Ipam>) {
        unreachable!("an invocation ran")
    }
    let cells = [provide(explode), invoke(explode_too)];
    validate(cells.clone()).unwrap();
    let hive = Hive::builder(cells).build().unwrap();
    assert!(hive.tree().contains("explode"));
    assert!(hive.dot().contains("explode"));
}

#[test]
fn optional_is_none_only_if_nothing_provides_it() {
    validate(invoke(|_: Option<Arc<Allocator>>| ())).unwrap();
    // The provider exists but cannot be built.
    let error = validate([provide(new_a), invoke(|_: Option<Arc<A>>| ())]).unwrap_err();
    assert!(matches!(error.graph(), [GraphError::Missing { .. }]), "{error}");
}

#[test]
fn unused_constructors_are_reported_not_refused() {
    let hive = Hive::builder([provide(new_a), provide(new_allocator), invoke(|_: Arc<Allocator>| ())])
        .build()
        .unwrap();
    let unused = hive.unused();
    assert_eq!(unused.len(), 1);
    assert_eq!(unused[0].site.place.function, "all::graph::new_a");
    assert!(matches!(&unused[0].faults[..], [GraphError::Missing { .. }]));
}

#[test]
fn a_long_chain_is_no_recursion() {
    #[derive(Clone)]
    struct Link;
    // Groups link any number of constructors without a type each: every member needs all those before it only by cycle,
    // so build depth from nested decorations instead.
    let mut cells = vec![invoke(|_: Arc<Allocator>| ())];
    for _ in 0..2_000 {
        cells = vec![decorate(|a: Arc<Allocator>, _: Group<Link>| a, cells)];
    }
    cells.push(provide(new_allocator));
    validate(cells).unwrap();
}
