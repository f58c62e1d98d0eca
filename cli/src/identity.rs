//! `identity`: numbers and the labels behind them.

use crate::agent::Agent;
use crate::args::Output;
use crate::output::table;
use crate::words;
use anyhow::Context as _;
use api_models::Identity;
use std::fmt::Write as _;
use std::io::Write;

pub(crate) fn list(agent: &mut Agent, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let found: Option<Vec<Identity>> = agent.find("/identity").context("cannot get identities")?;
    let mut identities = found.unwrap_or_default();
    identities.sort_by_key(|identity| identity.id);
    if output.write(&identities, out)? { Ok(()) } else { print(&identities, out) }
}

pub(crate) fn get(
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

/// The labels behind a number: reserved ones are known here, others only to the agent. None if it does not know.
pub(crate) fn labels_of(agent: &mut Agent, number: u32) -> anyhow::Result<Option<Vec<String>>> {
    if let Some(label) = words::reserved_label(number) {
        return Ok(Some(vec![label]));
    }
    let identity: Option<Identity> = agent.find(&format!("/identity/{number}"))?;
    Ok(identity.map(|identity| identity.labels).filter(|labels| !labels.is_empty()))
}
