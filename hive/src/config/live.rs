//! Options that are changed while the program runs.

use std::any::{Any, type_name};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::error::{ConfigError, cut};
use super::flag::{CONFIG_DIR, CONFIG_FILE, Flag, Schema};
use super::layers::Sources;
use super::observed::{Observed, Said, observe};
use super::settings::{Setting, Settings, Source};
use super::supplied::Supplied;
use super::value::Values;
use super::{ConfigCell, ConfigSpec};
use crate::event::Event;
use crate::key::Key;
use crate::outputs::Value;
use crate::param::{Absent, Cx, Deps, Param};

/// A watch on the configuration struct of a cell; `#[flag(live)]` marks the options that can change.
///
/// [`get`](ConfigWatch::get) returns the struct in force, [`changed`](ConfigWatch::changed) waits for another. Each
/// struct is built from valid values and has passed the struct's `check`; an invalid one is never visible. Options that
/// are not live keep their values until the program restarts.
///
/// ```
/// use std::sync::Arc;
///
/// use hive::prelude::*;
/// use tokio::signal::unix::{SignalKind, signal};
///
/// #[derive(hive::Config)]
/// struct Greeting {
///     /// Whom to greet
///     #[flag(default = "world", live)]
///     name: String,
/// }
///
/// fn greet(mut greeting: ConfigWatch<Greeting>, jobs: JobGroup) {
///     jobs.one_shot("greet", move |cx| async move {
///         loop {
///             cx.health.ok(format!("hello, {}", greeting.get().name));
///             tokio::select! {
///                 () = greeting.changed() => {}
///                 () = cx.cancelled() => return Ok(()),
///             }
///         }
///     }).add();
/// }
///
/// /// The configuration is not reloaded automatically: the program triggers it, here on SIGHUP.
/// fn read_again(live: Arc<LiveConfig>, jobs: JobGroup) {
///     jobs.one_shot("hangup", move |cx| async move {
///         let mut hangups = signal(SignalKind::hangup())?;
///         while let Some(Some(())) = cx.token().run_until_cancelled(hangups.recv()).await {
///             let live = live.clone();
///             match hive::blocking(move || live.reload()).await {
///                 Ok(reloaded) => cx.health.ok(format!("{} options wait for a restart", reloaded.refused.len())),
///                 Err(faults) => cx.health.degraded("Not read", format!("{faults:?}")),
///             }
///         }
///         Ok(())
///     }).add();
/// }
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// // Writes a file, starts with it, rewrites it, and reloads.
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("greeter.yaml");
/// std::fs::write(&file, "name: bees").unwrap();
/// let cell = module("greeter", "Says hello", [config::<Greeting>(), invoke(greet), invoke(read_again)]);
/// let mut hive = TestHive::new(cell).with(|hive| hive.config_files().args([format!("--config={}", file.display())]));
/// hive.start().await;
/// let says = |hive: &TestHive, words| {
///     hive.hive().health().at("greeter.job-greet").is_some_and(|job| job.message == words)
/// };
/// hive.until("the bees are greeted", || says(&hive, "hello, bees")).await;
/// std::fs::write(&file, "name: wasps").unwrap();
/// hive.get::<LiveConfig>().reload().unwrap();
/// hive.until("the wasps are greeted", || says(&hive, "hello, wasps")).await;
/// hive.stop().await;
/// # });
/// ```
pub struct ConfigWatch<T>(watch::Receiver<Arc<T>>);

impl<T> Clone for ConfigWatch<T> {
    fn clone(&self) -> Self {
        ConfigWatch(self.0.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for ConfigWatch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.borrow().fmt(f)
    }
}

impl<T> ConfigWatch<T> {
    /// Returns the struct in force.
    pub fn get(&self) -> Arc<T> {
        self.0.borrow().clone()
    }

    /// Waits until the struct differs from that of the previous call, or at first from the initial one. Rapid changes
    /// may be coalesced. Never returns once the hive is gone.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl<T: ConfigSpec> Param for ConfigWatch<T> {
    fn deps(deps: &mut Deps) {
        deps.need(Key::config::<T>());
        deps.need(Key::of::<LiveConfig>());
    }

