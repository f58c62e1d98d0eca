//! `lrp`: local redirect policies of the agent.

use std::fmt::Write as _;
use std::io::Write;

use anyhow::Context as _;
use api_models::{FrontendMapping, LRPSpec};

use crate::client::Agent;
use crate::output::{Output, table};
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum LrpCommand {
    /// List local redirect policies
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        output: Output,
    },
}

/// Runs a verb of `lrp`.
pub(crate) fn run(agent: &mut Agent, command: &LrpCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        LrpCommand::List { output } => list(agent, output, out),
    }
}

fn list(agent: &mut Agent, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut policies: Vec<LRPSpec> = agent.get("/lrp").context("cannot get local redirect policies")?;
    if output.write(&policies, out)? {
        return Ok(());
    }
    policies.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(table(&text(&policies), 5, out)?)
}

fn text(policies: &[LRPSpec]) -> String {
    let mut text = "LRP namespace\tLRP name\tFrontendType\tMatching Service\n".to_owned();
    for policy in policies {
        let LRPSpec { namespace, name, frontend_type, service_id, .. } = policy;
        let _ = writeln!(text, "{namespace}\t{name}\t{frontend_type}\t{service_id}");
        for mapping in policy.frontend_mappings.iter() {
            let _ = writeln!(text, "\t|\t{}", leads(mapping));
        }
    }
    text
}

/// Formats a frontend with its backends: `169.254.1.1:53/UDP -> 10.0.0.1:5300(ns/pod), `.
fn leads(mapping: &FrontendMapping) -> String {
    let mut text = match &mapping.frontend_address {
        Some(address) => format!("{}:{}/{} -> ", address.ip, address.port, address.protocol),
        None => " -> ".to_owned(),
    };
    for backend in mapping.backends.iter() {
        if let Some(address) = &backend.backend_address {
            let _ = write!(text, "{}:{}({}), ", address.ip.0, address.port, backend.pod_id);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_with_their_frontends() {
        let policies: Vec<LRPSpec> = serde_json::from_value(serde_json::json!([{
            "namespace": "ns", "name": "p", "frontend-type": "IP + port", "lrp-type": "addr",
            "frontend-mappings": [{
                "frontend-address": {"ip": "169.254.1.1", "port": 53, "protocol": "UDP"},
                "backends": [{"pod-id": "ns/a", "backend-address": {"ip": "10.0.0.1", "port": 5300}}],
            }],
        }]))
        .unwrap();
        let expected = "LRP namespace\tLRP name\tFrontendType\tMatching Service\nns\tp\tIP + port\t\n\t|\t\
            169.254.1.1:53/UDP -> 10.0.0.1:5300(ns/a), \n";
        assert_eq!(text(&policies), expected);
    }
}
