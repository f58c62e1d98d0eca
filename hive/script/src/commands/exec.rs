//! The command that runs a program.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use crate::command::{Run, on_state};
use crate::state::State;
use hive_command::{Call, Command, Output};

/// The grace period of a program after SIGINT; then it is killed.
const GRACE: Duration = Duration::from_millis(100);

pub(super) fn exec() -> Command<Run> {
    on_state("exec", "run an executable program with arguments", |state, call| {
        // Folder and variables are captured at the time of the call, also for a background command.
        let prepared = prepare(&state, &call);
        async move { run(prepared?, state).await }
    })
    .takes("program [args...]")
    .detail("The program is found in the script's PATH, and gets the script's variables and folder.")
    .in_background()
}

fn prepare(state: &State, call: &Call) -> anyhow::Result<tokio::process::Command> {
    let Some((program, args)) = call.at_least(1)?.split_first() else { bail!("no program") };
    let path = find(state, program)
        .with_context(|| format!("exec: \"{program}\": executable file not found in $PATH"))?;
    let mut command = tokio::process::Command::new(path);
    command.args(args).current_dir(state.folder()).env_clear().envs(state.variables());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    Ok(command)
}

fn find(state: &State, program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(state.path(program));
    }
    let path = state.variable("PATH");
    let folders = path.split(':').filter(|folder| !folder.is_empty());
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    folders.map(|folder| state.path(folder).join(program)).find(is_program)
}

/// A guard that kills the processes of a program when its caller is dropped.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            let _gone = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

async fn run(command: tokio::process::Command, state: State) -> anyhow::Result<Output> {
    let child = spawn(command).await?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let mut ended = std::pin::pin!(child.wait_with_output());
    let (output, interrupt) = tokio::select! {
        output = &mut ended => (output?, None),
        interrupt = state.interrupted() => {
            group.signal(Signal::INT);
            let output = tokio::time::timeout(GRACE, &mut ended).await;
            let Ok(output) = output else { return Err(interrupt.into()) };
            (output?, Some(interrupt))
        }
    };
    group.0 = None; // the group is gone with its last process; its id may be reused
    let status = output.status;
    let written = Output::streams(output.stdout, output.stderr);
    Ok(match (status.success(), interrupt) {
        (true, _) => written,
        (false, Some(interrupt)) => written.failed(anyhow::Error::new(interrupt).context(describe(status))),
        (false, None) => written.failed(anyhow::anyhow!(describe(status))),
    })
}

/// Starts the program. Retries on ETXTBSY: a program that was just written may still be open for writing in a
/// concurrently forked child.
async fn spawn(mut command: tokio::process::Command) -> anyhow::Result<Child> {
    let mut wait = Duration::from_millis(1);
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == std::io::ErrorKind::ExecutableFileBusy
                    && wait < Duration::from_secs(1) =>
            {
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
            result => return result.with_context(|| format!("exec {:?}", command.as_std().get_program())),
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit status {code}"),
        None => status.to_string(),
    }
}
