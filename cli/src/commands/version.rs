//! `version`: this program's and the agent's.

use crate::client::Agent;
use crate::output::Output;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::process::ExitCode;

/// The parts of a version, with the field names that users' scripts read.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Version {
    version: String,
    revision: String,
    arch: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Versions {
    client: Version,
    daemon: Version,
}

/// Prints both versions. An agent that does not respond is left out; the version of this program is still printed.
pub(crate) fn run(agent: &mut Agent, output: &Output, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let client = format!("{} {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let daemon = daemon(agent);
    let versions = Versions {
        client: Version {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: String::new(),
            arch: std::env::consts::ARCH.to_owned(),
        },
        daemon: daemon.as_deref().map(parse).unwrap_or_default(),
    };
    if !output.write(&versions, out)? {
        writeln!(out, "Client: {client}")?;
        writeln!(out, "Daemon: {}", daemon.as_deref().unwrap_or("Not responding"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the agent's version text, from its debug information or, shorter, from its status.
fn daemon(agent: &mut Agent) -> Option<String> {
    #[derive(Deserialize)]
    struct DebugInfo {
        #[serde(rename = "cilium-version")]
        version: String,
    }
    let info =
        agent.get::<DebugInfo>("/debuginfo").ok().map(|info| info.version).filter(|text| !text.is_empty());
    let status = |agent: &mut Agent| {
        let status: api_models::StatusResponse = agent.get("/healthz").ok()?;
        status.cilium.map(|cilium| cilium.msg).filter(|text| !text.is_empty())
    };
    info.or_else(|| status(agent))
}

/// Parses `VERSION REVISION DATE go version GO OS/ARCH`, or `VERSION (...)`.
fn parse(text: &str) -> Version {
    let mut words = text.split_whitespace();
    let version = words.next().unwrap_or_default().to_owned();
    let revision = words.next().filter(|word| !word.starts_with('(')).unwrap_or_default().to_owned();
    let arch = words.next_back().filter(|word| word.contains('/')).unwrap_or_default().to_owned();
    Version { version, revision, arch }
}
