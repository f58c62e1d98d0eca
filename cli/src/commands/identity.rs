//! `identity`: identities with their labels.

use crate::client::Agent;
use crate::output::{Output, table};
use anyhow::Context as _;
use api_models::{Identity, IdentityEndpoints};
use clap::Subcommand;
use std::fmt::Write as _;
use std::io::Write;

#[derive(Debug, Subcommand)]
pub(crate) enum IdentityCommand {
    /// List identities
    #[command(visible_alias = "ls")]
    List {
        /// Those with these labels, all by default
        labels: Vec<String>,
        /// Identities of this node's endpoints, with the number of their users
        #[arg(long)]
        endpoints: bool,
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
        IdentityCommand::List { endpoints: true, output, .. } => of_endpoints(agent, output, out),
        IdentityCommand::List { labels, output, .. } => list(agent, labels, output, out),
        IdentityCommand::Get { id, labels, output } => get(agent, *id, labels, output, out),
    }
}

/// Prints the identities of this node's endpoints.
fn of_endpoints(agent: &mut Agent, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let found: Option<Vec<IdentityEndpoints>> =
        agent.find("/identity/endpoints").context("cannot get identities of endpoints")?;
    let mut rows = found.unwrap_or_default();
    rows.sort_by_key(|row| row.identity.as_ref().map(|identity| identity.id));
    if output.write(&rows, out)? {
        return Ok(());
    }
    let mut text = "ID\tLABELS\tREFCOUNT\n".to_owned();
    for row in &rows {
        let Identity { id, labels, .. } = row.identity.clone().unwrap_or_default();
        let mut labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        labels.sort_unstable();
        let mut labels = labels.into_iter();
        let _ = writeln!(text, "{id}\t{}\t{}\t", labels.next().unwrap_or_default(), row.ref_count);
        for label in labels {
            let _ = writeln!(text, "\t{label}\t");
        }
    }
    Ok(table(&text, 5, out)?)
}

fn list(agent: &mut Agent, labels: &[String], output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let found: anyhow::Result<Option<Vec<Identity>>> = match labels.is_empty() {
        true => agent.find("/identity"),
        false => agent.find_by_labels("/identity", labels).and_then(|found| {
            found.with_context(|| format!("none has the labels {}", labels.join(","))).map(Some)
        }),
    };
    let found = found.context("cannot get identities")?;
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
