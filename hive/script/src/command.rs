//! Commands and conditions as the engine runs them.

use std::panic::Location;
use std::sync::Arc;

use hive_command::{Call, Command, Function, Output, Pending};

use crate::state::State;

type ScriptFunction = Arc<dyn Fn(State, Call) -> Pending<'static, anyhow::Result<Output>> + Send + Sync>;

/// A command of an engine: one that a cell contributed, or one of the engine's own, which acts on the script itself.
#[derive(Clone, Debug)]
pub struct ScriptCommand(pub(crate) Command<Run>);

impl From<Command> for ScriptCommand {
    fn from(command: Command) -> Self {
        ScriptCommand(command.map(Run::Function))
    }
}

/// How the engine runs a command.
#[derive(Clone)]
pub(crate) enum Run {
    Function(Function),
    /// A function that acts on the state of the script.
    Script(ScriptFunction),
    /// Joins background commands; implemented in the run loop, which owns them.
    Wait,
    /// Reads lines from the terminal.
    Break,
    /// Describes the commands of the engine.
    Help,
}

impl Run {
    /// Calls the function; `None` for commands that the run loop implements.
    pub(crate) fn call(&self, state: &State, call: Call) -> Option<Pending<'static, anyhow::Result<Output>>> {
        match self {
            Run::Function(run) => Some(run(call)),
            Run::Script(run) => Some(run(state.clone(), call)),
            Run::Wait | Run::Break | Run::Help => None,
        }
    }
}

/// Returns a command that acts on the state of the script.
#[track_caller]
pub(crate) fn on_state<F, Fut>(name: &str, summary: &'static str, run: F) -> Command<Run>
where
    F: Fn(State, Call) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<Output>> + Send + 'static,
{
    Command::declared(name, summary, Run::Script(Arc::new(move |state, call| Box::pin(run(state, call)))))
}

type Evaluate = Arc<dyn Fn(&State, &str) -> anyhow::Result<bool> + Send + Sync>;

/// A condition of scripts: `[name]`, or `[name:suffix]`. Cells contribute them as group members.
#[derive(Clone)]
pub struct Condition {
    pub(crate) name: Arc<str>,
    pub(crate) summary: &'static str,
    pub(crate) with_suffix: bool,
    pub(crate) holds: Evaluate,
    pub(crate) at: &'static Location<'static>,
}

impl Condition {
    /// Returns the condition `[name]`.
    #[track_caller]
    pub fn new(
        name: &str,
        summary: &'static str,
        holds: impl Fn(&State) -> anyhow::Result<bool> + Send + Sync + 'static,
    ) -> Self {
        let holds: Evaluate = Arc::new(move |state, _| holds(state));
        Condition { name: name.into(), summary, with_suffix: false, holds, at: Location::caller() }
    }

    /// Returns the conditions `[name:suffix]`.
    #[track_caller]
    pub fn with_suffix(
        name: &str,
        summary: &'static str,
        holds: impl Fn(&State, &str) -> anyhow::Result<bool> + Send + Sync + 'static,
    ) -> Self {
        Condition {
            name: name.into(),
            summary,
            with_suffix: true,
            holds: Arc::new(holds),
            at: Location::caller(),
        }
    }
}
