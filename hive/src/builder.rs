//! From cells and sources of configuration to a planned hive.

use std::collections::HashSet;
use std::panic::Location;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tracing::Dispatch;

use crate::cell::{Cell, IntoCells, supply};
use crate::command::Command;
use crate::config::{
    ConfigError, Flag, FlagValue, Foreign, Kind, LiveConfig, Origin, Schema, Settings, Sources, Values,
};
use crate::error::{GraphError, HiveError, Place, Site};
use crate::event::{Event, Events, Observer};
use crate::graph::{Graph, What};
use crate::handles::Shared;
use crate::health::HealthTree;
use crate::hive_type::{Hive, Parts};
use crate::job::Jobs;
use crate::key::Key;
use crate::lifecycle::{FOREVER, Hooks, panic_text};
use crate::outputs::Outputs;
#[cfg(feature = "pictures")]
use crate::picture::Timeline;
use crate::plan::plan;
use crate::replacement::Replacement;
use crate::shutdown::Shutdowner;
use crate::tally::Tally;

/// Puts a hive together; see [`Hive::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct HiveBuilder {
    cells: Vec<Cell>,
    commands: Vec<Command>,
    sources: Sources,
    foreign: Vec<Foreign>,
    replacements: Vec<Replacement>,
    presets: Vec<Preset>,
    observers: Vec<Observer>,
    limits: Times,
    log: Option<Dispatch>,
    tally: Option<Arc<Tally>>,
}

#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) start: Duration,
    pub(crate) stop: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) slow: Duration,
    /// The seed of a random legal order of start hooks.
    pub(crate) shuffle: Option<u64>,
}

impl HiveBuilder {
    pub(crate) fn new(cells: impl IntoCells) -> Self {
        HiveBuilder {
            cells: cells.into_cells(),
            commands: vec![],
            sources: Sources::default(),
            foreign: vec![],
            replacements: vec![],
            presets: vec![],
            observers: vec![],
            limits: Times {
                start: Duration::from_secs(300),
                stop: Duration::from_secs(60),
                heartbeat: Duration::from_secs(10),
                slow: Duration::from_millis(100),
                shuffle: None,
            },
            log: None,
            tally: None,
        }
    }

