//! `apiary cleanup`, `apiary build-config`, `apiary preflight`: verbs of the agent, under the names that scripts use with `cilium-dbg`.

use anyhow::Context as _;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// Replaces this process by `agent VERB` with these arguments. Returns only if no agent binary is found.
pub(crate) fn run(verb: &str, arguments: &[OsString]) -> anyhow::Result<()> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("agent"));
    let agent = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("agent"));
    let error = Command::new(&agent).arg(verb).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {} {verb}", agent.display()))
}
