//! `ui`: a page in a browser on this machine, of what the agent and its server of flows have. `guard` decides which requests
//! are answered, `server` how, `panels` and `flows` have the contents.

mod body;
mod flows;
mod guard;
mod panels;
mod server;

use std::convert::Infallible;
use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use http_server::Bounds;
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::guard::Guard;
use self::server::Ui;
use crate::client::Agent;
use crate::commands::hubble::ServerOptions;
use crate::commands::shell::ShellSocket;

/// The maximum number of connections: a browser opens up to six for each of its windows.
const CONNECTIONS: usize = 32;
/// The timeout for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The size of a connection's read buffer, and of its write buffer, in bytes.
const BUFFER: usize = 16 << 10;
/// The maximum number of requests that wait for the agent.
const THREADS: usize = 8;

#[derive(Debug, Args)]
pub(crate) struct UiOptions {
    /// Port at 127.0.0.1 (default: one that is free)
    #[arg(long, default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    shell: ShellSocket,
    #[command(flatten)]
    hubble: ServerOptions,
}

/// Prints the address of the page, and serves it until the process is interrupted.
pub(crate) fn run(agent: &Agent, options: &UiOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let ui = Ui {
        guard: Guard::random().context("cannot make a token")?,
        agent: agent.address().clone(),
        hubble: options.hubble.server(agent)?,
        shell: options.shell.path().to_owned(),
        tasks: TaskTracker::new(),
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().max_blocking_threads(THREADS).enable_all().build()?;
    runtime.block_on(serve(Arc::new(ui), options.port, out))
}

async fn serve(ui: Arc<Ui>, port: u16, out: &mut dyn Write) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| format!("cannot listen at 127.0.0.1:{port}"))?;
    writeln!(out, "http://{}/{}/", listener.local_addr()?, ui.guard.token())?;
    out.flush()?;
    let service = service_fn(move |request| {
        let answer = ui.clone().answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let bounds = Bounds::new(CONNECTIONS).header_timeout(HEADER_TIMEOUT).buffer(BUFFER);
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    // A failed accept is repeated; a person at the page needs no report of it.
    http_server::serve(&listener, bounds, service, &stop, &tasks, |_| {}).await;
    Ok(())
}