    /// Adds cells only if the first word of the command line is one of `words`, the names of a subcommand: the
    /// subcommand's options exist, are validated and are reported for it alone.
    ///
    /// ```
    /// use hive::prelude::*;
    ///
    /// #[derive(hive::Config)]
    /// struct Clean {
    ///     /// Do not ask
    ///     #[flag(short = 'f')]
    ///     force: bool,
    /// }
    ///
    /// let hive = |args: &[&str]| {
    ///     let clean = module("clean", "Cleans up", [config::<Clean>()]);
    ///     Hive::builder([]).command(["clean"], clean).args(args.iter().copied()).build()
    /// };
    /// assert!(hive(&["clean", "-f"])?.config::<Clean>()?.force);
    /// assert!(hive(&["--force"]).err().unwrap().to_string().contains("unknown flag: --force"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn command(
        mut self,
        words: impl IntoIterator<Item = impl Into<String>>,
        cells: impl IntoCells,
    ) -> Self {
        let words = words.into_iter().map(Into::into).collect();
        self.commands.push(Command { words, cells: cells.into_cells() });
        self
    }

    /// Reads flags from these words, the program's name left out.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.sources.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Reads options from variables called `prefix` + name in upper case with `_` for `-`.
    pub fn env<K: Into<String>, V: Into<String>>(
        mut self,
        prefix: impl Into<String>,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.sources.env_prefix = prefix.into();
        self.sources.env = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self
    }

    /// Reads flags and environment of this process. Variables that are not UTF-8 are skipped.
    pub fn process(self, prefix: impl Into<String>) -> Self {
        let args: Vec<String> =
            std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let variables: Vec<(String, String)> = std::env::vars_os().filter_map(text).collect();
        self.args(args).env(prefix, variables)
    }

    #[cfg(feature = "files")]
    /// Adds the options `--config FILE` and `--config-dir DIR` and reads what they name.
    pub fn config_files(mut self) -> Self {
        self.sources.files = true;
        self
    }

    #[cfg(feature = "files")]
    /// Sets candidate configuration files: the first that exists is read when `--config` names none. Like any
    /// configuration file it replaces the folder as a whole.
    pub fn usual_config_files(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.sources.usual_files.extend(paths);
        self
    }

    /// Refuses unknown keys in sources of a kind; by default they are accepted and reported.
    pub fn refuse_unknown(mut self, origin: Origin) -> Self {
        self.sources.refuse_unknown.push(origin);
        self
    }

    /// Accepts these options although no cell declares them: their types are checked, and those that are set are listed
    /// by [`Settings::unused`]. Options that a cell does declare may be among them.
    pub fn foreign(mut self, options: impl IntoIterator<Item = Foreign>) -> Self {
        self.foreign.extend(options);
        self
    }

    /// Sets an option; takes precedence over all other sources.
    pub fn set(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.sources.program.push((key.into(), value.to_string()));
        self
    }

    /// Overrides the default of an option that a cell declares, for programs that embed cells of other authors. The
    /// help text shows the new default. An option that no cell declares is an error of the graph.
    #[track_caller]
    pub fn preset(mut self, option: impl Into<String>, default: impl ToString) -> Self {
        let site = Site {
            place: Place { function: "HiveBuilder::preset", at: Location::caller() },
            module: "".into(),
        };
        self.presets.push((option.into(), default.to_string(), site));
        self
    }

    /// Replaces every provider of `T`, private ones included, by a value; their constructors are not planned.
    #[track_caller]
    pub fn replace<T: ?Sized + Send + Sync + 'static>(self, value: Arc<T>) -> Self {
        self.replace_within(None, value, Location::caller())
    }

    /// Replaces the providers of `T`, private ones included, by a value within a module and its submodules; other
    /// providers of the type stay. It is an error of the graph if there is none to replace.
    #[track_caller]
    pub fn replace_in<T: ?Sized + Send + Sync + 'static>(self, module: &str, value: Arc<T>) -> Self {
        self.replace_within(Some(module.to_owned()), value, Location::caller())
    }

    pub(crate) fn replace_within<T: ?Sized + Send + Sync + 'static>(
        mut self,
        within: Option<String>,
        value: Arc<T>,
        at: &'static Location<'static>,
    ) -> Self {
        let key = Key::of::<T>();
        self.replacements.push(Replacement { key, value: Arc::new(value), within, at });
        self
    }

    /// Adds a ready value, or several: anything that a constructor may return.
    #[track_caller]
    pub fn supply<O: Outputs + Clone + Sync>(self, outputs: O) -> Self {
        self.more(supply(outputs))
    }

    pub(crate) fn more(mut self, cell: Cell) -> Self {
        self.cells.push(cell);
        self
    }

    /// Calls a function with each event, in order. It must not block.
    pub fn on_event(mut self, observer: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.observers.push(Arc::new(move |event, _| observer(event)));
        self
    }

    /// Sets the limit of construction and start hooks together; 5 minutes if not set.
    pub fn start_timeout(mut self, limit: Duration) -> Self {
        self.limits.start = limit.min(FOREVER);
        self
    }

    /// Sets the limit of all stop hooks together; 1 minute if not set.
    pub fn stop_timeout(mut self, limit: Duration) -> Self {
        self.limits.stop = limit.min(FOREVER);
        self
    }

    /// Sets the time after which a running hook is first reported; the interval doubles with each report. 10 s if not
    /// set.
    pub fn heartbeat(mut self, after: Duration) -> Self {
        self.limits.heartbeat = after.clamp(Duration::from_millis(1), FOREVER);
        self
    }

    /// Constructors and hooks that take longer are logged at level info, others at debug; 100 ms if not set.
    pub fn log_threshold(mut self, slow: Duration) -> Self {
        self.limits.slow = slow;
        self
    }

    /// Runs start hooks in a random order, given by the seed, that the graph and the tokens allow, instead of in order
    /// of registration. For tests: code that relies on the order of registration fails.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.limits.shuffle = Some(seed);
        self
    }

    #[cfg(feature = "test")]
    /// Sends the log lines of the cells to this subscriber, whatever thread they run on, instead of to the subscriber
    /// of the thread or the process; also tracks the objects that constructors return.
    pub(crate) fn watched(mut self, log: Dispatch, tally: Arc<Tally>) -> Self {
        (self.log, self.tally) = (Some(log), Some(tally));
        self
    }

    /// Registers the cells, reads the configuration, and plans the construction. No constructor runs. Returns all
    /// errors of the graph together; if there are none, all errors of the configuration. With conditional cells the
    /// graph depends on the configuration, whose errors then come first.
    pub fn build(self) -> Result<Hive, HiveError> {
        // The only code of cells that runs here is that which parses options; it may panic.
        catch_unwind(AssertUnwindSafe(|| self.plan())).unwrap_or_else(|panic| {
            Err(HiveError::Panicked { during: "reading the options", panic: panic_text(&*panic) })
        })
    }

    fn plan(self) -> Result<Hive, HiveError> {
        let HiveBuilder {
            mut cells,
            commands,
            sources,
            foreign,
            replacements,
            presets,
            observers,
            limits,
            log,
            tally,
        } = self;
        if let Some(command) = commands.into_iter().find(|c| c.is_called(&cells, &sources, &foreign)) {
            cells.extend(command.cells);
        }
        #[cfg(feature = "pictures")]
        let (timeline, observers) = {
            let timeline = Arc::new(Timeline::default());
            let recorder = timeline.clone();
            let record: Observer = Arc::new(move |event, at| recorder.record(event, at));
            (timeline, std::iter::once(record).chain(observers).collect())
        };
        let events = Events::new(observers, limits.slow, log);
        let health = HealthTree::new();
        let jobs = Jobs::new();
        let mut graph = Graph::new();
        graph.built_in(events.clone());
        graph.built_in(health.clone());
        graph.built_in(jobs.clone());
        #[cfg(feature = "pictures")]
        graph.built_in(timeline.clone());
        graph.register(&cells);
        let schema = schema(&mut graph, &sources, foreign, presets);
        let usage = schema.usage();
        let loaded = sources.load(&schema, &[]);
        let settings = Arc::new(loaded.settings);
        graph.built_in(settings.clone());
        let structs = graph.nodes.iter().filter_map(|node| match &node.what {
            What::Config(cell) => Some((**cell).clone()),
            _ => None,
        });
        let live = LiveConfig::new(schema, sources, structs, settings.clone());
        graph.built_in(live);
        let mut faults = loaded.errors;
        // Options that failed to parse are already reported; building structs of the others would only repeat the
        // errors.
        if faults.is_empty() {
            faults = configure(&mut graph, &settings);
        }
        if !faults.is_empty() && !graph.switches.is_empty() {
            return Err(if graph.errors.is_empty() {
                HiveError::Config(faults)
            } else {
                HiveError::Graph(graph.errors)
            });
        }

        graph.decide();
        graph.link();
        for replacement in replacements {
            graph.replace(replacement);
        }
        let (plan, mut unplanned) = plan(&graph, &settings);
        let mut errors = std::mem::take(&mut graph.errors);
        errors.append(&mut unplanned);
        if !errors.is_empty() {
            return Err(HiveError::Graph(errors));
        }
        if !faults.is_empty() {
            return Err(HiveError::Config(faults));
        }

        // An estimate: one hook for each constructor.
        #[cfg(feature = "pictures")]
        timeline.reserve(2 * plan.order.len());
        let hooks = Hooks::new(events.clone(), plan.order.len());
        let shutdown = Shutdowner::new(events.clone());
        let shared = Arc::new(Shared { events, hooks, health, jobs, shutdown, tally });
        Ok(Hive::new(Parts { graph, plan, shared, settings, arguments: loaded.arguments, usage, limits }))
    }
}

