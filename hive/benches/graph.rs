//! Speed of a large graph: 1,000 constructors in 50 modules, each with up to three dependencies, a start and a stop
//! hook; every tenth is `async`. Then the same with two and four times as many, to check that time grows linearly.
//! Prints one row a measurement (name, measured, unit, goal, met, peer), tab separated.
//!
//! The peer is Cilium's framework with the same graph, measured in the same run if Go and its module are available;
//! otherwise the row notes that the times were recorded on another machine, and only the ratio is comparable.
#![expect(clippy::print_stdout, reason = "a benchmark prints its rows")]

mod peer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hive::constructor::{Function, ParamList};
use hive::prelude::*;

const ROUNDS: usize = 30;
const SIZE: usize = 1000;
const PER_MODULE: usize = 20;

/// Times of Cilium's hive for each part, recorded on a machine where a prototype of this crate took 1.22 ms in total.
const RECORDED: [(&str, &str); 5] = [
    ("build", "34.7-37.0 ms"),
    ("populate", "4.0-5.3 ms"),
    ("start", "1.26-1.27 ms"),
    ("stop", "1.29-1.40 ms"),
    ("total", "41.3-44.9 ms"),
];

#[derive(Object)]
struct Node<const I: usize>;

const fn before(i: usize) -> usize {
    i.saturating_sub(1)
}

const fn part(i: usize, of: usize) -> usize {
    i / of
}

fn hook(lifecycle: &Lifecycle) {
    lifecycle.hook("node").on_start(|_| async { Ok(()) }).on_stop(|_| async { Ok(()) }).add();
}

fn first(lifecycle: Lifecycle) -> Node<0> {
    hook(&lifecycle);
    Node
}

fn node<const I: usize, const A: usize, const B: usize, const C: usize>(
    _: Arc<Node<A>>,
    _: Arc<Node<B>>,
    _: Arc<Node<C>>,
    lifecycle: Lifecycle,
) -> Node<I> {
    hook(&lifecycle);
    Node
}

async fn async_node<const I: usize, const A: usize, const B: usize, const C: usize>(
    _: Arc<Node<A>>,
    _: Arc<Node<B>>,
    _: Arc<Node<C>>,
    lifecycle: Lifecycle,
) -> anyhow::Result<Node<I>> {
    hook(&lifecycle);
    Ok(Node)
}

struct Cells {
    private: bool,
    cells: Vec<Cell>,
}

impl Cells {
    fn push<F: Function<A, K>, A: ParamList, K: 'static>(&mut self, constructor: F) {
        let cell = if self.private { provide_private(constructor) } else { provide(constructor) };
        self.cells.push(cell);
    }
}

macro_rules! provide_node {
    ($cells:ident, $make:ident, $i:expr) => {
        $cells.push($make::<{ $i }, { before($i) }, { part($i, 2) }, { part($i, 3) }>)
    };
}

macro_rules! ten {
    ($cells:ident, $base:expr) => {
        if $base == 0 {
            $cells.push(first);
        } else {
            provide_node!($cells, async_node, $base);
        }
        provide_node!($cells, node, $base + 1);
        provide_node!($cells, node, $base + 2);
        provide_node!($cells, node, $base + 3);
        provide_node!($cells, node, $base + 4);
        provide_node!($cells, node, $base + 5);
        provide_node!($cells, node, $base + 6);
        provide_node!($cells, node, $base + 7);
        provide_node!($cells, node, $base + 8);
        provide_node!($cells, node, $base + 9);
    };
}

macro_rules! times_ten {
    ($inner:ident, $cells:ident, $base:expr, $step:expr) => {
        $inner!($cells, $base);
        $inner!($cells, $base + $step);
        $inner!($cells, $base + 2 * $step);
        $inner!($cells, $base + 3 * $step);
        $inner!($cells, $base + 4 * $step);
        $inner!($cells, $base + 5 * $step);
        $inner!($cells, $base + 6 * $step);
        $inner!($cells, $base + 7 * $step);
        $inner!($cells, $base + 8 * $step);
        $inner!($cells, $base + 9 * $step);
    };
}

macro_rules! hundred {
    ($cells:ident, $base:expr) => {
        times_ten!(ten, $cells, $base, 10)
    };
}

