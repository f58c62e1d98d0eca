//! The declaration of a command.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::call::{Call, Output, Pending};
use crate::complete::complete;
use crate::flags::{Flag, FlagError, Flags, describe, parse, usage};

/// The function of a command.
pub type Function = Arc<dyn Fn(Call) -> Pending<'static, anyhow::Result<Output>> + Send + Sync>;

/// Returns the candidates for an argument.
pub(crate) type Completion = dyn Fn(&Completing) -> Vec<String> + Send + Sync;

/// A command of scripts and of the shell. Cells contribute them as group members.
///
/// ```
/// use hive::prelude::*;
/// use hive_command::{Call, Command, Flag, Output};
///
/// fn greeting() -> Member<Command> {
///     let hello = |call: Call| async move {
///         let [name] = call.exactly()?;
///         Ok(Output::text(format!("{}, {name}!\n", call.flags.text("greeting"))))
///     };
///     Member(Command::new("hello", "greet by name", hello).takes("name").flag(Flag::text("greeting", "how").short('g')))
/// }
/// # let _ = module("greeter", "Greets", [provide(greeting)]);
/// ```
///
/// `R` is what runs: a [`Function`], unless an engine declares commands of its own kind with
/// [`declared`](Command::declared).
#[derive(Clone)]
pub struct Command<R = Function> {
    name: Arc<str>,
    summary: &'static str,
    takes: &'static str,
    detail: &'static str,
    flags: Vec<Flag>,
    first_is_regexp: bool,
    background: bool,
    run: R,
    complete: Option<Arc<Completion>>,
    at: &'static Location<'static>,
}

/// A request to a command, by the words of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Run it with these flags and arguments.
    Run(Flags, Vec<String>),
    /// Print its help.
    Help,
    /// Complete this text.
    Complete(String),
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
        Command::declared(name, summary, Arc::new(move |call| Box::pin(run(call))))
    }
}

impl<R> Command<R> {
    /// Returns a command that an engine runs in its own way.
    #[track_caller]
    pub fn declared(name: &str, summary: &'static str, run: R) -> Self {
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

    /// Returns the command with another way to run.
    pub fn map<S>(self, map: impl FnOnce(R) -> S) -> Command<S> {
        Command {
            name: self.name,
            summary: self.summary,
            takes: self.takes,
            detail: self.detail,
            flags: self.flags,
            first_is_regexp: self.first_is_regexp,
            background: self.background,
            run: map(self.run),
            complete: self.complete,
            at: self.at,
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns where it was created.
    pub fn location(&self) -> &'static Location<'static> {
        self.at
    }

    /// Returns its function, or the engine's way to run it.
    pub fn run(&self) -> &R {
        &self.run
    }

    /// Whether its first argument is a regular expression.
    pub fn first_is_regexp(&self) -> bool {
        self.first_is_regexp
    }

    /// Whether it may run in the background.
    pub fn may_run_in_background(&self) -> bool {
        self.background
    }

    /// Parses the words of a line.
    ///
    /// # Errors
    ///
    /// Returns an error for flags that the command does not declare, and for their invalid values.
    pub fn request(&self, words: &[String]) -> Result<Request, FlagError> {
        match parse(&self.flags, words) {
            Err(_) if self.flags.is_empty() => Ok(Request::Run(Flags::default(), words.to_vec())),
            request => request,
        }
    }

    /// Returns whole lines that complete the arguments typed so far.
    pub fn complete(&self, typed: &str) -> Vec<String> {
        complete(&self.name, &self.flags, self.complete.as_deref(), typed)
    }

    /// Returns its usage in one line: name, flags, arguments.
    pub fn usage(&self) -> String {
        let background = if self.background { " [&]" } else { "" };
        format!("{} {}{}{background}", self.name, usage(&self.flags), self.takes)
    }

    /// Returns its usage and its summary, a line each.
    pub fn overview(&self) -> String {
        format!("{}\n\t{}\n", self.usage(), self.summary)
    }

    /// Returns its whole help: [`overview`](Command::overview), details, flags.
    pub fn help(&self) -> String {
        let mut text = self.overview();
        if !self.detail.is_empty() {
            text.push_str(&format!("\n\t{}\n", self.detail.replace('\n', "\n\t")));
        }
        if !self.flags.is_empty() {
            text.push_str("\n\tFlags:\n");
            for line in describe(&self.flags).split('\n') {
                text.push_str(&format!("\t{line}\n"));
            }
        }
        text
    }
}

impl<R> fmt::Debug for Command<R> {
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
