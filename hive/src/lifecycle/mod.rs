//! Start and stop hooks: registered while the graph is built, run one after the other, or concurrently along the graph.

mod hooks;
mod order;
mod run;

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::event::HookId;
pub(crate) use hooks::{Hooks, Ordering, TaskId};
pub(crate) use order::Uses;
use order::{Along, Token};
pub(crate) use run::{CancelSource, Limits, catch, in_start_hook, panic_text};

/// Longer than any real wait, and short enough to be added to an `Instant` without overflow.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The state of a hive in its lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Planned; no constructor has run.
    Built,
    /// All constructors have run.
    Populated,
    /// Start hooks are running.
    Starting,
    /// All start hooks have run.
    Started,
    /// Stop hooks are running.
    Stopping,
    /// Stopped without an error.
    Stopped,
    /// Construction, start or stop failed.
    Failed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Built => "built",
            State::Populated => "populated",
            State::Starting => "starting",
            State::Started => "started",
            State::Stopping => "stopping",
            State::Stopped => "stopped",
            State::Failed => "failed",
        })
    }
}

/// The context of a hook: a token that is cancelled when the hook should end early.
#[derive(Clone, Debug, Default)]
pub struct HookCx {
    /// Created on the first request, because few hooks use it.
    token: Arc<OnceLock<CancellationToken>>,
}

impl HookCx {
    /// Waits until the hook is cancelled: its limit has passed or the start is cancelled.
    pub async fn cancelled(&self) {
        self.token().cancelled().await;
    }

    /// Whether the hook is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.token().is_cancelled()
    }

    /// Returns the token, for code that takes one.
    pub fn token(&self) -> &CancellationToken {
        self.token.get_or_init(CancellationToken::new)
    }

    /// Marks the hook as ended: cancels its token, including handles that were cloned or are requested later.
    fn end(&mut self) {
        let is_kept = Arc::get_mut(&mut self.token).is_none_or(|token| token.get().is_some());
        if is_kept {
            self.token().cancel();
        }
    }
}

/// An object with a life: what it does when the hive starts and when it stops. [`Lifecycle::service`] makes a hook of it.
///
/// ```
/// use std::sync::Arc;
///
/// use hive::Service;
/// use hive::prelude::*;
///
/// struct Listener;
///
/// impl Service for Listener {
///     async fn start(&self, _cx: HookCx) -> anyhow::Result<()> {
///         println!("listening");
///         Ok(())
///     }
/// }
///
/// fn new_listener(lifecycle: Lifecycle) -> Arc<Listener> {
///     let listener = Arc::new(Listener);
///     lifecycle.service("listener", &listener).add();
///     listener
/// }
/// # hive::validate([provide(new_listener)]).unwrap();
/// ```
pub trait Service: Send + Sync + 'static {
    /// Runs at the start; nothing if not implemented.
    fn start(&self, cx: HookCx) -> impl Future<Output = anyhow::Result<()>> + Send {
        let _unused = cx;
        std::future::ready(Ok(()))
    }

    /// Runs at the stop, or when a later start hook fails, but not if this start failed; nothing if not implemented.
    fn stop(&self, cx: HookCx) -> impl Future<Output = anyhow::Result<()>> + Send {
        let _unused = cx;
        std::future::ready(Ok(()))
    }
}

/// Registers start and stop hooks for the constructor that takes it.
///
/// Hooks start in the order of construction, so after those of all dependencies of the constructor, and stop in exactly
/// the reverse of the order in which they have started.
///
/// A hook depends on the parameters of its constructor. A dependency that these do not express, such as two cells
/// that share kernel state or a file, is declared by a token, a type that exists for this purpose:
///
/// ```
/// # use hive::prelude::*;
/// /// This process holds the lock of the run folder.
/// pub struct RunFolder;
///
/// fn server(lifecycle: Lifecycle) {
///     lifecycle.hook("listen").after::<RunFolder>().on_start(|_| async { Ok(()) }).add();
/// }
/// fn instance(lifecycle: Lifecycle) {
///     lifecycle.hook("lock").provides::<RunFolder>().on_start(|_| async { Ok(()) }).add();
/// }
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let mut hive = TestHive::new([invoke(server), invoke(instance)]);
/// hive.start().await;
/// assert_eq!(hive.hook_order(), ["lock", "listen"]);
/// hive.stop().await;
/// # });
/// ```
#[derive(Clone)]
pub struct Lifecycle {
    hooks: Arc<Hooks>,
    module: Arc<str>,
    function: &'static str,
    node: usize,
}

