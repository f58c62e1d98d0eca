//! Errors of a graph, and of building, starting and stopping it.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ConfigError;
use crate::key::{Key, short};
use crate::lifecycle::State;

/// A function and where it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The path of the function, as the compiler prints it.
    pub function: &'static str,
    /// The file, line and column of the registration.
    pub at: &'static Location<'static>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.function, self.at.file(), self.at.line())
    }
}

/// A function with the module that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Site {
    /// The function.
    pub place: Place,
    /// The path of its module; empty at the root.
    pub module: Arc<str>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.place, InModule(&self.module))
    }
}

struct InModule<'a>(&'a str);

impl fmt::Display for InModule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str(" at the root"),
            module => write!(f, " in module `{module}`"),
        }
    }
}

/// An error of a graph. All are collected before any constructor runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Nothing provides a required type.
    #[error("missing {key}\n    needed by {needed_by}{}", show_hints(.hints))]
    #[non_exhaustive]
    Missing {
        /// The missing type.
        key: Key,
        /// The node that requires it.
        needed_by: Site,
        /// Similar names with their providers; without any, the remedy.
        hints: Vec<String>,
    },
    /// A required type is private to another module.
    #[error(
        "private {key}\n    needed by {needed_by}\n    it is private to {provider}\n    hint: make it `provide`, or move the consumer into that module"
    )]
    #[non_exhaustive]
    Private {
        /// The missing type.
        key: Key,
        /// The node that requires it.
        needed_by: Site,
        /// The provider that is out of reach.
        provider: Site,
    },
    /// A required type is provided as `Option`.
    #[error(
        "uncertain {key}\n    needed by {needed_by}\n    it may be absent: {provider} returns an `Option`\n    hint: take it as `Option<..>`"
    )]
    #[non_exhaustive]
    Uncertain {
        /// The missing type.
        key: Key,
        /// The node that requires it.
        needed_by: Site,
        /// The optional provider.
        provider: Site,
    },
    /// One type is provided twice in one scope.
    #[error(
        "duplicate {key}\n    provided by {first}\n    and by      {second}\n    hint: {}", once(.key)
    )]
    #[non_exhaustive]
    Duplicate {
        /// The provided type.
        key: Key,
        /// The provider registered first.
        first: Site,
        /// The other one.
        second: Site,
    },
    /// Two decorators return one type in one scope, so that it is undefined which one takes effect.
    #[error(
        "ambiguous {key}\n    decorated by {first}\n    and by       {second}\n    hint: make one decorator of both, or nest them with `decorate`"
    )]
    #[non_exhaustive]
    Ambiguous {
        /// The decorated type.
        key: Key,
        /// The decorator registered first.
        first: Site,
        /// The other one.
        second: Site,
    },
    /// A test replaces something in a module that does not provide it.
    #[error("nothing to replace in module `{module}`: {key}\n    asked for at {}:{}\n    hint: {hint}", .at.file(), .at.line())]
    #[non_exhaustive]
    NothingToReplace {
        /// The type to replace.
        key: Key,
        /// The path of the module.
        module: String,
        /// Where the replacement is requested.
        at: &'static Location<'static>,
        /// The other provider, or the module that may be meant.
        hint: String,
    },
    /// A test replaces a type that no cell provides or takes, so the test would run against the real object.
    #[error(
        "nothing gives or takes {key}, replaced at {}:{}\n    hint: for a trait write `.replace::<dyn Trait>(..)`", .at.file(), .at.line()
    )]
    #[non_exhaustive]
    ReplacesNothing {
        /// The type to replace.
        key: Key,
        /// Where the replacement is requested.
        at: &'static Location<'static>,
    },
    /// A constructor returns nothing, so that no node can depend on it and it would never run.
    #[error("{site} gives nothing, so nobody can need it\n    hint: use `invoke` for what is to run")]
    #[non_exhaustive]
    GivesNothing {
        /// The constructor.
        site: Site,
    },
    /// The condition of a cell panicked.
    #[error(
        "condition {site} panicked: {panic}\n    hint: a condition should only look at its configuration struct"
    )]
    #[non_exhaustive]
    Condition {
        /// The function given to [`when`](crate::Cell::when).
        site: Site,
        /// The message of the panic.
        panic: String,
    },
    /// Constructors need each other.
    #[error("dependency cycle{}\n    hint: break it with a start hook, or by moving the shared part into its own constructor", show_cycle(.steps))]
    #[non_exhaustive]
    Cycle {
        /// Each constructor and what it needs from the next; the last needs the first.
        steps: Vec<(Site, Key)>,
    },
    /// A module has an id that is not allowed.
    #[error("module id `{id}` ({}:{}) is not one lower-case letter followed by up to 30 of a-z, 0-9, `_`, `-`", .at.file(), .at.line())]
    #[non_exhaustive]
    ModuleId {
        /// The id.
        id: String,
        /// Where the module is declared.
        at: &'static Location<'static>,
    },
    /// Two modules under one parent have the same id.
    #[error("module `{module}` is there twice: {}:{} and {}:{}", .first.file(), .first.line(), .second.file(), .second.line())]
    #[non_exhaustive]
    DuplicateModule {
        /// The path of the module.
        module: String,
        /// Where it is declared first.
        first: &'static Location<'static>,
        /// Where it is declared again.
        second: &'static Location<'static>,
    },
    /// A module is to be left out or replaced that is not among the cells.
    #[error("no module `{module}` to leave out or replace, asked for at {}:{}{}", .at.file(), .at.line(), did_you_mean(.nearest.as_deref()))]
    #[non_exhaustive]
    NoSuchModule {
        /// The id or path.
        module: String,
        /// Where that is asked for.
        at: &'static Location<'static>,
        /// A module whose path is similar.
        nearest: Option<String>,
    },
    /// Two configuration structs declare the same option.
    #[error(
        "option `{flag}` is declared twice\n    by {first}\n    by {second}\n    hint: rename one with `#[flag(name = \"..\")]`"
    )]
    #[non_exhaustive]
    DuplicateFlag {
        /// The name of the option.
        flag: String,
        /// The configuration struct registered first.
        first: Site,
        /// The other one.
        second: Site,
    },
    /// The default of an option is not a value of its type.
    #[error("default of option `{flag}`: {reason}\n    declared by {site}")]
    #[non_exhaustive]
    BadDefault {
        /// The name of the option.
        flag: String,
        /// The fault.
        reason: String,
        /// The configuration struct.
        site: Site,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("\n    hint: did you mean `{nearest}`?"),
        None => "\n    hint: `Hive::tree` shows the modules".to_owned(),
    }
}

