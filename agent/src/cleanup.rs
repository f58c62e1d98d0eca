//! `agent cleanup`: removes what agents have left on this node, ours or one of the original before us.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use cleanup::{Leftover, Places};
use daemon_config::Instance;
use hive::Settings;

/// The verb, and its name in the original's tool.
const WORDS: [&str; 2] = ["cleanup", "post-uninstall-cleanup"];

/// What the command line says beside options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// Only say what would be removed.
    dry_run: bool,
    /// Do not ask.
    force: bool,
    /// Only programs, links and maps.
    bpf_only: bool,
}

/// Takes the verb and its own flags out of a command line; `None` if it is another one.
pub(crate) fn take(args: &[String]) -> Option<(Flags, Vec<String>)> {
    if !args.iter().any(|arg| WORDS.contains(&arg.as_str())) {
        return None;
    }
    let mut flags = Flags::default();
    let rest = args.iter().filter(|arg| {
        match arg.as_str() {
            "--dry-run" => flags.dry_run = true,
            "-f" | "--force" => flags.force = true,
            "--bpf-state" => flags.bpf_only = true,
            // What is done without a flag.
            "--all-state" => {}
            other => return !WORDS.contains(&other),
        }
        false
    });
    let rest = rest.cloned().collect();
    Some((flags, rest))
}

/// Lists what is left and removes it.
pub(crate) fn run(settings: &Settings, flags: Flags) -> ExitCode {
    match clean(settings, flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!(%error, "Cannot clean up");
            ExitCode::FAILURE
        }
    }
}

/// Whether nothing is left that was to be removed.
fn clean(settings: &Settings, flags: Flags) -> anyhow::Result<bool> {
    let path = |key| settings.get(key).map(|setting| PathBuf::from(&setting.value)).unwrap_or_default();
    let places = Places { bpf_root: path("bpf-root"), run: path("state-dir"), socket: path("socket-path") };
    let find = || {
        let found = cleanup::find(&places)?.into_iter();
        anyhow::Ok(found.filter(|leftover| !flags.bpf_only || leftover.is_bpf()).collect::<Vec<_>>())
    };
    if !flags.dry_run {
        places.check_free()?;
    }
    let mut found = find()?;
    let mut out = io::stdout().lock();
    if flags.dry_run || found.is_empty() {
        list(&found, &mut out)?;
        return Ok(true);
    }
    if !flags.force {
        anyhow::ensure!(
            io::stdin().is_terminal(),
            "{} things would be removed (--dry-run lists them): give --force to remove them without being asked",
            found.len()
        );
        list(&found, &mut out)?;
        write!(out, "Remove all of this? [y/N] ")?;
        out.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        anyhow::ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was removed");
    }
    // No agent may start meanwhile.
    let instance = match places.run.is_dir() {
        true => Some(Instance::take(&places.run)?),
        false => None,
    };
    if instance.is_some() {
        found = find()?;
    }
    let mut all = true;
    for leftover in &found {
        match leftover.remove() {
            Ok(()) => writeln!(out, "removed {leftover}")?,
            Err(error) => {
                all = false;
                tracing::error!(%error, "Not removed: {leftover}");
            }
        }
    }
    drop(instance);
    Ok(all)
}

fn list(found: &[Leftover], out: &mut impl io::Write) -> io::Result<()> {
    found.iter().try_for_each(|leftover| writeln!(out, "{leftover}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<(Flags, Vec<String>)> {
        take(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_the_verbs_own() {
        let all = Flags { dry_run: true, force: true, bpf_only: false };
        assert_eq!(
            of("cleanup --dry-run -f --all-state --bpf-root=/b"),
            Some((all, vec!["--bpf-root=/b".into()]))
        );
        let original = Flags { force: true, bpf_only: true, ..Flags::default() };
        assert_eq!(of("post-uninstall-cleanup -f --bpf-state"), Some((original, Vec::new())));
        assert_eq!(of("hive --dry-run"), None);
        assert_eq!(of("--dry-run"), None);
    }
}