    fn extract(cx: &mut Cx<'_>) -> Result<Self, Absent> {
        let initial = cx.one::<Arc<T>>()?.clone();
        let live = cx.one::<Arc<LiveConfig>>()?;
        if !live.may_change(Key::config::<T>()) {
            let crate::handles::Handles { shared, function, module, .. } = *cx.handles;
            let (config, module) = (type_name::<T>(), module.clone());
            shared.events.emit(Event::WatchIdle { config, function, module });
        }
        Ok(live.watch(initial))
    }
}

/// An option whose value differs from the running one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The option.
    pub key: String,
    /// The value in force, or before the reload the previous one.
    pub running: String,
    /// The value that was read.
    pub wanted: String,
    /// Where it was read.
    pub source: Source,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { key, running, wanted, source } = self;
        write!(f, "{key}: running with \"{running}\", {source} says \"{wanted}\"")
    }
}

/// The outcome of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// Options with values that are in force now.
    pub changed: Vec<Change>,
    /// Options whose values take effect at the next start: the drift of the running program from its configuration.
    pub refused: Vec<Change>,
}

/// The maximum length of the reason that is repeated with each waiting value, in bytes.
const REFUSAL: usize = 300;

/// A handle that reads the configuration again and notifies its watchers. Take it as `Arc<LiveConfig>`.
pub struct LiveConfig {
    pub(crate) schema: Schema,
    sources: Sources,
    pub(crate) supplied: Mutex<Vec<Supplied>>,
    structs: Vec<Struct>,
    state: Mutex<State>,
}

/// A configuration struct of the hive.
struct Struct {
    key: Key,
    flags: Vec<Flag>,
    make: fn(&Values<'_>) -> Result<Value, ConfigError>,
}

struct State {
    settings: watch::Sender<Arc<Settings>>,
    observed: watch::Sender<Arc<Vec<Observed>>>,
    watched: HashMap<Key, Watched>,
}

/// The channel of a struct that is watched: a `watch::Sender<Arc<T>>`.
struct Watched {
    sender: Box<dyn Any + Send + Sync>,
    publish: fn(&dyn Any, Value),
}

impl LiveConfig {
    pub(crate) fn new(
        schema: Schema,
        sources: Sources,
        cells: impl Iterator<Item = ConfigCell>,
        settings: Arc<Settings>,
    ) -> Arc<Self> {
        let structs = cells.map(|cell| Struct { key: cell.key, flags: (cell.flags)(), make: cell.make });
        let observed = watch::channel(Arc::new(settings.observed())).0;
        let settings = watch::channel(settings).0;
        let state = Mutex::new(State { settings, observed, watched: HashMap::new() });
        let (structs, supplied) = (structs.collect(), Mutex::default());
        Arc::new(LiveConfig { schema, sources, supplied, structs, state })
    }

    fn watch<T: ConfigSpec>(&self, initial: Arc<T>) -> ConfigWatch<T> {
        let mut state = self.state.lock();
        let watched = state.watched.entry(Key::config::<T>()).or_insert_with(|| Watched {
            sender: Box::new(watch::channel(initial.clone()).0),
            publish: |sender, value| {
                if let (Some(sender), Some(value)) =
                    (sender.downcast_ref::<watch::Sender<Arc<T>>>(), value.downcast_ref::<Arc<T>>())
                {
                    sender.send_replace(value.clone());
                }
            },
        });
        match watched.sender.downcast_ref::<watch::Sender<Arc<T>>>() {
            Some(sender) => ConfigWatch(sender.subscribe()),
            // Keys are equal for equal types only.
            None => ConfigWatch(watch::channel(initial).1),
        }
    }

    /// Whether any option of a struct is live.
    fn may_change(&self, config: Key) -> bool {
        self.structs.iter().any(|of| of.key == config && of.flags.iter().any(|flag| flag.live))
    }

    /// Returns the configuration in force, including changes since the start.
    pub fn settings(&self) -> Arc<Settings> {
        self.state.lock().settings.borrow().clone()
    }

    /// Returns a watch on the options of all structs: [`changed`](ConfigWatch::changed) returns once the values of a
    /// reload are in force.
    pub fn watch_settings(&self) -> ConfigWatch<Settings> {
        ConfigWatch(self.state.lock().settings.subscribe())
    }

