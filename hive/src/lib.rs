//! A lifecycle and dependency framework: cells, typed providers, start and stop hooks.
//!
//! An application is a list of [`Cell`]s. A cell provides objects by plain constructor functions; the parameters of a
//! constructor are its dependencies, its result is what it provides. A [`Hive`] plans the graph before any code runs,
//! reports all errors at once, builds what the invocations need, and starts and stops it in order of dependency.
//!
//! # Ten minutes
//!
//! Create a program, with the hive and its runtime:
//!
//! ```sh
//! cargo new notes && cd notes
//! cargo add --path <where this repository is>/hive
//! cargo add anyhow tracing-subscriber
//! cargo add tokio --features rt-multi-thread,macros,fs,time
//! cargo add --dev tempfile
//! cargo add --dev tokio --features test-util
//! ```
//!
//! Two cells are a `src/main.rs`. The first keeps notes in a file and has hooks; the second needs the first and has a
//! job. (This is `examples/notes.rs`; it is compiled and its tests run with those of the crate.)
//!
//! ```no_run
#![doc = include_str!("../examples/notes.rs")]
//! ```
//!
//! Run it, stop it with Ctrl-C, and open `notes.txt`. The options come from the structs of the cells, from flags and
//! from the environment, and the error for an invalid one describes valid values:
//!
//! ```text
//! $ cargo run -- --help
//! Usage: notes [OPTIONS]
//!
//! Options:
//!   --notes-file string        File that the notes are kept in (default notes.txt)
//!   --tick-interval duration   Time between two notes (default 2s)
//! $ cargo run -- --tick-interval 3x
//! notes: 1 fault in the configuration:
//!   - command line: option tick-interval: "3x" is not a duration (such as 300ms, 30s, 1h15m) (unknown unit "x")
//! ```
//!
//! Test it: `cargo test`. [`TestHive`] starts the real cells; values that a test cannot have are
//! [replaced](TestHive::replace), and with a paused clock hours pass instantly.
//!
//! Break it: leave `notes()` out of the list. The compiler warns about unused code, and the program runs no
//! constructor; all errors of the graph are reported together.
//!
//! ```text
//! notes: 1 fault in the graph:
//!   - missing Arc<notes::Notes>
//!     needed by notes::tick (src/main.rs:85) in module `clock`
//!     hint: no cell in the list provides it; add the module that does, or a constructor that gives Arc<Notes>
//! ```
//!
//! # A larger example
//!
//! Parameters as a struct, results behind traits, constructors that are `async` or fail, members of groups:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use hive::prelude::*;
//!
//! #[derive(hive::Config)]
//! struct ShopConfig {
//!     /// Loaves that are baked in a night
//!     #[flag(default = 40)]
//!     shop_loaves: u32,
//!     /// Time between two looks at the shelf
//!     #[flag(default = "30s")]
//!     shop_look_interval: Duration,
//! }
//!
//! pub trait Shop: Send + Sync {
//!     fn loaves(&self) -> u32;
//! }
//! struct Bakery(u32);
//! impl Shop for Bakery {
//!     fn loaves(&self) -> u32 {
//!         self.0
//!     }
//! }
//!
//! /// A page of the menu: cells contribute any number of them.
//! #[derive(Clone)]
//! pub struct Page(&'static str);
//!
//! /// More than a few parameters are taken as a struct.
//! #[derive(Params)]
//! struct ShopParams {
//!     config: Config<ShopConfig>,
//!     lifecycle: Lifecycle,
//!     jobs: JobGroup,
//!     health: Health,
//! }
//!
//! /// A constructor may be `async`, may fail, and may return several objects.
//! async fn new_shop(p: ShopParams) -> anyhow::Result<(Arc<dyn Shop>, Member<Page>)> {
//!     anyhow::ensure!(p.config.shop_loaves > 0, "shop-loaves 0: there is nothing to sell");
//!     let health = p.health.clone();
//!     p.lifecycle
//!         .hook("open")
//!         .on_start(move |_cx| async move {
//!             health.ok("open"); // I/O belongs here, not into the constructor
//!             Ok(())
//!         })
//!         .on_stop(|_cx| async { Ok(()) })
//!         .timeout(Duration::from_secs(10)).add();
//!     p.jobs.timer("look", p.config.shop_look_interval, |cx| async move {
//!         cx.health.ok("the shelf is full");
//!         Ok(())
//!     }).add();
//!     Ok((Arc::new(Bakery(p.config.shop_loaves)), Member(Page("bread"))))
//! }
//!
//! /// A type with `#[derive(Object)]` may be returned bare; consumers get it as `Arc<Menu>`.
//! #[derive(Object)]
//! struct Menu(Vec<&'static str>);
//! fn new_menu(pages: Group<Page>) -> Menu {
//!     Menu(pages.iter().map(|page| page.0).collect())
//! }
//!
//! fn shop() -> Cell {
//!     module("shop", "Sells bread", [config::<ShopConfig>(), provide(new_shop)])
//! }
//! fn menu() -> Cell {
//!     module("menu", "Says what there is", [provide_private(new_menu), invoke(|menu: Arc<Menu>| assert_eq!(menu.0, ["bread"]))])
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let mut hive = Hive::builder([menu(), shop()])
//!         .args(["--shop-loaves=12"])
//!         .env("SHOP_", [("SHOP_SHOP_LOOK_INTERVAL", "1m")])
//!         .build()?; // no constructor has run yet; every fault of graph and configuration is in the error
//!     hive.start().await?;
//!     assert_eq!(hive.get::<dyn Shop>().unwrap().loaves(), 12);
//!     assert_eq!(hive.health().at("shop").unwrap().message, "open");
//!     hive.stop().await?;
//!     Ok(())
//! }
//! ```
//!
//! A program with a log or subcommands of its own calls [`Hive::run`], which handles signals and returns an [`Outcome`]
//! with an exit code; [`main`](HiveBuilder::main) does that and the rest: 0 after an orderly end, 1 if the hive could
//! not be built, 255 or the code passed to the [`Shutdowner`] after an error. One line, `hive::validate(cells())`,
//! checks a whole application without side effects.
//!
//! # Parameters of a constructor
//! `Arc<T>` and `Arc<dyn Trait>`; [`Config<T>`](struct@Config) and [`ConfigWatch<T>`]; [`Group<T>`] (all [`Member`]s, in
//! order of registration, each a clone); `Option<P>` of any of these (absent when nothing provides it); the handles
//! [`Lifecycle`], [`JobGroup`], [`Health`], [`Shutdowner`], [`ModuleId`]; `Arc<`[`Scope<T>`]`>`; structs with
//! `#[derive(Params)]`. Every hive also provides `Arc<`[`Settings`]`>`, `Arc<`[`LiveConfig`]`>`, `Arc<`[`HealthTree`]`>`,
//! `Arc<`[`Events`]`>`, `Arc<`[`Timeline`]`>` and `Arc<`[`Jobs`](job::Jobs)`>`.
//!
//! # Results of a constructor
//! `Arc<T>`, `Arc<dyn Trait>`, a type with `#[derive(Object)]`, [`Member<T>`], [`Members<T>`], tuples and
//! `#[derive(Outputs)]` structs of these, nothing, and `Option` or `Result` of all that. Traits should have
//! `Send + Sync` as supertraits, and objects be written `Arc<dyn Trait>`, because `dyn Trait + Send` is another type.
//!
//! # Lifecycle
//! - *build*: cells are registered, options read, the construction planned; no code of the cells runs.
//! - *populate*: constructors run one after the other, depth first from the invocations in order of registration,
//!   parameters left to right; each at most once, and only if needed.
//! - *start*: hooks run in the order in which constructors added them, those [marked parallel](HookBuilder::parallel)
//!   concurrently along the graph, each within its own and the hive's limit. Jobs start as such hooks: after the
//!   dependencies of their constructor and after its earlier hooks. When one fails, panics or runs out of time, or a
//!   signal arrives, those that have run are stopped in reverse order.
//! - *stop*: jobs added at run time first, then stop hooks in reverse order; an error does not keep the remaining hooks
//!   from running.
//!
//! A [`scope()`] inside may be started and stopped separately at run time.
//!
//! Constructors wire, hooks do I/O, jobs do ongoing work: tasks of jobs end with their cell, and none is leaked.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]
#![cfg_attr(
    not(all(feature = "files", feature = "pictures", feature = "test")),
    allow(dead_code, reason = "parts that a feature switches off are the only users of some items")
)]

