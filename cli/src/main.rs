//! The operator's command line: the equivalent of `cilium-dbg`, and callable by that name; as `cilium-health`,
//! `hubble` and `cilium-bugtool` it is its command `health`, `hubble` or `sysdump`.
//!
//! **Owns** nothing. **Needs** the agent's socket (`CILIUM_SOCK`) for the agent's state, and root and the bpf file
//! system for `bpf ...`, which reads pinned maps without an agent. **Provides** tables as `cilium-dbg` prints them, `-o
//! json`, `-o yaml` and `-o jsonpath=...`; exit code 1 on any error, and 2 when `why` finds that packets are dropped.

mod client;
mod commands;
mod output;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};
use commands::Arguments;
use commands::sysdump::CILIUM_NAME;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = match Path::new(&program).file_name().and_then(|name| name.to_str()) {
        Some("cilium-health") => "cilium-health",
        Some("hubble") => "hubble",
        Some(CILIUM_NAME) => CILIUM_NAME,
        Some("cilium") => "cilium",
        Some("cilium-dbg") => "cilium-dbg",
        _ => "apiary",
    };
    let command = Arguments::command().name(name).bin_name(name);
    let mut words: Vec<OsString> = std::env::args_os().collect();
    match name {
        "cilium-health" => words.insert(1, "health".into()),
        "hubble" => words.insert(1, name.into()),
        CILIUM_NAME => words.insert(1, "sysdump".into()),
        _ => {}
    }
    let arguments =
        command.try_get_matches_from(words).and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match arguments {
        Ok(arguments) => arguments,
        // A group of commands without one prints its help, which is no error to Cilium's programs.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = write!(io::stdout(), "{error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let wanted_help = !error.use_stderr();
            let _ = error.print();
            return if wanted_help { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let result = commands::run(name, &arguments, &mut out);
    match result.and_then(|code| out.flush().map(|()| code).map_err(Into::into)) {
        Ok(code) => code,
        // The reader has closed the pipe, as `head` does: not an error.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = out.flush();
            let _ = writeln!(io::stderr(), "Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
