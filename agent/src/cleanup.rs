//! `agent cleanup`: removes kernel state and files that agents, this one or Cilium's, have left on this node.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use api::ApiConfig;
use cleanup::{Leftover, Places};
use daemon_config::Instance;
use hive::Hive;
use hive::prelude::*;
use local_node::StateConfig;
use maps::MapsConfig;

/// The command, and its name in Cilium's tool.
pub(crate) const WORDS: [&str; 2] = ["cleanup", "post-uninstall-cleanup"];

/// Options of the command.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Cleanup")]
struct CleanupConfig {
    /// Only list what would be removed
    #[flag(default = false)]
    dry_run: bool,
    /// Do not ask before removing
    #[flag(default = false, short = 'f')]
    force: bool,
    /// Remove everything; the default unless bpf-state is set
    #[flag(default = false)]
    all_state: bool,
    /// Remove only programs, links and maps; no effect with all-state
    #[flag(default = false)]
    bpf_state: bool,
}

impl CleanupConfig {
    fn takes(&self, leftover: &Leftover) -> bool {
        self.all_state || !self.bpf_state || leftover.is_bpf()
    }
}

/// Declares the options.
pub(crate) fn cell() -> Cell {
    module("cleanup", "Removes what agents have left", [config::<CleanupConfig>()])
}

/// Lists leftovers and removes them.
pub(crate) fn run(hive: &Hive) -> ExitCode {
    match clean(hive) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!(%error, "Cannot clean up");
            ExitCode::FAILURE
        }
    }
}

/// Whether all selected leftovers were removed, or only listed as requested.
fn clean(hive: &Hive) -> anyhow::Result<bool> {
    let config = hive.config::<CleanupConfig>()?;
    let places = Places {
        bpf_root: hive.config::<MapsConfig>()?.bpf_root.into(),
        run: hive.config::<StateConfig>()?.run().to_owned(),
        socket: hive.config::<ApiConfig>()?.socket_path,
    };
    let find = || {
        let found = cleanup::find(&places)?.into_iter();
        anyhow::Ok(found.filter(|leftover| config.takes(leftover)).collect::<Vec<_>>())
    };
    if !config.dry_run {
        places.check_free()?;
    }
    let mut found = find()?;
    let mut out = io::stdout().lock();
    if config.dry_run || found.is_empty() {
        list(&found, &mut out)?;
        return Ok(true);
    }
    if !config.force {
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
    // Hold the instance lock, so that no agent starts during the removal. The first list was made without it: repeat.
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

    fn taken(args: &[&str]) -> (bool, bool) {
        let hive = Hive::builder([]).command(WORDS, cell()).args(args.iter().copied()).build().unwrap();
        let config = hive.config::<CleanupConfig>().unwrap();
        (config.takes(&Leftover::Pin("cilium_lxc".into())), config.takes(&Leftover::Rule))
    }

    /// As with Cilium's command, `all-state` takes precedence over `bpf-state`.
    #[test]
    fn a_part_or_everything() {
        assert_eq!(taken(&["cleanup"]), (true, true));
        assert_eq!(taken(&["cleanup", "--all-state"]), (true, true));
        assert_eq!(taken(&["post-uninstall-cleanup", "-f", "--bpf-state"]), (true, false));
        assert_eq!(taken(&["cleanup", "--bpf-state", "--all-state"]), (true, true));
    }
}