fn once(key: &Key) -> String {
    match key.is_config() {
        true => {
            format!("list `config::<{}>()` once, in the module that owns it", short(key.type_name()))
        }
        false => {
            let ways = "wrap it in a newtype, or contribute to a group with `Member<T>`";
            format!("make one `provide_private`, {ways}")
        }
    }
}

fn show_hints(hints: &[String]) -> String {
    hints.iter().map(|hint| format!("\n    {hint}")).collect()
}

fn show_cycle(steps: &[(Site, Key)]) -> String {
    let needs = steps.iter().map(|(site, key)| format!("\n    {site}\n      needs {key}, provided by"));
    let back = steps.first().map(|(site, _)| format!("\n    {} (back at the start)", site.place));
    needs.chain(back).collect()
}

/// Returns an error followed by its causes, without those that a message already contains.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// The error of a lifecycle hook.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The hook returned an error.
    #[error("{}", with_causes(.0))]
    Failed(anyhow::Error),
    /// The hook panicked.
    #[error("panicked: {0}")]
    Panicked(String),
    /// The hook ran out of time.
    #[error("did not finish within {limit:?} ({set_by}){}", .own.as_ref().map(|e| format!(": {}", with_causes(e))).unwrap_or_default())]
    #[non_exhaustive]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// The method that has set the limit.
        set_by: &'static str,
        /// The hook's own error when it was cancelled.
        own: Option<anyhow::Error>,
    },
    /// The hook succeeded, but could not be cancelled when it exceeded its limit.
    #[error("took {took:.1?}, its limit is {limit:?}: it held up its thread; use hive::blocking(..).await")]
    #[non_exhaustive]
    Late {
        /// The elapsed time.
        took: Duration,
        /// The limit.
        limit: Duration,
    },
    /// The hook was cancelled because of a shutdown request.
    #[error("cancelled")]
    Cancelled,
    /// The hook had not begun when the time for all hooks was over.
    #[error("not run: out of time")]
    NotRun,
    /// The hook waits for a token of another one, which waits for it.
    #[error("not run: {} wait for each other's tokens", .hooks.join(", "))]
    #[non_exhaustive]
    Circle {
        /// The names of the hooks.
        hooks: Vec<String>,
    },
}

