//! The operator's command line: what `cilium-dbg` is to Cilium, under whose names it answers too.
//!
//! **Owns** nothing. **Needs** the agent's socket (`CILIUM_SOCK`) for what the agent knows, and root and the bpf file
//! system for `bpf ...`, which reads pinned maps whether an agent runs or not. **Provides** tables as `cilium-dbg` prints
//! them, `-o json`, `-o yaml` and `-o jsonpath=...`; exit code 1 on any error, and 2 when `why` finds that packets
//! are dropped.

mod agent;
mod agent_verb;
mod args;
mod bpf_ct;
mod bpf_lb;
mod bpf_lb_maglev;
mod bpf_maps;
mod config;
mod db;
mod endpoint;
mod get;
mod identity;
mod inventory;
mod jsonpath;
mod lrp;
mod output;
mod policy;
mod service;
mod shell;
mod statedb;
mod status;
mod table;
mod time;
mod unserved;
mod version;
mod why;
mod words;

use agent::Agent;
use args::{
    Arguments, BpfCommand, Command, ConfigCommand, EndpointCommand, IdentityCommand, IpCommand, List,
    LrpCommand, MapCommand, RulesCommand,
};
use clap::{CommandFactory as _, FromArgMatches as _};
use service::ServiceCommand;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = match Path::new(&program).file_name().and_then(|name| name.to_str()) {
        Some("cilium") => "cilium",
        Some("cilium-dbg") => "cilium-dbg",
        _ => "apiary",
    };
    let command = Arguments::command().name(name).bin_name(name);
    let arguments = command.try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(error) => {
            let wanted_help = !error.use_stderr();
            let _ = error.print();
            return if wanted_help { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let result = run(&arguments, &mut out);
    match result.and_then(|code| out.flush().map(|()| code).map_err(Into::into)) {
        Ok(code) => code,
        // Whoever read us has seen enough.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = out.flush();
            let _ = writeln!(io::stderr(), "Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let agent = &mut Agent::new(arguments.host.as_deref());
    let done = match &arguments.command {
        Command::Status(options) => return status::run(agent, options, out),
        Command::Version(options) => return version::run(agent, options, out),
        Command::Config(options) => match &options.command {
            Some(ConfigCommand::Get { key, output }) => config::get(agent, key, output, out),
            Some(ConfigCommand::Drift) => config::drift(agent, out),
            None => config::run(agent, options, out),
        },
        Command::Endpoint(command) => match command {
            EndpointCommand::List(options) => endpoint::list(agent, options, out),
            EndpointCommand::Get(options) => endpoint::get(agent, options, out),
            EndpointCommand::Health { id, output } => endpoint::health(agent, id, output, out),
            EndpointCommand::Log { id, output } => endpoint::log(agent, id, output, out),
            EndpointCommand::Labels { id, add, delete } => endpoint::labels(agent, id, add, delete, out),
            EndpointCommand::Config { id, changes, output } => {
                endpoint::config(agent, id, changes, output, out)
            }
            EndpointCommand::Disconnect { id } => endpoint::disconnect(agent, id, out),
        },
        Command::Identity(command) => match command {
            IdentityCommand::List { output } => identity::list(agent, output, out),
            IdentityCommand::Get { id, labels, output } => identity::get(agent, *id, labels, output, out),
        },
        Command::Ip(command) => match command {
            IpCommand::List(options) => inventory::ips(agent, options, out),
            IpCommand::Get { prefix, labels, options } => {
                inventory::ip(agent, prefix.as_deref(), labels, options, out)
            }
        },
        Command::Policy(command) => match command {
            RulesCommand::Get { output } => policy::get(agent, output, out),
            RulesCommand::Selectors(options) => policy::selectors(agent, "/policy/selectors", options, out),
            RulesCommand::SubjectSelectors(options) => {
                policy::selectors(agent, "/policy/subject-selectors", options, out)
            }
            RulesCommand::Wait(options) => policy::wait(agent, options),
        },
        Command::BuildConfig { arguments } => agent_verb::run("build-config", arguments),
        Command::Cleanup { arguments } => agent_verb::run("cleanup", arguments),
        Command::Service(command) => match command {
            ServiceCommand::List { clustermesh_affinity, output } => {
                service::list(agent, *clustermesh_affinity, output, out)
            }
            ServiceCommand::Get { id, output } => service::get(agent, *id, output, out),
        },
        Command::Lrp(LrpCommand::List { output }) => lrp::list(agent, output, out),
        Command::Get(options) => return get::run(agent, options, out),
        Command::Db(options) => return db::run(options, out),
        Command::Shell(options) => return shell::run(options, out),
        Command::Why(options) => return why::run(agent, options, out),
        Command::Statedb(options) => statedb::dump(agent, options, out),
        Command::Node(List::List(options)) => inventory::nodes(agent, options, out),
        Command::Map(command) => match command {
            MapCommand::List { verbose, output } => inventory::maps(agent, *verbose, output, out),
            MapCommand::Get { name, output } => inventory::map(agent, name, output, out),
        },
        Command::Bpf(command) => {
            bpf_maps::require_root()?;
            match command {
                BpfCommand::Endpoint(List::List(options)) => bpf_maps::endpoints(&options.output, out),
                BpfCommand::Ipcache(command) => match command {
                    args::IpcacheCommand::List(options) => bpf_maps::ipcache(&options.output, out),
                    args::IpcacheCommand::Get { ip } => return bpf_maps::ipcache_get(*ip, out),
                },
                BpfCommand::Metrics(List::List(options)) => bpf_maps::metrics(&options.output, out),
                BpfCommand::Policy(command) => match command {
                    args::PolicyCommand::Get(options) => bpf_maps::policy(agent, options, out),
                    args::PolicyCommand::List { numeric, output } => {
                        bpf_maps::policies(agent, *numeric, output, out)
                    }
                },
                BpfCommand::Lb(command) => bpf_lb::run(command, out),
                BpfCommand::Ct(args::CtCommand::List(options)) => bpf_ct::list(agent, options, out),
            }
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
