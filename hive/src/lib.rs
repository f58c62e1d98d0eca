//! A lifecycle and dependency framework: cells, typed providers, start and stop hooks.
//!
//! An application is a list of [`Cell`]s. A cell provides objects by plain constructor functions; the parameters of
//! a constructor say what it needs, its result says what it gives. A [`Hive`] plans the graph before it runs anything,
//! reports all faults at once, builds what the invocations need, and starts and stops it in order of dependency.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use hive::prelude::*;
//!
//! /// Options: flags, environment, a file or a folder. The doc comments are the help texts.
//! #[derive(hive::Config, Clone, Debug)]
//! pub struct IpamConfig {
//!     /// Range to allocate pod addresses from
//!     #[flag(name = "ipv4-range", default = "10.0.0.0/24")]
//!     range: ipnetwork::Ipv4Network,
//!     /// Interval of the garbage collector
//!     #[flag(default = "30s")] // the option is called `ipam-gc-interval`
//!     ipam_gc_interval: Duration,
//! }
//!
//! pub trait Ipam: Send + Sync {
//!     fn capacity(&self) -> u32;
//! }
//! struct Pool(ipnetwork::Ipv4Network);
//! impl Ipam for Pool {
//!     fn capacity(&self) -> u32 {
//!         self.0.size()
//!     }
//! }
//!
//! /// A route of the REST API: cells contribute them, in whatever number.
//! #[derive(Clone)]
//! pub struct Route(&'static str);
//!
//! /// More than a few parameters are taken as a struct.
//! #[derive(Params)]
//! struct IpamParams {
//!     config: Config<IpamConfig>,
//!     lifecycle: Lifecycle,
//!     jobs: JobGroup,
//!     health: Health,
//! }
//!
//! /// A constructor may be `async`, may fail, and may give several things.
//! async fn new_ipam(p: IpamParams) -> anyhow::Result<(Arc<dyn Ipam>, Member<Route>)> {
//!     anyhow::ensure!(p.config.range.prefix() < 31, "ipv4-range {} has no room", p.config.range);
//!     let pool = Arc::new(Pool(p.config.range));
//!     let health = p.health.clone();
//!     p.lifecycle
//!         .hook("ipam")
//!         .on_start(move |_cx| async move {
//!             health.ok("pool ready"); // I/O belongs here, not into the constructor
//!             Ok(())
//!         })
//!         .on_stop(|_cx| async { Ok(()) })
//!         .timeout(Duration::from_secs(10));
//!     p.jobs.timer("gc", p.config.ipam_gc_interval, |cx: JobCx| async move {
//!         cx.health.ok("nothing to collect");
//!         Ok(())
//!     });
//!     Ok((pool, Member(Route("/ipam"))))
//! }
//!
//! /// A type with `#[derive(Object)]` may be returned bare; others get it as `Arc<Api>`.
//! #[derive(Object)]
//! struct Api {
//!     routes: Vec<&'static str>,
//! }
//! fn new_api(routes: Group<Route>) -> Api {
//!     Api { routes: routes.iter().map(|route| route.0).collect() }
//! }
//!
//! fn ipam() -> Cell {
//!     module("ipam", "Address management", [config::<IpamConfig>(), provide(new_ipam)])
//! }
//! fn api() -> Cell {
//!     module("api", "REST API", [provide_private(new_api), invoke(|api: Arc<Api>| assert_eq!(api.routes, ["/ipam"]))])
//! }
//!
//! # fn main() -> anyhow::Result<()> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! // The order of cells does not matter.
//! let mut hive = Hive::builder([api(), ipam()])
//!     .args(["--ipv4-range=10.1.0.0/16"])
//!     .env("CILIUM_", [("CILIUM_IPAM_GC_INTERVAL", "1m")])
//!     .build()?; // no constructor has run yet; every fault of graph and configuration is in the error
//! hive.start().await?;
//! assert_eq!(hive.get::<dyn Ipam>().unwrap().capacity(), 65536);
//! assert_eq!(hive.health().at("ipam").unwrap().message, "pool ready");
//! hive.stop().await?;
//! # anyhow::Ok(()) })
//! # }
//! ```
//!
//! A program's `main` calls [`Hive::run`] instead, which handles signals and gives an [`Outcome`] with an exit code.
//! Tests use [`TestHive`]; one line, `hive::validate(cells())`, checks a whole application without side effects.
//!
//! # What a constructor may take
//! `Arc<T>` and `Arc<dyn Trait>`; [`Config<T>`](struct@Config); [`Group<T>`] (all [`Member`]s, in order of registration); `Option<P>`
//! of any of these (absent when nothing provides it); the handles [`Lifecycle`], [`JobGroup`], [`Health`],
//! [`Shutdowner`], [`ModuleId`]; structs with `#[derive(Params)]`. Every hive also provides `Arc<`[`Settings`]`>`,
//! `Arc<`[`HealthTree`]`>`, `Arc<`[`Events`]`>`, `Arc<`[`Timeline`]`>` and `Arc<`[`Jobs`](job::Jobs)`>`.
//!
//! # What a constructor may give
//! `Arc<T>`, `Arc<dyn Trait>`, a type with `#[derive(Object)]`, [`Member<T>`], [`Members<T>`], tuples and
//! `#[derive(Outputs)]` structs of these, nothing, and `Option` or `Result` of all that. Traits should have
//! `Send + Sync` as supertraits, and objects be written `Arc<dyn Trait>`, because `dyn Trait + Send` is another type.
//!
//! # Life
//! - *build*: cells are registered, options read, the construction planned; nothing of the cells' code runs.
//! - *populate*: constructors run one after the other, depth first from the invocations in order of registration,
//!   parameters left to right; each at most once, and only if needed.
//! - *start*: hooks run in the order in which constructors added them, those [marked](HookBuilder::parallel) so side by side
//!   along the graph, each within its own and the hive's limit. When
//!   one fails, panics or runs out of time, or a signal arrives, those that have run are stopped in reverse.
//! - *stop*: jobs added at run time first, then stop hooks in reverse order; errors do not keep others from running.
//!
//! - a [`scope()`] inside may be started and stopped by itself while the rest runs.
//!
//! Constructors wire, hooks do I/O, jobs do what goes on: tasks of jobs end with their cell, and none is left behind.

