//! `completion`: a script with which a shell completes command lines of this program.

use std::io::Write;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::commands::Arguments;

#[derive(Debug, Args)]
pub(crate) struct CompletionOptions {
    /// The shell; for bash: source <(apiary completion bash)
    shell: Shell,
}

/// Writes the script for the program as it is called.
pub(crate) fn run(name: &str, options: &CompletionOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    // The generator panics where it cannot write, as into a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Arguments::command(), name, &mut script);
    Ok(out.write_all(&script)?)
}
