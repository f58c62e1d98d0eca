//! Cells that an option enables and disables.

use std::sync::Arc;

use hive::prelude::*;
use hive::{HiveError, validate};

trait Balancer: Send + Sync {
    fn name(&self) -> &'static str;
}
struct Named(&'static str);
impl Balancer for Named {
    fn name(&self) -> &'static str {
        self.0
    }
}

fn named(name: &'static str) -> Arc<dyn Balancer> {
    Arc::new(Named(name))
}

#[derive(hive::Config)]
struct LbConfig {
    /// Enable the load balancer
    enable_lb: bool,
    /// How it forwards
    #[flag(default = "snat")]
    lb_mode: String,
    #[flag(default = 512)]
    lb_map_max: u32,
}

impl LbConfig {
    fn is_on(&self) -> bool {
        self.enable_lb && self.lb_mode != "none" && self.lb_map_max > 0
    }
}

/// A module that declares the options of its own condition.
fn lb() -> Cell {
    let cells = [config::<LbConfig>(), provide(|| named("lb")), provide(|| Member("route"))];
    module("lb", "Load balancer", cells).when(LbConfig::is_on)
}

fn takes_what_is_there() -> Cell {
    invoke(|lb: Option<Arc<dyn Balancer>>, routes: Group<&'static str>, health: Health| {
        health.ok(format!("{:?} {:?}", lb.map(|lb| lb.name()), routes.0));
    })
}

async fn sees(mut hive: TestHive) -> String {
    hive.start().await;
    let seen = hive.health("consumer").message;
    hive.stop().await;
    seen
}

