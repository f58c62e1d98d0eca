//! One use of a command: its arguments, its environment, its output.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::flags::Flags;

/// A boxed future.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The files, variables and log that a script or a shell gives to its commands.
pub trait Environment: Send + Sync {
    /// Returns the content of a file. Relative names are in the environment's folder.
    fn read(&self, name: &str) -> anyhow::Result<Vec<u8>>;

    /// Creates or truncates a file and writes it.
    fn write(&self, name: &str, data: &[u8]) -> anyhow::Result<()>;

    /// Whether commands may use only files of the environment's folder, as in a shell that is open to other processes.
    fn is_confined(&self) -> bool;

    /// Returns the text with its variables replaced.
    fn expand(&self, text: &str) -> String;

    /// Adds text to the log as it is.
    fn log(&self, text: &str);

    /// Waits until the reader of the log has taken all but a small part, as backpressure on endless output.
    fn drained(&self) -> Pending<'_, ()>;
}

/// One use of a command.
pub struct Call {
    environment: Arc<dyn Environment>,
    /// The flags.
    pub flags: Flags,
    /// The arguments, without flags.
    pub args: Vec<String>,
}

impl Call {
    /// Returns a call of a command in an environment. Engines make calls; a command only uses them.
    pub fn new(environment: Arc<dyn Environment>, flags: Flags, args: Vec<String>) -> Self {
        Call { environment, flags, args }
    }

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

    /// Returns the content of a file of the environment.
    pub fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        self.environment.read(name)
    }

    /// Creates or truncates a file of the environment and writes it.
    pub fn write(&self, name: &str, data: impl AsRef<[u8]>) -> anyhow::Result<()> {
        self.environment.write(name, data.as_ref())
    }

    /// Whether the command may use only files of the environment's folder.
    pub fn is_confined(&self) -> bool {
        self.environment.is_confined()
    }

    /// Returns the text with its variables replaced.
    pub fn expand(&self, text: &str) -> String {
        self.environment.expand(text)
    }

    /// Adds a line to the log.
    pub fn log(&self, line: impl fmt::Display) {
        self.environment.log(&format!("{line}\n"));
    }

    /// Adds text to the log as it is.
    pub fn log_text(&self, text: &str) {
        self.environment.log(text);
    }

    /// Waits until the reader of the log has taken most of it: a command without an end waits before it writes more.
    pub async fn drained(&self) {
        self.environment.drained().await;
    }

    /// Writes a text to the file that a flag such as `--out` names, or returns it as the command's output.
    pub fn to_file_or_stdout(&self, flag: &str, text: String) -> anyhow::Result<Output> {
        match self.flags.text(flag) {
            "" => Ok(Output::text(text)),
            file => {
                self.write(file, text)?;
                Ok(Output::text(""))
            }
        }
    }

    /// Writes a text to the file that a flag names, or to the log; see [`to_file_or_stdout`](Call::to_file_or_stdout).
    pub fn to_file_or_log(&self, flag: &str, text: &str) -> anyhow::Result<Output> {
        match self.flags.text(flag) {
            "" => self.log_text(text),
            file => self.write(file, text)?,
        }
        Ok(Output::none())
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("flags", &self.flags).field("args", &self.args).finish_non_exhaustive()
    }
}

/// The two output streams of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    /// The standard output.
    pub stdout: Vec<u8>,
    /// The standard error.
    pub stderr: Vec<u8>,
}

/// The output of a command.
#[derive(Debug, Default)]
pub struct Output {
    buffers: Option<Buffers>,
    error: Option<anyhow::Error>,
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
        Buffers { stdout: stdout.into(), stderr: stderr.into() }.into()
    }

    /// Marks the command as failed; its output is kept.
    pub fn failed(mut self, error: impl Into<anyhow::Error>) -> Self {
        self.error = Some(error.into());
        self
    }

    /// Returns the streams, if the command had output.
    pub fn buffers(&self) -> Option<&Buffers> {
        self.buffers.as_ref()
    }

    /// Returns the streams, if the command had output, and the error of a failed command.
    pub fn into_parts(self) -> (Option<Buffers>, Option<anyhow::Error>) {
        (self.buffers, self.error)
    }
}

impl From<Buffers> for Output {
    fn from(buffers: Buffers) -> Self {
        Output { buffers: Some(buffers), error: None }
    }
}
