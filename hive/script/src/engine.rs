//! The commands and conditions that scripts may use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hive_command::{Call, Command, Output};

use crate::command::{Condition, Run, ScriptCommand};
use crate::error::{Duplicate, ScriptError};
use crate::line::Guard;
use crate::session::Session;
use crate::state::State;

/// The backoff between retries of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The delay before the first retry; doubled each time.
    pub first: Duration,
    /// The maximum delay.
    pub most: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { first: Duration::from_millis(100), most: Duration::from_millis(500) }
    }
}

/// The commands and conditions that scripts may use, by name.
#[derive(Clone, Debug, Default)]
pub struct Engine {
    commands: BTreeMap<Arc<str>, Command<Run>>,
    conditions: BTreeMap<Arc<str>, Condition>,
    pub(crate) retry: Retry,
}

impl hive::Object for Engine {}

impl Engine {
    /// Returns an engine of these commands and conditions. Two of one name are an error that names both places.
    pub fn new(
        commands: impl IntoIterator<Item: Into<ScriptCommand>>,
        conditions: impl IntoIterator<Item = Condition>,
    ) -> Result<Self, Duplicate> {
        let mut engine = Engine::default().with(commands)?;
        for condition in conditions {
            let (name, second) = (condition.name.clone(), condition.at);
            if let Some(first) = engine.conditions.insert(name.clone(), condition) {
                return Err(Duplicate { what: "condition", name: name.to_string(), first: first.at, second });
            }
        }
        Ok(engine)
    }

    /// Adds commands to the engine.
    pub fn with(mut self, commands: impl IntoIterator<Item: Into<ScriptCommand>>) -> Result<Self, Duplicate> {
        for command in commands {
            let ScriptCommand(command) = command.into();
            let (name, second) = (Arc::<str>::from(command.name()), command.location());
            if let Some(first) = self.commands.insert(name.clone(), command) {
                return Err(Duplicate {
                    what: "command",
                    name: name.to_string(),
                    first: first.location(),
                    second,
                });
            }
        }
        Ok(self)
    }

    /// Returns the engine with each function replaced by the one that `of` returns for the command's name.
    pub(crate) fn delegating<F, Fut>(&self, of: impl Fn(&str) -> F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<Output>> + Send + 'static,
    {
        let mut engine = self.clone();
        for (name, command) in &mut engine.commands {
            if matches!(command.run(), Run::Function(_)) {
                let run = of(name);
                *command = command.clone().map(|_| Run::Function(Arc::new(move |call| Box::pin(run(call)))));
            }
        }
        engine
    }

    /// Sets the backoff between retries.
    pub fn retrying(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Returns a command by its name.
    pub(crate) fn command(&self, name: &str) -> Option<&Command<Run>> {
        self.commands.get(name)
    }

    /// Iterates over all commands in order of name.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &Command<Run>> {
        self.commands.values()
    }

    /// Creates a session of lines on a state.
    pub fn session(self: &Arc<Self>, state: State) -> Session {
        Session::new(self.clone(), state)
    }

    /// Runs a whole script and then ends its background commands. `file` is its name in errors.
    pub async fn run(self: &Arc<Self>, state: State, file: &str, script: &str) -> Result<(), ScriptError> {
        let mut session = self.session(state);
        let result = session.script(file, script).await;
        result.and(session.finish().await)
    }

    /// Whether a condition holds.
    pub(crate) fn holds(&self, state: &State, guard: &Guard) -> Result<bool, String> {
        let condition = self.conditions.get(guard.name.as_str());
        let suffix = match (condition, &guard.suffix) {
            (None, None) => return Err(format!("unknown condition \"{guard}\"")),
            (None, Some(_)) => return Err(format!("unknown condition prefix \"{}\"", guard.name)),
            (Some(known), Some(_)) if !known.with_suffix => {
                return Err(format!("condition \"{}\" cannot be used with a suffix", guard.name));
            }
            (Some(known), None) if known.with_suffix => {
                return Err(format!("condition \"{guard}\" requires a suffix"));
            }
            (_, suffix) => suffix.as_deref().unwrap_or_default(),
        };
        let holds = condition.map(|condition| (condition.holds)(state, suffix)).unwrap_or(Ok(false));
        holds.map_err(|error| format!("evaluating condition \"{guard}\": {}", crate::error::causes(&error)))
    }

    /// Returns the usage of the commands that `wanted` selects; their full help if `verbose`.
    pub(crate) fn describe(&self, verbose: bool, wanted: impl Fn(&str) -> bool) -> String {
        let commands = self.commands().filter(|command| wanted(command.name()));
        commands.map(|command| if verbose { command.help() } else { command.overview() }).collect()
    }

    /// Returns the usage of conditions; see [`describe`](Engine::describe).
    pub(crate) fn describe_conditions(&self, wanted: impl Fn(&str) -> bool) -> String {
        let conditions = self.conditions.values().filter(|condition| wanted(&condition.name));
        conditions.fold(String::new(), |text, condition| {
            let suffix = if condition.with_suffix { ":*" } else { "" };
            format!("{text}[{}{suffix}]\n\t{}\n", condition.name, condition.summary)
        })
    }
}

impl std::fmt::Debug for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Condition({} at {})", self.name, self.at)
    }
}
