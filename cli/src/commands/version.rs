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
    /// The language's version: scripts know it by this name.
    go_runtime_version: String,
    arch: String,
    author_date: String,
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
            arch: std::env::consts::ARCH.to_owned(),
            ..Version::default()
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
    let words: Vec<&str> = text.split_whitespace().collect();
    let word = |n: usize| words.get(n).copied().unwrap_or_default().to_owned();
    match words[..] {
        [_, _, _, "go", "version", _, _] => Version {
            version: word(0),
            revision: word(1),
            author_date: word(2),
            go_runtime_version: word(5),
            arch: word(6),
        },
        _ => Version { version: word(0), ..Version::default() },
    }
}