/// A hook that failed.
#[derive(Debug, thiserror::Error)]
#[error("{phase} hook `{hook}` of module `{module}` ({function}, {}:{}) after {elapsed:.1?}: {reason}", .at.file(), .at.line())]
#[non_exhaustive]
pub struct HookFailure {
    /// `start` or `stop`.
    pub phase: crate::event::Phase,
    /// The name of the hook.
    pub hook: String,
    /// The module that registered it.
    pub module: String,
    /// The constructor that registered it.
    pub function: String,
    /// Where it is registered.
    pub at: &'static Location<'static>,
    /// The elapsed time.
    pub elapsed: Duration,
    /// The error.
    pub reason: HookError,
}

impl HookFailure {
    pub(crate) fn new(
        phase: crate::event::Phase,
        id: &crate::event::HookId,
        elapsed: Duration,
        reason: HookError,
    ) -> Self {
        let (hook, module) = (id.name.to_string(), id.module.to_string());
        HookFailure { phase, hook, module, function: id.function.to_owned(), at: id.at, elapsed, reason }
    }
}

/// The errors of a hive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HiveError {
    /// The graph is invalid; every error is listed.
    #[error("{}", list("fault in the graph", "faults in the graph", .0))]
    Graph(Vec<GraphError>),
    /// The configuration is invalid; every error is listed.
    #[error("{}", list("fault in the configuration", "faults in the configuration", .0))]
    Config(Vec<ConfigError>),
    /// A constructor failed.
    #[error("constructor {site} failed: {}{}", with_causes(.error), undoing(.rollback))]
    #[non_exhaustive]
    Construct {
        /// The constructor.
        site: Site,
        /// Its error, or its panic.
        error: anyhow::Error,
        /// Stop hooks that failed in the rollback of the start.
        rollback: Vec<HookFailure>,
    },
    /// A start hook failed; those that had run were rolled back.
    #[error("{failure}{}{}", undone(*.rolled_back), undoing(.rollback))]
    #[non_exhaustive]
    Start {
        /// The hook and its error.
        failure: Box<HookFailure>,
        /// The number of hooks that had started and were stopped.
        rolled_back: usize,
        /// Stop hooks that failed in the rollback of the start.
        rollback: Vec<HookFailure>,
    },
    /// A shutdown was requested while the hive was starting.
    #[error("start cancelled in {during}{}", undoing(.rollback))]
    #[non_exhaustive]
    Cancelled {
        /// The constructor or hook that was next or running.
        during: String,
        /// Stop hooks that failed in the rollback of the start.
        rollback: Vec<HookFailure>,
    },
    /// Stop hooks failed; all others ran.
    #[error("{}", list("stop hook failed", "stop hooks failed", .0))]
    Stop(Vec<HookFailure>),
    /// A scope with a lifecycle of its own could not be started or stopped.
    #[error("scope `{scope}`: {error}")]
    #[non_exhaustive]
    Scope {
        /// The path of its module.
        scope: String,
        /// The error, as in a hive.
        error: Box<HiveError>,
    },
    /// The operation is not possible in the state that the hive is in.
    #[error("cannot {action} a hive that is {state}")]
    #[non_exhaustive]
    State {
        /// The requested operation.
        action: &'static str,
        /// The state.
        state: State,
    },
    /// The operation is not possible in the state of the scope or of the surrounding hive.
    #[error("cannot {action} a scope that is {state}")]
    #[non_exhaustive]
    ScopeState {
        /// The requested operation.
        action: &'static str,
        /// The state.
        state: State,
    },
    /// A start hook waits for a scope that waits for all start hooks.
    #[error("Scope::start in a start hook waits for itself; call it from a job")]
    StartInHook,
    /// A hook or constructor of a scope waits for the start or stop that it is part of.
    #[error(
        "Scope::{action} in a hook or constructor of the scope waits for itself; call it from a job of another module"
    )]
    #[non_exhaustive]
    ScopeInItself {
        /// The requested operation.
        action: &'static str,
    },
    /// Code of a cell panicked outside of constructors, hooks and jobs.
    #[error("panicked while {during}: {panic}")]
    #[non_exhaustive]
    Panicked {
        /// The operation in progress.
        during: &'static str,
        /// The message of the panic.
        panic: String,
    },
    /// The hive was shut down with an error.
    #[error("{}", with_causes(.0))]
    Shutdown(anyhow::Error),
    /// The signal handlers could not be installed.
    #[error("signal handlers: {0}")]
    Signals(#[source] std::io::Error),
}

