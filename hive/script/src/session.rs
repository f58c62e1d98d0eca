//! The run loop: lines one after the other, retries of sections, commands in the background.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hive_command::{Buffers, Call, Command, Output, Request};
use tokio::time::Instant;

use crate::command::Run;
use crate::commands::{help, prompt};
use crate::engine::Engine;
use crate::error::{Fault, Interrupt, ScriptError, Stop, TYPED, UnexpectedSuccess, causes};
use crate::line::{Expect, Line, Piece, Word, joined, quote_all};
use crate::state::State;

/// The grace period of a command that supports cancellation.
const GRACE: Duration = Duration::from_millis(500);

/// A session of lines on one state.
pub struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) state: State,
    background: Vec<Background>,
}

/// A command that runs in the background.
struct Background {
    shown: String,
    expect: Expect,
    run: BoxFuture<'static, anyhow::Result<Output>>,
    done: Option<anyhow::Result<Output>>,
}

/// A line with its variables replaced, ready to run, possibly several times.
struct Prepared {
    command: Command<Run>,
    words: Vec<String>,
    expect: Expect,
    background: bool,
    shown: String,
}

/// The command of a line.
#[derive(PartialEq, Eq)]
enum Next {
    Go,
    Stop,
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>, state: State) -> Self {
        Session { engine, state, background: vec![] }
    }

    /// Runs the lines of a script; `file` is its name in errors. Background commands continue after it.
    pub async fn script(&mut self, file: &str, script: &str) -> Result<(), ScriptError> {
        let (mut section, mut since) = (vec![], Instant::now());
        let mut result = Ok(());
        for (index, text) in script.lines().enumerate() {
            if text.starts_with('#') {
                self.state.log().end_section(since.elapsed());
                self.state.log().begin_section(text);
                section.clear();
                since = Instant::now();
                continue;
            }
            if Line::parse(text) != Ok(None) {
                self.state.log().write(&format!("> {text}\n"));
            }
            match self.line_of(text, Some(&mut section)).await {
                Ok(Next::Go) => {}
                Ok(Next::Stop) => break,
                Err(fault) => {
                    result = Err(ScriptError { file: file.to_owned(), line: index + 1, fault });
                    break;
                }
            }
        }
        self.state.log().end_section(since.elapsed());
        result
    }

    /// Runs one line, as typed by a user, without retries.
    pub async fn line(&mut self, text: &str) -> Result<(), ScriptError> {
        let result = self.line_of(text, None).await;
        result.map(drop).map_err(|fault| ScriptError { file: TYPED.to_owned(), line: 0, fault })
    }

    /// Ends background commands; returns an error if one did not end as expected.
    pub async fn finish(&mut self) -> Result<(), ScriptError> {
        self.state.cancel();
        let result = self.join().await.map(drop);
        result.map_err(|fault| ScriptError { file: "<end>".to_owned(), line: 0, fault })
    }

    async fn line_of(&mut self, text: &str, section: Option<&mut Vec<Prepared>>) -> Result<Next, Fault> {
        if let Some(interrupt) = self.state.interrupt() {
            return Err(interrupt.into());
        }
        let Some(line) = Line::parse(text)? else { return Ok(Next::Go) };
        for guard in &line.guards {
            if self.engine.holds(&self.state, guard).map_err(Fault::Condition)? != guard.wanted {
                self.state.log().write("[condition not met]\n");
                return Ok(Next::Go);
            }
        }
        let prepared = self.prepare(line)?;
        let Some(section) = section else { return self.run(&prepared).await };
        section.push(prepared);
        let Some(last) = section.last() else { return Ok(Next::Go) };
        match self.run(last).await {
            Err(fault) if last.expect.retries() && fault.may_pass() => self.retry(section, fault).await,
            result => result,
        }
    }

    fn expanded(&self, word: &Word) -> String {
        let expand = |piece: &Piece| match piece.quoted {
            true => piece.text.clone(),
            false => self.state.expand(&piece.text),
        };
        word.iter().map(expand).collect()
    }

    /// Finds the command and replaces the variables of its words; retries use the same values.
    fn prepare(&self, line: Line) -> Result<Prepared, Fault> {
        let command = self.engine.command(&line.command);
        let command = command.cloned().ok_or_else(|| {
            let words: Vec<String> = line.words.iter().map(|word| self.expanded(word)).collect();
            Fault::UnknownCommand(shown(&line.command, &words))
        })?;
        let regexp = if command.first_is_regexp() { first_argument(&line.words) } else { None };
        let expand = |(index, word): (usize, &Word)| {
            if regexp != Some(index) {
                return self.expanded(word);
            }
            let mut text = String::new();
            for piece in word {
                match piece.quoted {
                    true => text.push_str(&piece.text),
                    false => text.push_str(&crate::expand::expand(&piece.text, |name| {
                        regex::escape(&self.state.variable(name))
                    })),
                }
            }
            text
        };
        let words: Vec<String> = line.words.iter().enumerate().map(expand).collect();
        let shown = shown(command.name(), &words);
        let background = line.background;
        if background && !command.may_run_in_background() {
            return Err(Fault::NoBackground(shown));
        }
        Ok(Prepared { command, words, expect: line.expect, background, shown })
    }

    /// Retries a section from its first command until all its commands end as expected.
    async fn retry(&mut self, section: &[Prepared], first: Fault) -> Result<Next, Fault> {
        let (mut fault, mut wait) = (first, self.engine.retry.first);
        loop {
            self.state.log().write(&format!("({fault}; retrying in {wait:?}...)\n"));
            let state = self.state.clone();
            tokio::select! {
                interrupt = state.interrupted() => return Err(given_up(fault, interrupt)),
                () = self.beside(tokio::time::sleep(wait)) => {}
            }
            wait = (wait * 2).min(self.engine.retry.most);
            let mut failed = None;
            for prepared in section {
                match self.run(prepared).await {
                    Ok(Next::Go) => {}
                    Ok(Next::Stop) => return Ok(Next::Stop),
                    Err(fault) if !fault.may_pass() => return Err(fault),
                    Err(fault) => {
                        failed = Some(fault);
                        break;
                    }
                }
            }
            match failed {
                None => return Ok(Next::Go),
                Some(again) if self.state.interrupt().is_none() => fault = again,
                Some(_) => return Err(given_up(fault, Interrupt::Deadline)),
            }
        }
    }

    async fn run(&mut self, prepared: &Prepared) -> Result<Next, Fault> {
        let Prepared { command, words, .. } = prepared;
        let call = match command.request(words) {
            Ok(Request::Help) => {
                let help = self.engine.describe(true, |name| name == command.name());
                self.take(Output::text(help));
                return Ok(Next::Go);
            }
            Ok(Request::Complete(typed)) => {
                let suggestions = command.complete(&typed);
                self.take(Output::text(
                    suggestions.iter().map(|line| format!("{line}\n")).collect::<String>(),
                ));
                return Ok(Next::Go);
            }
            Ok(Request::Run(flags, args)) => Call::new(Arc::new(self.state.clone()), flags, args),
            Err(error) => return Err(Fault::Flags { command: prepared.shown.clone(), error }),
        };
        // Errors show the arguments without flags.
        let shown = shown(command.name(), &call.args);
        if prepared.background {
            self.begin(prepared, shown, call);
            return Ok(Next::Go);
        }
        let result = match command.run() {
            Run::Function(run) => {
                let run = run.clone();
                self.guarded(command.may_run_in_background(), async move { run(call).await }).await
            }
            Run::Script(run) => {
                let (run, state) = (run.clone(), self.state.clone());
                self.guarded(command.may_run_in_background(), async move { run(state, call).await }).await
            }
            Run::Wait if !call.args.is_empty() => call.exactly::<0>().map(|_| Output::none()),
            Run::Wait => self.join().await.map(Output::from).map_err(Into::into),
            Run::Break => prompt(self).await,
            Run::Help => help(&self.engine, &call),
        };
        let failed = match result {
            Ok(output) => self.take(output),
            Err(error) => Some(error),
        };
        judge(&shown, prepared.expect, failed, &self.state)
    }

    /// Moves the output of a command into buffers and log; returns its error.
    fn take(&self, output: Output) -> Option<anyhow::Error> {
        let (buffers, error) = output.into_parts();
        if let Some(buffers) = buffers {
            self.state.log().block("stdout", &buffers.stdout);
            self.state.log().block("stderr", &buffers.stderr);
            self.state.set_buffers(buffers);
        }
        error
    }

    /// Runs a command concurrently with those in the background, until it is done or the script is interrupted.
    async fn guarded(
        &mut self,
        may_end_itself: bool,
        run: impl Future<Output = anyhow::Result<Output>>,
    ) -> anyhow::Result<Output> {
        let state = self.state.clone();
        let interrupted = async move {
            let interrupt = state.interrupted().await;
            if may_end_itself {
                tokio::time::sleep(GRACE).await;
            }
            interrupt
        };
        tokio::select! {
            biased;
            result = self.beside(caught(run)) => result,
            interrupt = interrupted => Err(interrupt.into()),
        }
    }

    /// Runs a future concurrently with everything in the background.
    async fn beside<T>(&mut self, run: impl Future<Output = T>) -> T {
        let mut run = std::pin::pin!(run);
        std::future::poll_fn(|cx| {
            for background in self.background.iter_mut().filter(|background| background.done.is_none()) {
                if let Poll::Ready(result) = background.run.poll_unpin(cx) {
                    background.done = Some(result);
                }
            }
            run.as_mut().poll(cx)
        })
        .await
    }

    /// Starts a command in the background.
    fn begin(&mut self, prepared: &Prepared, shown: String, call: Call) {
        let Some(run) = prepared.command.run().call(&self.state, call) else { return };
        let run = caught(run).boxed();
        self.background.push(Background { shown, expect: prepared.expect, run, done: None });
        self.state.set_buffers(Buffers::default());
    }

    /// Waits for all background commands; returns their outputs in order, or the first error of a command with an
    /// unexpected result.
    async fn join(&mut self) -> Result<Buffers, Fault> {
        let (mut all, mut first) = (Buffers::default(), None);
        for mut background in std::mem::take(&mut self.background) {
            let result = match background.done.take() {
                Some(result) => result,
                None => self.guarded(true, background.run).await,
            };
            self.state.log().write(&format!("[background] {}\n", background.shown));
            let failed = match result {
                Ok(output) => {
                    let (buffers, error) = output.into_parts();
                    let buffers = buffers.unwrap_or_default();
                    all.stdout.extend(buffers.stdout);
                    all.stderr.extend(buffers.stderr);
                    error
                }
                Err(error) => Some(error),
            };
            if let Err(fault) = judge(&background.shown, background.expect, failed, &self.state) {
                first.get_or_insert(fault);
            }
        }
        first.map_or(Ok(all), Err)
    }
}