/// Returns the 1,000 constructors.
fn providers(private: bool) -> Vec<Cell> {
    let mut cells = Cells { private, cells: Vec::with_capacity(SIZE) };
    times_ten!(hundred, cells, 0, 100);
    cells.cells
}

/// Returns 1,000 constructors in modules of 20, and an invocation that needs the last of them.
fn cells() -> Vec<Cell> {
    let providers = providers(false);
    let modules = providers.chunks(PER_MODULE).enumerate();
    let mut cells: Vec<Cell> =
        modules.map(|(i, part)| module(format!("m{i}"), "part", part.to_vec())).collect();
    cells.push(invoke(|_: Arc<Node<999>>| ()));
    cells
}

/// Returns the same constructors once for each tenant, private to it, and 50 modules that need the last of them.
fn tenants(count: usize) -> Vec<Cell> {
    let module_of = |i| module(format!("m{i}"), "part", invoke(|_: Arc<Node<999>>| ()));
    let tenant = |t| {
        let modules = (0..SIZE / PER_MODULE).map(module_of);
        module(format!("t{t}"), "tenant", providers(true).into_iter().chain(modules).collect::<Vec<_>>())
    };
    (0..count).map(tenant).collect()
}

struct Round {
    build: Duration,
    populate: Duration,
    start: Duration,
    stop: Duration,
}

impl Round {
    fn total(&self) -> Duration {
        self.build + self.populate + self.start + self.stop
    }
}

async fn round(cells: Vec<Cell>) -> anyhow::Result<Round> {
    let begin = Instant::now();
    let mut hive = Hive::builder(cells).build()?;
    let build = begin.elapsed();
    let begin = Instant::now();
    hive.populate().await?;
    let populate = begin.elapsed();
    let begin = Instant::now();
    hive.start().await?;
    let start = begin.elapsed();
    let begin = Instant::now();
    hive.stop().await?;
    Ok(Round { build, populate, start, stop: begin.elapsed() })
}

/// Returns the median of the rounds in milliseconds.
fn median(rounds: &[Round], part: impl Fn(&Round) -> Duration) -> f64 {
    let mut times: Vec<Duration> = rounds.iter().map(part).collect();
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1000.0
}

fn row(name: &str, measured: f64, unit: &str, goal: f64, peer: &str) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("hive: {name}\t{measured:.2}\t{unit}\t{goal}\t{met}\t{peer}");
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measure = |cells: &[Cell]| -> anyhow::Result<Vec<Round>> {
        (0..ROUNDS).map(|_| runtime.block_on(round(cells.to_vec()))).collect()
    };
    let rounds = measure(&cells())?;
    let original = peer::measure().map_err(|error| println!("hive: the original is not measured: {error}"));
    let thousand = |name: &str, part: fn(&Round) -> Duration, goal| {
        let beside = original.as_ref().ok().and_then(|times| times.get(name));
        let recorded = RECORDED.iter().find(|(part, _)| *part == name).map_or("-", |(_, time)| time);
        let peer = beside.map_or(format!("{recorded}, recorded"), |time| format!("{time:.2} ms"));
        row(&format!("1000 constructors, {name}"), median(&rounds, part), "ms", goal, &peer);
    };
    thousand("build", |r| r.build, 0.5);
    thousand("populate", |r| r.populate, 0.6);
    thousand("start", |r| r.start, 0.3);
    thousand("stop", |r| r.stop, 0.3);
    thousand("total", Round::total, 1.5);
    let least = rounds.iter().map(Round::total).min().unwrap_or_default();
    row("1000 constructors, total, quickest round", least.as_secs_f64() * 1000.0, "ms", 1.5, "-");
    let first = rounds[0].total().as_secs_f64() * 1000.0;
    row("1000 constructors, total, first in the process", first, "ms", 8.0, "-");

    let [one, two, four] = [1, 2, 4].map(|count| {
        let rounds = measure(&tenants(count))?;
        anyhow::Ok(median(&rounds, Round::total))
    });
    let (one, two, four) = (one?, two?, four?);
    row("2000 constructors, total against 1000", two / one, "times", 2.4, "-");
    row("4000 constructors, total against 1000", four / one, "times", 4.8, "-");
    // The exponent of the growth of time with size.
    row("slope from 1000 to 4000, 1 is linear", (four / one).log(4.0), "", 1.1, "-");
    Ok(())
}