#![forbid(unsafe_code)]

extern crate self as hive;

mod builder;
mod cell;
mod conditional;
pub mod config;
mod constructor;
mod error;
mod event;
mod graph;
mod handles;
mod health;
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
mod picture;
mod plan;
#[cfg(test)]
mod random;
mod scope;
mod shutdown;
mod signals;
mod testing;

pub use builder::HiveBuilder;
pub use cell::{
    Cell, IntoCells, config, decorate, decorate_all, group, invoke, module, provide, provide_private, scope,
    supply,
};
pub use config::{Arguments, Config, ConfigError, ConfigSpec, ConfigWatch, LiveConfig, Setting, Settings};
pub use constructor::{ParamList, Shape};
pub use error::{GraphError, HiveError, HookError, HookFailure, Place, Site};
pub use event::{Event, Events, HookId, JobKind, Phase};
pub use handles::ModuleId;
pub use health::{Health, HealthChange, HealthId, HealthTree, Level, Status};
pub use hive_derive::{Config, Object, Outputs, Params};
pub use hive_type::{Hive, validate};
pub use job::{Backoff, JobCx, JobGroup, JobHandle, Trigger};
pub use key::Key;
pub use lifecycle::{HookBuilder, HookCx, Lifecycle, State};
pub use outcome::Outcome;
pub use outputs::{Async_, Call, IntoOutputs, Member, Members, Object, Outputs, Outs, Run, Sink, Sync_};
pub use param::{Absent, Cx, Deps, Group, Param};
pub use picture::{Span, Step, Timeline, Unused};
pub use scope::Scope;
pub use shutdown::Shutdowner;
pub use testing::{LeftJob, LeftObject, Leftovers, Record, TestHive};
/// How important a line of the log is; [`Level`] is that of health.
pub use tracing::Level as LogLevel;

/// What the code of cells uses: `use hive::prelude::*;`.
pub mod prelude {
    pub use crate::cell::{
        Cell, config, decorate, decorate_all, group, invoke, module, provide, provide_private, scope, supply,
    };
    pub use crate::{
        Backoff, Config, ConfigWatch, Group, Health, Hive, HookCx, JobCx, JobGroup, Level, Lifecycle, Member,
        Members, ModuleId, Object, Outputs, Params, Scope, Shutdowner, TestHive, Trigger,
    };
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// What derived code refers to.
#[doc(hidden)]
pub mod __private {
    pub use anyhow;
}
