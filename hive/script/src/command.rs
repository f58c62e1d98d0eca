//! Commands and conditions of scripts, which cells contribute.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::flags::{Flag, Flags, usage};
use crate::state::{Buffers, State};

type Function = Arc<dyn Fn(Call) -> BoxFuture<'static, anyhow::Result<Output>> + Send + Sync>;
type Completion = Arc<dyn Fn(&Completing) -> Vec<String> + Send + Sync>;

/// A command of scripts and of the shell. Cells contribute them as group members.
///
/// ```
/// use hive::prelude::*;
/// use hive_script::{Call, Command, Flag, Output};
///
/// fn greeting() -> Member<Command> {
///     let hello = |call: Call| async move {
///         let [name] = call.exactly()?;
///         Ok(Output::text(format!("{}, {name}!\n", call.flags.text("greeting"))))
///     };
///     Member(Command::new("hello", "greets somebody", hello).takes("name").flag(Flag::text("greeting", "how").short('g')))
/// }
/// # let _ = module("greeter", "Greets", [provide(greeting)]);
/// ```
#[derive(Clone)]
pub struct Command {
    pub(crate) name: Arc<str>,
    pub(crate) summary: &'static str,
    takes: &'static str,
    pub(crate) detail: &'static str,
    pub(crate) flags: Vec<Flag>,
    pub(crate) first_is_regexp: bool,
    pub(crate) background: bool,
    pub(crate) run: Run,
    pub(crate) complete: Option<Completion>,
    pub(crate) at: &'static Location<'static>,
}

#[derive(Clone)]
pub(crate) enum Run {
    Function(Function),
    /// Joins background commands; implemented in the run loop, which owns them.
    Wait,
    /// Reads lines from the terminal.
    Break,
    /// Describes the commands of the engine.
    Help,
}

impl Command {
    /// Returns a command with a one-line summary. The function is called for each use; a panic in it is an error of the
    /// script.
    #[track_caller]
    pub fn new<F, Fut>(name: &str, summary: &'static str, run: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<Output>> + Send + 'static,
    {
        Command::made(name, summary, Run::Function(Arc::new(move |call| Box::pin(run(call)))))
    }

    #[track_caller]
    pub(crate) fn made(name: &str, summary: &'static str, run: Run) -> Self {
        Command {
            name: name.into(),
            summary,
            takes: "",
            detail: "",
            flags: vec![],
            first_is_regexp: false,
            background: false,
            run,
            complete: None,
            at: Location::caller(),
        }
    }

    /// Sets the arguments as its usage shows them: `file...`.
    pub fn takes(mut self, arguments: &'static str) -> Self {
        self.takes = arguments;
        self
    }

    /// Adds details to its help.
    pub fn detail(mut self, text: &'static str) -> Self {
        self.detail = text;
        self
    }

    /// Declares a flag. A command without any takes words that look like unknown flags as arguments.
    pub fn flag(mut self, flag: Flag) -> Self {
        self.flags.push(flag);
        self
    }

    /// Declares that its first argument is a regular expression: values of variables in it are escaped.
    pub fn regexp(mut self) -> Self {
        self.first_is_regexp = true;
        self
    }

    /// Permits running it in the background (`&`).
    pub fn in_background(mut self) -> Self {
        self.background = true;
        self
    }

    /// Sets the completion of its arguments. Candidates without the typed prefix are dropped.
    pub fn completes(
        mut self,
        complete: impl Fn(&Completing) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.complete = Some(Arc::new(complete));
        self
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its usage in one line: name, flags, arguments.
    pub fn usage(&self) -> String {
        let background = if self.background { " [&]" } else { "" };
        format!("{} {}{}{background}", self.name, usage(&self.flags), self.takes)
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({} at {})", self.name, self.at)
    }
}

/// An argument that is being typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completing {
    /// The preceding arguments, without flags.
    pub before: Vec<String>,
    /// The flag whose value it is.
    pub flag: Option<String>,
    /// The typed prefix.
    pub typed: String,
}

/// One use of a command.
pub struct Call {
    /// The state of the script.
    pub state: State,
    /// The flags.
    pub flags: Flags,
    /// The arguments, without flags.
    pub args: Vec<String>,
}

impl Call {
    /// Returns the arguments, if there are as many; otherwise an error that the user understands.
    pub fn exactly<const N: usize>(&self) -> anyhow::Result<[&str; N]> {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        <[&str; N]>::try_from(args).map_err(|args| {
            anyhow::anyhow!(
                "invalid usage: takes {N} argument{}, not {}",
                if N == 1 { "" } else { "s" },
                args.len()
            )
        })
    }

    /// Returns the arguments, if there are at least `count`.
    pub fn at_least(&self, count: usize) -> anyhow::Result<&[String]> {
        let found = self.args.len();
        anyhow::ensure!(
            found >= count,
            "invalid usage: takes at least {count} argument{}, not {found}",
            if count == 1 { "" } else { "s" }
        );
        Ok(&self.args)
    }

    /// Returns the argument, if there is one; more are an error.
    pub fn at_most_one(&self) -> anyhow::Result<Option<&str>> {
        anyhow::ensure!(
            self.args.len() <= 1,
            "invalid usage: takes at most 1 argument, not {}",
            self.args.len()
        );
        Ok(self.args.first().map(String::as_str))
    }

    /// Adds a line to the log.
    pub fn log(&self, line: impl fmt::Display) {
        self.state.log().write(&format!("{line}\n"));
    }

    /// Writes a text to the file that a flag such as `--out` names, or returns it as the command's output.
    pub fn to_file_or_stdout(&self, flag: &str, text: String) -> anyhow::Result<Output> {
        match self.flags.text(flag) {
            "" => Ok(Output::text(text)),
            file => {
                self.state.write(file, text)?;
                Ok(Output::text(""))
            }
        }
    }

    /// Writes a text to the file that a flag names, or to the log; see [`to_file_or_stdout`](Call::to_file_or_stdout).
    pub fn to_file_or_log(&self, flag: &str, text: &str) -> anyhow::Result<Output> {
        match self.flags.text(flag) {
            "" => self.state.log().write(text),
            file => self.state.write(file, text)?,
        }
        Ok(Output::none())
    }
}

/// The output of a command.
#[derive(Debug, Default)]
pub struct Output {
    pub(crate) buffers: Option<Buffers>,
    pub(crate) error: Option<anyhow::Error>,
}

impl Output {
    /// Returns no output: the buffers keep the output of the previous command.
    pub fn none() -> Self {
        Output::default()
    }

    /// Returns output on stdout, and nothing on stderr.
    pub fn text(stdout: impl Into<Vec<u8>>) -> Self {
        Output::streams(stdout, "")
    }

    /// Returns output on both streams.
    pub fn streams(stdout: impl Into<Vec<u8>>, stderr: impl Into<Vec<u8>>) -> Self {
        Output { buffers: Some(Buffers { stdout: stdout.into(), stderr: stderr.into() }), error: None }
    }

    /// Marks the command as failed; its output is kept.
    pub fn failed(mut self, error: impl Into<anyhow::Error>) -> Self {
        self.error = Some(error.into());
        self
    }
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
