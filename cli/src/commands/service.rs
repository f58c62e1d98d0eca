//! `service`: frontends and their backends, as known to the agent.

use std::fmt::Write as _;
use std::io::Write;

use anyhow::{Context as _, bail};
use api_models::{Service, ServiceFlags, ServiceSpec};
use clap::Subcommand;

use crate::client::Agent;
use crate::output::{Output, table};

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// List services
    #[command(visible_alias = "ls")]
    List {
        /// Print clustermesh affinity if available
        #[arg(long)]
        clustermesh_affinity: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Display a service
    Get {
        /// Its number
        id: i64,
        #[command(flatten)]
        output: Output,
    },
}

/// Runs a verb of `service`.
pub(crate) fn run(agent: &mut Agent, command: &ServiceCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        ServiceCommand::List { clustermesh_affinity, output } => {
            list(agent, *clustermesh_affinity, output, out)
        }
        ServiceCommand::Get { id, output } => get(agent, *id, output, out),
    }
}

fn list(agent: &mut Agent, affinity: bool, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let services: Vec<Service> = agent.get("/service").context("cannot get services")?;
    if output.write(&services, out)? { Ok(()) } else { print(&services, affinity, out) }
}

fn get(agent: &mut Agent, id: i64, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let services: Vec<Service> = agent.get("/service").context("cannot get services")?;
    let Some(service) =
        services.into_iter().find(|service| realized(service).is_some_and(|spec| spec.id == id))
    else {
        bail!("there is no service {id}");
    };
    if output.write(&service, out)? { Ok(()) } else { print(&[service], false, out) }
}

/// Returns the realized state.
fn realized(service: &Service) -> Option<&ServiceSpec> {
    service.status.as_ref()?.realized.as_ref()
}

fn print(services: &[Service], affinity: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut specs: Vec<&ServiceSpec> = services.iter().filter_map(realized).collect();
    specs.sort_by_key(|spec| spec.id);
    let flags = |spec: &ServiceSpec, is: fn(&ServiceFlags) -> bool| spec.flags.as_ref().is_some_and(is);
    let mut text = "ID\tFrontend\tService Type\tBackend\t\n".to_owned();
    for spec in specs {
        let address = &spec.frontend_address;
        let frontend = endpoint(&address.ip, address.port, &address.protocol);
        let scope = if address.scope == "internal" { "/i" } else { "" };
        let kind = spec.flags.as_ref().map_or("", |flags| flags.kind.as_str());
        let mut backends = spec.backend_addresses.iter().enumerate().map(|(index, backend)| {
            let place = endpoint(&backend.ip.0, backend.port, &backend.protocol);
            let preferred = if affinity && backend.preferred { " (preferred)" } else { "" };
            format!("{} => {place} ({}){preferred}", index + 1, backend.state)
        });
        let remote = if flags(spec, |flags| !flags.cluster.is_empty()) { " (Remote)" } else { "" };
        let first = backends.next().unwrap_or_default();
        let _ = writeln!(text, "{}\t{frontend}{scope}\t{kind}{remote}\t{first}\t", spec.id);
        for backend in backends {
            let _ = writeln!(text, "\t\t\t{backend}\t");
        }
    }
    Ok(table(&text, 5, out)?)
}

/// Formats one end of a connection: `10.0.0.1:80/TCP`, `[fd00::1]:80/TCP`.
pub(crate) fn endpoint(ip: &str, port: i64, protocol: &str) -> String {
    match ip.contains(':') {
        true => format!("[{ip}]:{port}/{protocol}"),
        false => format!("{ip}:{port}/{protocol}"),
    }
}
