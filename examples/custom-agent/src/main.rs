//! `beekeeper`: a custom agent. It has a name, a prefix of environment variables and a socket of its own, all cells of
//! Apiary, and an additional one.

mod census;

use std::process::ExitCode;

use hive::Hive;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    Hive::builder([agent::cells(), census::cell()])
        .preset("socket-path", "/run/beekeeper/beekeeper.sock")
        .preset("state-dir", "/run/beekeeper")
        .process("BEEKEEPER_")
        .config_files()
        .foreign(agent::known_options())
        .main() // until SIGTERM or SIGINT
        .await
}
