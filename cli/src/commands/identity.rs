//! `identity`: identities with their labels.

use crate::client::Agent;
use crate::output::{Output, table};
use anyhow::Context as _;
use api_models::Identity;
use clap::Subcommand;
use std::fmt::Write as _;
use std::io::Write;

#[derive(Debug, Subcommand)]
pub(crate) enum IdentityCommand {
    /// List identities
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Retrieve information about an identity
    Get {
        /// Its number
        #[arg(required_unless_present = "labels", conflicts_with = "labels")]
        id: Option<u32>,
        /// All identities with these labels
        #[arg(short, long = "label", value_delimiter = ',')]
        labels: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
}

/// Runs a verb of `identity`.
pub(crate) fn run(agent: &mut Agent, command: &IdentityCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        IdentityCommand::List { output } => list(agent, output, out),
        IdentityCommand::Get { id, labels, output } => get(agent, *id, labels, output, out),
    }
}

fn list(agent: &mut Agent, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let found: Option<Vec<Identity>> = agent.find("/identity").context("cannot get identities")?;
    let mut identities = found.unwrap_or_default();
    identities.sort_by_key(|identity| identity.id);
    if output.write(&identities, out)? { Ok(()) } else { print(&identities, out) }
}

fn get(
    agent: &mut Agent,
    id: Option<u32>,
    labels: &[String],
    output: &Output,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let identities: Vec<Identity> = match id {
        Some(id) => {
            vec![
                agent
                    .get(&format!("/identity/{id}"))
                    .with_context(|| format!("cannot get identity for ID {id}"))?,
            ]
        }
        None => {
            let found = agent.find_by_labels("/identity", labels);
            let words = labels.join(",");
            found
                .and_then(|found| found.context("not found"))
                .with_context(|| format!("cannot get identities for labels {words}"))?
        }
    };
    if output.write(&identities, out)? { Ok(()) } else { print(&identities, out) }
}

fn print(identities: &[Identity], out: &mut dyn Write) -> anyhow::Result<()> {
    let mut text = "ID\tLABELS\n".to_owned();
    for Identity { id, labels, .. } in identities {
        let mut labels = labels.clone();
        labels.sort();
        let mut labels = labels.iter();
        let _ = writeln!(text, "{id}\t{}", labels.next().map_or("", String::as_str));
        for label in labels {
            let _ = writeln!(text, "\t{label}");
        }
    }
    Ok(table(&text, 2, out)?)
}

/// Returns the labels of an identity: reserved ones are built in, others come from the agent. `None` if it is unknown.
pub(crate) fn labels_of(agent: &mut Agent, number: u32) -> anyhow::Result<Option<Vec<String>>> {
    if let Some(label) = reserved_label(number) {
        return Ok(Some(vec![label]));
    }
    let identity: Option<Identity> = agent.find(&format!("/identity/{number}"))?;
    Ok(identity.map(|identity| identity.labels).filter(|labels| !labels.is_empty()))
}

/// Returns the label of an identity that needs no request; 0 stands for every peer.
fn reserved_label(number: u32) -> Option<String> {
    match number {
        0 => Some("ANY".to_owned()),
        number => datapath_abi::identity::label(number).map(|name| format!("reserved:{name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_identities_have_labels_without_an_agent() {
        assert_eq!(reserved_label(0).as_deref(), Some("ANY"));
        assert_eq!(reserved_label(2).as_deref(), Some("reserved:world"));
        assert_eq!(reserved_label(6592), None);
    }
}