impl HiveError {
    /// Returns the errors of the graph; empty for any other error.
    pub fn graph(&self) -> &[GraphError] {
        match self {
            HiveError::Graph(errors) => errors,
            _ => &[],
        }
    }

    /// Whether it is a start that was cancelled on request, which is an orderly end unless rolling it back failed.
    pub(crate) fn is_orderly(&self) -> bool {
        matches!(self, HiveError::Cancelled { rollback, .. } if rollback.is_empty())
    }

    /// Whether the operation was refused because the hive or scope is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        match self {
            HiveError::Scope { error, .. } => error.is_stopping(),
            HiveError::State { state, .. } | HiveError::ScopeState { state, .. } => *state == State::Stopping,
            HiveError::Cancelled { .. } => self.is_orderly(),
            _ => false,
        }
    }

    /// Returns the errors of the configuration; empty for any other error.
    pub fn config(&self) -> &[ConfigError] {
        match self {
            HiveError::Config(errors) => errors,
            _ => &[],
        }
    }
}

fn list(one: &str, many: &str, errors: &[impl fmt::Display]) -> String {
    let title = match errors.len() {
        1 => format!("1 {one}:"),
        n => format!("{n} {many}:"),
    };
    errors.iter().fold(title, |text, error| format!("{text}\n  - {error}"))
}

fn undone(hooks: usize) -> String {
    match hooks {
        0 => String::new(),
        1 => "; 1 hook undone".to_owned(),
        n => format!("; {n} hooks undone"),
    }
}

fn undoing(failures: &[HookFailure]) -> String {
    failures.iter().map(|failure| format!("\n  while undoing: {failure}")).collect()
}

#[cfg(test)]
mod tests {
    use super::with_causes;

    #[test]
    fn a_repeated_cause_is_printed_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("open x: {source}")]
        struct Open {
            source: std::io::Error,
        }
        let error = anyhow::Error::from(Open { source: std::io::Error::other("denied") });
        assert_eq!(with_causes(&error), "open x: denied");
        let error = error.context("start");
        assert_eq!(with_causes(&error), "start: open x: denied");
    }
}
