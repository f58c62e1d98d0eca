//! Speed of a large graph: 1,000 constructors in 50 modules, each taking up to three others and adding a start and a
//! stop hook; every tenth is `async`. Prints one row a number (name, measured, unit, goal, met, peer), tab separated.
//!
//! The peer is the original's framework with the same graph, measured on another day; the ratio is what counts.
#![expect(clippy::print_stdout, reason = "a benchmark prints its rows")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use hive::prelude::*;

const ROUNDS: usize = 30;
const PER_MODULE: usize = 20;

#[derive(Object)]
struct Node<const I: usize>;

const fn before(i: usize) -> usize {
    i.saturating_sub(1)
}

const fn part(i: usize, of: usize) -> usize {
    i / of
}

fn hook(lifecycle: &Lifecycle) {
    lifecycle.hook("node").on_start(|_| async { Ok(()) }).on_stop(|_| async { Ok(()) });
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

macro_rules! provide_node {
    ($cells:ident, $make:ident, $i:expr) => {
        $cells.push(provide($make::<{ $i }, { before($i) }, { part($i, 2) }, { part($i, 3) }>))
    };
}

macro_rules! ten {
    ($cells:ident, $base:expr) => {
        if $base == 0 {
            $cells.push(provide(first));
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

/// 1,000 constructors in modules of 20, and what asks for the last of them.
fn cells() -> Vec<Cell> {
    let mut providers: Vec<Cell> = Vec::with_capacity(1000);
    times_ten!(hundred, providers, 0, 100);
    let modules = providers.chunks(PER_MODULE).enumerate();
    let mut cells: Vec<Cell> =
        modules.map(|(i, part)| module(format!("m{i}"), "part", part.to_vec())).collect();
    cells.push(invoke(|_: Arc<Node<999>>| ()));
    cells
}

struct Round {
    build: Duration,
    populate: Duration,
    start: Duration,
    stop: Duration,
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

fn median(rounds: &[Round], part: impl Fn(&Round) -> Duration) -> f64 {
    let mut times: Vec<Duration> = rounds.iter().map(part).collect();
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1000.0
}

fn row(name: &str, measured: f64, goal: f64, peer: &str) {
    let met = if measured <= goal { "yes" } else { "no" };
    println!("hive: 1000 constructors, {name}\t{measured:.2}\tms\t{goal}\t{met}\t{peer}");
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cells = cells();
    let mut rounds = vec![];
    for _ in 0..ROUNDS {
        rounds.push(runtime.block_on(round(cells.clone()))?);
    }
    let first = &rounds[0];
    let cold = (first.build + first.populate + first.start + first.stop).as_secs_f64() * 1000.0;
    row("build", median(&rounds, |r| r.build), 1.0, "34.7-37.0 ms");
    row("populate", median(&rounds, |r| r.populate), 1.5, "4.0-5.3 ms");
    row("start", median(&rounds, |r| r.start), 1.0, "1.26-1.27 ms");
    row("stop", median(&rounds, |r| r.stop), 1.0, "1.29-1.40 ms");
    row("total", median(&rounds, |r| r.build + r.populate + r.start + r.stop), 4.0, "41.3-44.9 ms");
    row("total, first in the process", cold, 8.0, "-");
    Ok(())
}