impl fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lifecycle { module, function, .. } = self;
        f.debug_struct("Lifecycle")
            .field("module", module)
            .field("function", function)
            .finish_non_exhaustive()
    }
}

impl Lifecycle {
    pub(crate) fn new(hooks: Arc<Hooks>, module: Arc<str>, function: &'static str, node: usize) -> Self {
        Lifecycle { hooks, module, function, node }
    }

    /// Describes a hook; the builder's [`add`](HookBuilder::add) adds it. A hook may be added by a constructor or by another
    /// start hook; after the start it is refused with an error in the log.
    #[track_caller]
    pub fn hook(&self, name: impl Into<Arc<str>>) -> HookBuilder {
        let (name, module, at) = (name.into(), self.module.clone(), Location::caller());
        let id = HookId { name, module, function: self.function, at };
        HookBuilder { hooks: self.hooks.clone(), hook: hooks::Hook::new(id, self.node) }
    }

    /// Describes a hook that starts and stops an object.
    #[track_caller]
    pub fn service<S: Service>(&self, name: impl Into<Arc<str>>, service: &Arc<S>) -> HookBuilder {
        self.hook(name)
            .on_start_with(service, |service, cx| async move { service.start(cx).await })
            .on_stop_with(service, |service, cx| async move { service.stop(cx).await })
    }
}

/// A hook that is being described, until it is [added](HookBuilder::add); see [`Lifecycle::hook`].
#[must_use = "a hook that is only described does not run: end with `.add()`"]
pub struct HookBuilder {
    hooks: Arc<Hooks>,
    hook: hooks::Hook,
}

impl HookBuilder {
    /// Sets the function that runs at the start.
    pub fn on_start<F, Fut>(self, f: F) -> Self
    where
        F: FnOnce(HookCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.set(|hook| hook.start = Some(Box::new(move |cx| Box::pin(f(cx)))))
    }

    /// Sets the function that runs at the stop, or when a later start hook fails, but not if this hook's start failed.
    pub fn on_stop<F, Fut>(self, f: F) -> Self
    where
        F: FnOnce(HookCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.set(|hook| hook.stop = Some(Box::new(move |cx| Box::pin(f(cx)))))
    }

    /// As [`on_start`](HookBuilder::on_start), with an object that the function takes.
    pub fn on_start_with<T, F, Fut>(self, object: &Arc<T>, f: F) -> Self
    where
        T: ?Sized + Send + Sync + 'static,
        F: FnOnce(Arc<T>, HookCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let object = object.clone();
        self.on_start(move |cx| f(object, cx))
    }

    /// As [`on_stop`](HookBuilder::on_stop), with an object that the function takes.
    pub fn on_stop_with<T, F, Fut>(self, object: &Arc<T>, f: F) -> Self
    where
        T: ?Sized + Send + Sync + 'static,
        F: FnOnce(Arc<T>, HookCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let object = object.clone();
        self.on_stop(move |cx| f(object, cx))
    }

    /// Sets the limit of each of start and stop; the hive's own limits apply in addition.
    pub fn timeout(self, limit: Duration) -> Self {
        self.set(|hook| hook.timeout = Some(limit.min(FOREVER)))
    }

    /// Lets the start run concurrently with others: it waits for the hooks of its constructor's dependencies, for
    /// earlier hooks of the same constructor, and for its tokens, but not for other parallel hooks. Hooks that are not
    /// parallel keep their place: they wait for all before them, and all after them wait.
    pub fn parallel(self) -> Self {
        self.set(|hook| hook.place.along = Along::Parallel)
    }

    pub(crate) fn job(self) -> Self {
        self.set(|hook| hook.place.along = Along::Job)
    }

    /// Provides the token `T`, together with all other hooks that provide it.
    pub fn provides<T: 'static>(self) -> Self {
        self.set(|hook| hook.place.brings.push(Token::of::<T>()))
    }

    /// Starts after all hooks that provide `T`; without any there is nothing to wait for.
    pub fn after<T: 'static>(self) -> Self {
        self.set(|hook| hook.place.awaits.push(Token::of::<T>()))
    }

    /// Starts before all hooks except its own dependencies, wherever its cell is listed, and so stops after them: for
    /// preconditions of all other cells, such as the lock of the program's folder.
    pub fn first(self) -> Self {
        self.set(|hook| hook.place.first = true)
    }

    fn set(mut self, change: impl FnOnce(&mut hooks::Hook)) -> Self {
        change(&mut self.hook);
        self
    }

    /// Adds the hook, behind those that are added already. One that neither does anything nor orders others is warned of.
    pub fn add(self) {
        self.hooks.add(self.hook);
    }
}