extern crate self as hive;

mod builder;
mod cell;
mod command;
mod conditional;
pub mod config;
pub mod constructor;
mod debug;
mod error;
mod event;
mod graph;
mod handles;
pub mod health;
mod hints;
mod hive_type;
pub mod job;
mod key;
mod lifecycle;
mod missing;
mod outcome;
mod outputs;
mod param;
mod part;
#[cfg(feature = "pictures")]
mod picture;
mod plan;
mod program;
#[cfg(test)]
mod random;
mod replacement;
mod scope;
mod shutdown;
mod signals;
mod tally;
#[cfg(feature = "test")]
mod testing;

pub use builder::HiveBuilder;
pub use cell::{
    Cell, IntoCells, bundle, config, decorate, decorate_all, invoke, module, provide, provide_private, scope,
    supply,
};
pub use config::{
    Arguments, Config, ConfigError, ConfigSpec, ConfigWatch, LiveConfig, OptionError, Setting, Settings,
};
pub use error::{GraphError, HiveError, HookError, HookFailure, Place, Site};
pub use event::{Event, Events, HookId, JobKind, Phase};
pub use handles::ModuleId;
pub use health::{Health, HealthChange, HealthId, HealthTree, Level, Status};
pub use hive_derive::{Config, Object, Outputs, Params};
pub use hive_type::{Hive, validate};
pub use job::{Backoff, JobCx, JobGroup, JobHandle, Trigger, blocking};
pub use key::Key;
pub use lifecycle::{HookBuilder, HookCx, Lifecycle, Service, State};
pub use outcome::Outcome;
pub use outputs::{Member, Members, Object, Outputs};
pub use param::{Group, Param};
#[cfg(feature = "pictures")]
pub use picture::{Span, Step, Timeline, Unused};
pub use scope::Scope;
pub use shutdown::Shutdowner;
#[cfg(feature = "test")]
pub use testing::{LeftJob, LeftObject, Leftovers, Record, TestHive};
/// The level of a log line; [`Level`] is that of health.
pub use tracing::Level as LogLevel;

/// Imports for the code of cells: `use hive::prelude::*;`.
pub mod prelude {
    #[cfg(feature = "test")]
    pub use crate::TestHive;
    pub use crate::bind;
    pub use crate::cell::{
        Cell, bundle, config, decorate, decorate_all, invoke, module, provide, provide_private, scope, supply,
    };
    pub use crate::{
        Backoff, Config, ConfigWatch, Group, Health, Hive, HookCx, JobCx, JobGroup, Level, Lifecycle,
        LiveConfig, Member, Members, ModuleId, Object, Outputs, Params, Scope, Shutdowner, Trigger,
    };
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Items that derived code refers to.
#[doc(hidden)]
pub mod __private {
    pub use anyhow;
}
