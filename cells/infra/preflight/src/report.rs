//! The findings, and how they are printed.

use std::fmt;

use serde::Serialize;

/// The use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The agent does not start, or the chart is not installed, with it.
    Refused,
    /// No program knows the key.
    Unknown,
    /// It is accepted and has no effect.
    Ignored,
    /// It is in force.
    Effective,
}

/// The judgement of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The option, or the path of the value.
    pub key: String,
    /// Its value; `(secret)` for one that is not shown.
    pub value: String,
    /// The judgement.
    pub outcome: Outcome,
    /// The reason, with the remedy if it is refused.
    pub reason: String,
}

/// The future of a pinned map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MapOutcome {
    /// The start fails because of it.
    Refused,
    /// An empty map of the new layout takes its place.
    Recreated,
    /// A map of the new layout with the same entries takes its place.
    Copied,
    /// It stays as it is.
    Kept,
    /// It does not exist yet.
    Created,
    /// No feature that is in force uses it: it stays and is not read.
    LeftAlone,
}

/// The judgement of one pinned map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MapFinding {
    /// The name of the pin.
    pub name: String,
    /// The judgement.
    pub outcome: MapOutcome,
    /// The reason.
    pub reason: String,
}

/// The future of an endpoint of the previous run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointOutcome {
    /// Its record is damaged: it is renamed and reported, the interface keeps its programs.
    Quarantined,
    /// Its record is removed.
    Discarded,
    /// The folder is neither used nor changed.
    Ignored,
    /// It goes on with its id and addresses.
    Restored,
}

/// The judgement of one directory of the state folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndpointFinding {
    /// The name of the directory: the endpoint's id as a rule.
    pub directory: String,
    /// Pod and interface, as far as they are known.
    pub owner: String,
    /// The judgement.
    pub outcome: EndpointOutcome,
    /// The reason.
    pub reason: String,
}

/// All findings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Keys of the configuration, in order of their names.
    pub keys: Vec<Finding>,
    /// Pinned maps of the node, in order of their names.
    pub maps: Vec<MapFinding>,
    /// Endpoints of the node, in order of their ids.
    pub endpoints: Vec<EndpointFinding>,
}

impl Report {
    /// Whether a start or an installation would fail.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.keys.iter().any(|key| key.outcome == Outcome::Refused)
            || self.maps.iter().any(|map| map.outcome == MapOutcome::Refused)
    }
}

/// The longest value in a table, in characters.
const MAX_VALUE_CHARS: usize = 40;

fn shortened(value: &str) -> String {
    let mut line: String = value.escape_debug().take(MAX_VALUE_CHARS).collect();
    if value.escape_debug().count() > MAX_VALUE_CHARS {
        line.push_str("...");
    }
    line
}

/// Returns the name of an outcome as in JSON.
fn name(outcome: impl Serialize) -> String {
    serde_json::to_value(outcome).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Writes rows with aligned columns; the last column is not padded.
fn table<const N: usize>(f: &mut fmt::Formatter<'_>, head: [&str; N], rows: Vec<[String; N]>) -> fmt::Result {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}   "));
        writeln!(f, "{}", cells.collect::<String>().trim_end())?;
    }
    Ok(())
}

/// Writes how many findings have each outcome, most severe first.
fn counts<T: Copy + Ord + Serialize>(
    f: &mut fmt::Formatter<'_>,
    things: &str,
    outcomes: impl Iterator<Item = T>,
) -> fmt::Result {
    let mut all: Vec<T> = outcomes.collect();
    all.sort();
    let chunks = all.chunk_by(|a, b| a == b);
    let texts: Vec<String> = chunks.map(|same| format!("{} {}", same.len(), name(same[0]))).collect();
    match texts.is_empty() {
        true => writeln!(f, "{things}: none"),
        false => writeln!(f, "{things}: {}", texts.join(", ")),
    }
}

/// Tables for people, what needs attention first.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys: Vec<&Finding> = self.keys.iter().collect();
        keys.sort_by_key(|finding| finding.outcome);
        let rows = keys.iter().map(|finding| {
            [finding.key.clone(), shortened(&finding.value), name(finding.outcome), finding.reason.clone()]
        });
        table(f, ["KEY", "VALUE", "OUTCOME", "REASON"], rows.collect())?;
        if !self.maps.is_empty() {
            let mut maps: Vec<&MapFinding> = self.maps.iter().collect();
            maps.sort_by_key(|finding| finding.outcome);
            let rows = maps.iter().map(|map| [map.name.clone(), name(map.outcome), map.reason.clone()]);
            writeln!(f)?;
            table(f, ["MAP", "OUTCOME", "REASON"], rows.collect())?;
        }
        if !self.endpoints.is_empty() {
            let mut endpoints: Vec<&EndpointFinding> = self.endpoints.iter().collect();
            endpoints.sort_by_key(|finding| finding.outcome);
            let rows = endpoints.iter().map(|endpoint| {
                let EndpointFinding { directory, owner, outcome, reason } = endpoint;
                [directory.clone(), owner.clone(), name(*outcome), reason.clone()]
            });
            writeln!(f)?;
            table(f, ["ENDPOINT", "OWNER", "OUTCOME", "REASON"], rows.collect())?;
        }
        writeln!(f)?;
        counts(f, "Keys", self.keys.iter().map(|finding| finding.outcome))?;
        if !self.maps.is_empty() {
            counts(f, "Maps", self.maps.iter().map(|finding| finding.outcome))?;
        }
        if !self.endpoints.is_empty() {
            counts(f, "Endpoints", self.endpoints.iter().map(|finding| finding.outcome))?;
        }
        Ok(())
    }
}