    /// Returns the values of each source at the last read and their standing: the drift of the program from its
    /// configuration, and the reasons.
    pub fn observed(&self) -> Arc<Vec<Observed>> {
        self.state.lock().observed.borrow().clone()
    }

    /// Returns a watch on [`observed`](LiveConfig::observed).
    pub fn watch_observed(&self) -> ConfigWatch<Vec<Observed>> {
        ConfigWatch(self.state.lock().observed.subscribe())
    }

    /// Returns the configuration file or folder that is read, for callers that watch it for changes.
    pub fn place(&self) -> Option<PathBuf> {
        let settings = self.settings();
        let named = [CONFIG_FILE, CONFIG_DIR].into_iter().filter_map(|key| settings.get(key));
        let named = named.map(|setting| &setting.value).find(|path| !path.is_empty()).map(PathBuf::from);
        let usual = settings.iter().find_map(|setting| match &setting.source {
            Source::File(path) => Some(path.clone()),
            _ => None,
        });
        usual.or(named)
    }

    /// Returns options that can be changed now: they are live and their struct is watched.
    pub fn live(&self) -> Vec<&'static str> {
        let state = self.state.lock();
        let watched = self.structs.iter().filter(|of| state.watched.contains_key(&of.key));
        watched.flat_map(|of| of.flags.iter().filter(|flag| flag.live).map(|flag| flag.name)).collect()
    }

    /// Reads all sources again, with the values [supplied](LiveConfig::supply) last. Without an error, live options get
    /// their new values, watchers of their structs are notified, and all other changed options are named in the result.
    /// With an error in any option, nothing changes.
    pub fn reload(&self) -> Result<Reloaded, Vec<ConfigError>> {
        let supplied = self.supplied.lock().clone();
        let loaded = self.sources.load(&self.schema, &supplied);
        let live = self.live();
        let state = self.state.lock();
        let said = loaded.settings.said.clone();
        let outcome = if loaded.errors.is_empty() {
            self.take(&state, &live, loaded.settings)
        } else {
            Err(loaded.errors)
        };
        state.observe(&said, outcome.as_ref().err());
        outcome
    }

    fn take(&self, state: &State, live: &[&str], read: Settings) -> Result<Reloaded, Vec<ConfigError>> {
        let mut next = Settings { unused: read.unused, ..Settings::clone(&state.settings.borrow()) };
        (next.unknown, next.renamed, next.said) = (read.unknown, read.renamed, read.said);
        let mut reloaded = Reloaded::default();
        for (key, wanted) in read.declared {
            let Some(running) = next.declared.get_mut(&key) else { continue };
            if wanted.parsed == running.parsed {
                *running = wanted;
            } else if live.contains(&key.as_str()) {
                reloaded.changed.push(change(running, &wanted));
                *running = wanted;
            } else {
                reloaded.refused.push(change(running, &wanted));
            }
        }
        // All structs are built before the first is published: a reload applies as a whole or not at all.
        let (mut made, mut errors) = (vec![], vec![]);
        for of in &self.structs {
            let named = |change: &Change| of.flags.iter().any(|flag| flag.name == change.key);
            if reloaded.changed.iter().any(named) {
                match (of.make)(&Values { settings: &next }) {
                    Ok(value) => made.push((of.key, value)),
                    Err(error) => errors.push(error),
                }
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        state.settings.send_replace(Arc::new(next));
        for (key, value) in made {
            if let Some(watched) = state.watched.get(&key) {
                (watched.publish)(&*watched.sender, value);
            }
        }
        Ok(reloaded)
    }
}

impl State {
    fn observe(&self, said: &[Said], errors: Option<&Vec<ConfigError>>) {
        let refusal = errors.map(|errors| {
            let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            cut(&text, REFUSAL).to_owned()
        });
        let now = observe(said, &self.settings.borrow(), refusal.as_deref());
        self.observed.send_if_modified(|before| {
            let news = **before != now;
            if news {
                *before = Arc::new(now);
            }
            news
        });
    }
}

fn change(running: &Setting, wanted: &Setting) -> Change {
    Change {
        key: wanted.key.clone(),
        running: running.value.clone(),
        wanted: wanted.value.clone(),
        source: wanted.source.clone(),
    }
}
