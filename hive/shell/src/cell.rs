//! The wiring.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use hive_script::{Engine, help_command};

use crate::serve::serve;
use crate::socket::Socket;

/// Where the shell listens. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "API")]
pub struct ShellConfig {
    /// Path to the shell UNIX socket, empty for none
    #[flag(default = "/var/run/cilium/shell.sock")]
    pub shell_sock_path: PathBuf,
}

/// Returns the cell of the shell on the socket, with the [`Engine`] of the commands that cells contribute.
pub fn cell() -> Cell {
    let cells = [config::<ShellConfig>(), invoke(listen)];
    bundle([hive_script::cell(), module("shell", "Commands of this agent over a unix socket", cells)])
}

/// Adds the job that listens. A failure to listen is reported in health and retried: the agent works without a shell.
fn listen(config: Config<ShellConfig>, engine: Arc<Engine>, jobs: JobGroup) -> anyhow::Result<()> {
    let path = config.shell_sock_path.clone();
    if path.as_os_str().is_empty() {
        tracing::info!("Shell socket path not set, not starting shell server");
        return Ok(());
    }
    let engine = Arc::new(Engine::clone(&engine).with([help_command()])?);
    let backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60));
    jobs.one_shot_with_retry("listener", backoff, move |cx: JobCx| {
        let (path, engine) = (path.clone(), engine.clone());
        async move {
            let place = path.clone();
            let socket = hive::blocking(move || Socket::bind(&place)).await?;
            cx.health.ok(format_args!("Listening on {}", path.display()));
            tracing::info!(socket = %path.display(), "Shell listening");
            serve(&socket, &engine, cx.token()).await;
            hive::blocking(move || drop(socket)).await;
            Ok(())
        }
    })
    .add();
    Ok(())
}
