//! The default commands.

mod compare;
mod exec;
mod files;
mod flow;
mod text;

pub(crate) use flow::{help, prompt};

use crate::command::ScriptCommand;

/// Returns the default commands: files, texts, variables, programs and control flow.
pub fn default_commands() -> Vec<ScriptCommand> {
    let lists =
        [files::commands(), text::commands(), compare::commands(), flow::commands(), vec![exec::exec()]];
    lists.into_iter().flatten().map(ScriptCommand).collect()
}

/// Returns the command `help`, which a live shell has, too.
pub fn help_command() -> ScriptCommand {
    ScriptCommand(flow::help_command())
}
