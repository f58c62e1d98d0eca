//! `beekeeper`: an agent of our own. It has a name, a prefix of environment variables and a socket of its own, all
//! cells of Apiary, and one that Apiary does not have.

mod census;

use std::process::ExitCode;

use hive::Hive;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let built = Hive::builder([agent::cells(), census::cell()])
        .preset("socket-path", "/run/beekeeper/beekeeper.sock")
        .preset("state-dir", "/run/beekeeper")
        .process("BEEKEEPER_")
        .config_files()
        .foreign(agent::known_options())
        .build();
    let hive = match built {
        Ok(hive) => hive,
        Err(error) => return failed(&error),
    };
    if hive.arguments().help {
        print!("Usage: beekeeper [OPTIONS]\n{}", hive.usage());
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let outcome = runtime.block_on(hive.run()); // until SIGTERM or SIGINT
    outcome.errors.iter().for_each(|error| drop(failed(error)));
    outcome.exit_code()
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("beekeeper: {error}");
    ExitCode::FAILURE
}
