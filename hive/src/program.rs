//! A hive as a whole program.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::builder::HiveBuilder;

impl HiveBuilder {
    /// Runs a hive as a program's `main`: builds it, answers `--help`, runs it until a signal or a shutdown, prints
    /// errors to standard error, and returns the exit code: 0 after an orderly end, 1 if the hive could not be built,
    /// otherwise that of the [`Outcome`](crate::Outcome).
    ///
    /// ```no_run
    /// # fn cells() -> hive::Cell { hive::bundle(Vec::<hive::Cell>::new()) }
    /// #[tokio::main]
    /// async fn main() -> std::process::ExitCode {
    ///     hive::Hive::builder(cells()).process("NOTES_").main().await
    /// }
    /// ```
    ///
    /// Programs with subcommands, or with a log of their own design, [build](HiveBuilder::build) and
    /// [run](crate::Hive::run) directly.
    pub async fn main(self) -> ExitCode {
        let hive = match self.build() {
            Ok(hive) => hive,
            Err(error) => {
                print_error(error);
                return ExitCode::FAILURE;
            }
        };
        let arguments = hive.arguments();
        if arguments.help {
            let text = format!("Usage: {} [OPTIONS]\n\nOptions:\n{}", name(), hive.usage());
            return print(&text);
        }
        if let Some(word) = arguments.words.first() {
            print_error(format_args!("nothing is known to do with `{word}`; `--help` lists the options"));
            return ExitCode::FAILURE;
        }
        hive.settings().report();
        let outcome = hive.run().await;
        outcome.errors.iter().for_each(print_error);
        outcome.exit_code()
    }
}

/// Returns the name of the program as on its command line.
fn name() -> String {
    let path = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Writes to standard error; a write error is ignored, because it cannot be reported anywhere.
fn print_error(what: impl std::fmt::Display) {
    let _ignored = writeln!(io::stderr(), "{}: {what}", name());
}

/// Prints a text; a reader that has closed its end of the pipe is not an error.
fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}