/// Returns the error of required consumers, with the line numbers of this file masked.
fn fault(options: &[(&str, &str)], cells: impl hive::IntoCells) -> String {
    let mut builder = Hive::builder(cells);
    for (option, value) in options {
        builder = builder.set(*option, value);
    }
    let text = builder.build().expect_err("a fault").to_string();
    let lines = text.lines().map(|line| match line.split_once("conditional.rs:") {
        Some((before, after)) => {
            format!("{before}conditional.rs:_{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_module_is_built_if_its_condition_is_met() {
    let cells = || [lb(), module("consumer", "x", takes_what_is_there())];
    assert_eq!(sees(TestHive::new(cells())).await, "None []");
    assert_eq!(sees(TestHive::new(cells()).set("enable-lb", true)).await, "Some(\"lb\") [\"route\"]");
    let none = TestHive::new(cells()).set("enable-lb", true).set("lb-mode", "none");
    assert_eq!(sees(none).await, "None []");
}

#[test]
fn a_missing_dependency_names_the_option_that_disables_it() {
    let cells = || [lb(), module("consumer", "x", invoke(|_: Arc<dyn Balancer>| ()))];
    let text = "1 fault in the graph:
  - missing Arc<dyn all::conditional::Balancer>
    needed by all::conditional::a_missing_dependency_names_the_option_that_disables_it::{{closure}}::{{closure}} (hive/tests/all/conditional.rs:_) in module `consumer`
    hint: module `lb` is off: ";
    assert_eq!(fault(&[], cells()), format!("{text}option enable-lb=false"));
    // Of several options those that would suffice alone.
    let none = [("enable-lb", "true"), ("lb-mode", "none")];
    assert_eq!(fault(&none, cells()), format!("{text}option lb-mode=none"));
    // No single one would suffice: all are named.
    let both = [("enable-lb", "false"), ("lb-mode", "none")];
    assert_eq!(fault(&both, cells()), format!("{text}options enable-lb=false, lb-mode=none, lb-map-max=512"));
    validate([cells()[0].clone(), module("consumer", "x", invoke(|_: Option<Arc<dyn Balancer>>| ()))])
        .unwrap();
}

/// Another value of the option would not help: exports of a scope are not visible outside.
#[test]
fn a_disabled_module_in_a_scope_is_not_named_outside_of_it() {
    struct Leader;
    let taker = |name: &str| module(name, "x", invoke(|_: Arc<dyn Balancer>| ()));
    let scope = hive::scope::<Leader>("leader", "x", [lb(), taker("inside")]);
    let text = fault(&[], [scope, taker("outside")]);
    let (inside, outside) = text.split_once("in module `leader.inside`").unwrap();
    assert!(inside.starts_with("2 faults"), "{text}");
    let (of_inside, of_outside) = outside.split_once("  - missing").unwrap();
    assert!(of_inside.contains("is off: option enable-lb=false"), "{text}");
    assert!(of_outside.contains("in module `outside`") && !of_outside.contains("is off"), "{text}");
}

#[test]
fn a_module_in_a_module_that_is_off_is_off() {
    #[derive(hive::Config)]
    struct Inner {
        #[flag(default = true)]
        enable_inner: bool,
    }
    let inner = module("inner", "x", [config::<Inner>(), provide(|| Arc::new(7_u8))])
        .when(|c: &Inner| c.enable_inner);
    let cells = || {
        [
            config::<LbConfig>(),
            module("outer", "x", inner.clone()).when(LbConfig::is_on),
            invoke(|_: Arc<u8>| ()),
        ]
    };
    let hints = |options: &[(&str, &str)]| -> Vec<String> {
        let text = fault(options, cells());
        text.lines().filter_map(|line| line.trim().strip_prefix("hint: ")).map(str::to_owned).collect()
    };
    assert_eq!(hints(&[]), ["module `outer` is off: option enable-lb=false"]);
    assert_eq!(
        hints(&[("enable-inner", "false")]),
        [
            "module `outer.inner` is off: option enable-inner=false",
            "module `outer` is off: option enable-lb=false"
        ]
    );
    Hive::builder(cells()).set("enable-lb", true).build().unwrap();
}

#[tokio::test]
async fn one_of_two_modules_of_one_name() {
    let cells = || {
        let one = module("lb", "x", provide(|| named("kernel"))).when(|c: &LbConfig| c.lb_mode == "dsr");
        let other = module("lb", "x", provide(|| named("user"))).when(|c: &LbConfig| c.lb_mode != "dsr");
        [config::<LbConfig>(), one, other, module("consumer", "x", takes_what_is_there())]
    };
    assert_eq!(sees(TestHive::new(cells())).await, "Some(\"user\") []");
    assert_eq!(sees(TestHive::new(cells()).set("lb-mode", "dsr")).await, "Some(\"kernel\") []");
}

#[tokio::test]
async fn nothing_of_an_inactive_cell_has_an_effect() {
    fn never(_: Arc<dyn Balancer>) -> Arc<dyn Balancer> {
        unreachable!("a decorator that is off")
    }
    fn never_invoked() {
        unreachable!("an invocation that is off")
    }
    let off = bundle([
        invoke(never_invoked),
        decorate_all(never),
        provide(|| named("twice")),
        module("Not checked", "x", []).when(|c: &LbConfig| c.enable_lb),
    ]);
    let text = fault(&[], [config::<LbConfig>(), off.clone()]);
    assert!(text.contains("module id `Not checked`"), "a wrong id is wrong in any case: {text}");
    let off = bundle([invoke(never_invoked), decorate_all(never), provide(|| named("twice"))]);
    let cells = [
        off.when(|c: &LbConfig| c.enable_lb),
        config::<LbConfig>(),
        provide(|| named("once")),
        module("consumer", "x", takes_what_is_there()),
    ];
    assert_eq!(sees(TestHive::new(cells.clone())).await, "Some(\"once\") []");
    let hive = Hive::builder(cells).build().unwrap();
    assert!(hive.unused().is_empty(), "what is off is not unused: {:?}", hive.unused());
}

#[test]
fn a_condition_that_panics_is_named() {
    #[derive(hive::Config)]
    struct Forgotten {
        x: bool,
    }
    let text = fault(&[], module("m", "x", module("n", "x", []).when(|c: &Forgotten| c.x)));
    assert_eq!(
        text,
        "1 fault in the graph:
  - missing Config<all::conditional::a_condition_that_panics_is_named::Forgotten>
    needed by all::conditional::a_condition_that_panics_is_named::{{closure}} (hive/tests/all/conditional.rs:_) in module `m`
    hint: list `config::<Forgotten>()` in the module that owns it"
    );
    let text = fault(&[], lb().when(|c: &LbConfig| [c.enable_lb][c.lb_map_max as usize]));
    assert_eq!(
        text,
        "1 fault in the graph:
  - condition all::conditional::a_condition_that_panics_is_named::{{closure}} (hive/tests/all/conditional.rs:_) at the root panicked: index out of bounds: the len is 1 but the index is 512
    hint: a condition should only look at its configuration struct"
    );
}

/// Whether the module is enabled is not known while the option cannot be parsed.
#[test]
fn errors_of_the_configuration_precede_those_that_depend_on_it() {
    let cells = [lb(), invoke(|_: Arc<dyn Balancer>| ())];
    let error = Hive::builder(cells).set("enable-lb", "yess").build().err().unwrap();
    assert!(matches!(&error, HiveError::Config(faults) if faults.len() == 1), "{error}");
}