/// Formats a command with its arguments in the syntax of a line.
fn shown(command: &str, words: &[String]) -> String {
    if words.is_empty() { command.to_owned() } else { format!("{command} {}", quote_all(words)) }
}

/// Returns the first argument of a command, as far as it is known before expansion.
fn first_argument(words: &[Word]) -> Option<usize> {
    let first = words.iter().position(|word| {
        let text = joined(word);
        text == "--" || !text.starts_with('-')
    })?;
    Some(if joined(&words[first]) == "--" { first + 1 } else { first })
}

/// Checks the result of a command against the one that its line expects.
fn judge(shown: &str, expect: Expect, failed: Option<anyhow::Error>, state: &State) -> Result<Next, Fault> {
    let Some(error) = failed else {
        return if expect.failure() {
            Err(Fault::Command { command: shown.to_owned(), error: UnexpectedSuccess.into() })
        } else {
            Ok(Next::Go)
        };
    };
    if let Some(stop) = error.downcast_ref::<Stop>() {
        state.log().write(&format!("{stop}\n"));
        return Ok(Next::Stop);
    }
    // The prefix of `wait` does not apply to the commands that it joins: their errors have been checked already.
    let error = match error.downcast::<Fault>() {
        Ok(fault) => return Err(fault),
        Err(error) => error,
    };
    let interrupted = error.chain().any(|cause| cause.is::<Interrupt>());
    if expect == Expect::Either || (expect.failure() && !interrupted) {
        state.log().write(&format!("[{}]\n", causes(&error)));
        return Ok(Next::Go);
    }
    Err(Fault::Command { command: shown.to_owned(), error })
}

fn given_up(fault: Fault, interrupt: Interrupt) -> Fault {
    match fault {
        Fault::Command { command, error } if !error.is::<Interrupt>() => {
            Fault::Command { command, error: anyhow::anyhow!("{} ({interrupt})", causes(&error)) }
        }
        fault => fault,
    }
}

/// Turns a panic into an error.
async fn caught(run: impl Future<Output = anyhow::Result<Output>>) -> anyhow::Result<Output> {
    AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(anyhow::anyhow!("panicked: {text}"))
    })
}