/// A changed default of an option, and its origin.
type Preset = (String, String, Site);

/// Collects the declared options.
pub(crate) fn schema(
    graph: &mut Graph,
    sources: &Sources,
    foreign: Vec<Foreign>,
    presets: Vec<Preset>,
) -> Schema {
    let mut schema = Schema::default();
    schema.foreign = Arc::new(foreign.into_iter().map(|option| (option.name.clone(), option)).collect());
    let mut faults = vec![];
    let mut declare = |flags: Vec<Flag>, declared_by: Site| {
        for mut flag in flags {
            let preset = presets.iter().rfind(|(option, ..)| option == flag.name);
            let site = preset.map_or(&declared_by, |(_, default, site)| {
                flag.default.clone_from(default);
                site
            });
            faults.extend(schema.declare(flag, site).err());
        }
    };
    if sources.files {
        declare(file_flags(), graph.site(0));
    }
    let mut structs = HashSet::new();
    for node in 0..graph.nodes.len() {
        // A struct that is listed twice is a single error, the duplicate type.
        if let What::Config(cell) = &graph.nodes[node].what
            && structs.insert(cell.key)
        {
            declare((cell.flags)(), graph.site(node));
        }
    }
    for (option, _, site) in presets {
        if !schema.flags.contains_key(option.as_str()) {
            let near = schema.nearest(&option).map(|near| format!("; did you mean `{near}`?"));
            let reason = format!("no cell declares it{}", near.unwrap_or_default());
            faults.push(GraphError::BadDefault { flag: option, reason, site });
        }
    }
    graph.errors.extend::<Vec<GraphError>>(faults);
    schema
}

fn file_flags() -> Vec<Flag> {
    let flag =
        |name, help| Flag { help, ..Flag::new(name, Kind::Text, |value| PathBuf::take(value).map(drop)) };
    vec![
        flag(
            crate::config::CONFIG_FILE,
            "Configuration file (YAML or JSON); the configuration folder is then not read",
        ),
        flag(crate::config::CONFIG_DIR, "Configuration folder that holds a file for each option"),
    ]
}

/// Builds the configuration structs, so that an invalid one is reported before any constructor runs.
fn configure(graph: &mut Graph, settings: &Settings) -> Vec<ConfigError> {
    let mut errors = vec![];
    for node in &mut graph.nodes {
        let What::Config(cell) = &node.what else { continue };
        match (cell.make)(&Values { settings }) {
            Ok(value) => node.what = What::Ready(value),
            Err(error) => errors.push(error),
        }
    }
    errors
}
