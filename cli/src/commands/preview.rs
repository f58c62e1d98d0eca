//! `policy preview`: the flows that policies would cut, before they are applied.
//!
//! The flows are those that connection tracking holds and those of Hubble's ring; the agent decides about them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::Agent;
use crate::commands::bpf::connections;
use crate::commands::hubble::{ServerOptions, forwarded};
use crate::output::{Output, table};

/// The number of flows in a request: a body of less than 2 MB.
const BATCH: usize = 20_000;

#[derive(Debug, Args)]
pub(crate) struct PreviewOptions {
    /// Manifests of policies, as YAML or JSON; - for the standard input
    file: PathBuf,
    /// Consider only the connections that the datapath tracks, not Hubble's flows
    #[arg(long)]
    no_hubble: bool,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    output: Output,
}

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Flow {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    /// The destination port; of ICMP the type.
    pub(crate) port: u16,
}

/// How often a flow was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Seen {
    /// Connections that are tracked, by their source ports.
    connections: usize,
    /// Flows of Hubble.
    flows: usize,
}

/// The agent's response. Everything but the number of flows is printed as it is.
#[derive(Debug, Deserialize)]
struct Answer {
    revision: u64,
    policies: Vec<Value>,
    decided: usize,
    denied: usize,
    cut: Vec<Cut>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Cut {
    #[serde(skip_serializing)]
    index: usize,
    source: IpAddr,
    source_pod: Option<String>,
    source_identity: u32,
    destination: IpAddr,
    destination_pod: Option<String>,
    destination_identity: u32,
    protocol_name: String,
    port: u16,
    endpoint: u16,
    direction: String,
    reason: String,
    #[serde(skip_deserializing, flatten)]
    seen: Seen,
}

/// All responses.
#[derive(Debug, Default, Serialize)]
struct Preview {
    revision: u64,
    policies: Vec<Value>,
    /// The number of flows that were found, equal ones counted once.
    found: usize,
    decided: usize,
    denied: usize,
    cut: Vec<Cut>,
}

/// Prints the flows that policies would cut.
pub(crate) fn run(agent: &mut Agent, options: &PreviewOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let manifests = manifests(&options.file)?;
    let mut flows: BTreeMap<Flow, Seen> = BTreeMap::new();
    for flow in connections()? {
        flows.entry(flow).or_default().connections += 1;
    }
    if !options.no_hubble {
        match forwarded(agent, &options.server) {
            Ok(found) => found.into_iter().for_each(|flow| flows.entry(flow).or_default().flows += 1),
            Err(error) => writeln!(io::stderr(), "Without flows of Hubble: {error:#}")?,
        }
    }
    let flows: Vec<(Flow, Seen)> = flows.into_iter().collect();
    let mut preview = Preview { found: flows.len(), ..Preview::default() };
    // A request without flows validates the policies.
    let batches = flows.chunks(BATCH).chain(flows.is_empty().then_some(&[][..]));
    for batch in batches {
        let wanted: Vec<&Flow> = batch.iter().map(|(flow, _)| flow).collect();
        let answer = ask(agent, &json!({"manifests": manifests, "flows": wanted}))?;
        let Answer { revision, policies, decided, denied, cut } = answer;
        (preview.revision, preview.policies) = (revision, policies);
        preview.decided += decided;
        preview.denied += denied;
        preview.cut.extend(cut.into_iter().map(|cut| {
            let seen = batch.get(cut.index).map_or_else(Seen::default, |(_, seen)| *seen);
            Cut { seen, ..cut }
        }));
    }
    if options.output.write(&preview, out)? {
        return Ok(());
    }
    print(&preview, out)
}

fn ask(agent: &mut Agent, request: &Value) -> anyhow::Result<Answer> {
    let answer = agent.send_plain("POST", "/apiary/policy-preview", request)?;
    if answer.status != 200 {
        bail!(answer.words());
    }
    serde_json::from_slice(&answer.body).context("the agent's answer cannot be decoded")
}

/// Reads the documents of a file.
fn manifests(file: &Path) -> anyhow::Result<Vec<Value>> {
    let mut content = Vec::new();
    let name = file.display();
    if file.as_os_str() == "-" {
        io::stdin().read_to_end(&mut content).context("unable to read the standard input")?;
    } else {
        content = std::fs::read(file).with_context(|| format!("unable to read {name}"))?;
    }
    let documents = k8s_types::documents_of_bytes(&content);
    let value = |document: Result<k8s_types::Document, k8s_types::Broken>| match document {
        Ok(document) => Ok(document.value),
        Err(broken) => bail!("{name}, line {}: {}", broken.line, broken.problem),
    };
    let values: Vec<Value> = documents.into_iter().map(value).collect::<anyhow::Result<_>>()?;
    if values.is_empty() {
        bail!("{name} has no document: give manifests of policies");
    }
    Ok(values)
}

fn print(preview: &Preview, out: &mut dyn Write) -> anyhow::Result<()> {
    for policy in &preview.policies {
        let state = if policy["is_new"] == true { "new" } else { "replaces the one in force" };
        writeln!(out, "Policy {}: {state}", policy["policy"].as_str().unwrap_or_default())?;
        for warning in policy["warnings"].as_array().into_iter().flatten() {
            writeln!(out, "  {}", warning.as_str().unwrap_or_default())?;
        }
    }
    let Preview { found, decided, denied, cut, .. } = preview;
    writeln!(out, "Flows: {found} found, {decided} of endpoints of this node, {denied} denied already")?;
    if cut.is_empty() {
        return Ok(writeln!(out, "No flow would be cut.")?);
    }
    let plural = if cut.len() == 1 { "flow" } else { "flows" };
    writeln!(out, "{} {plural} would be cut:\n", cut.len())?;
    let mut text =
        "SOURCE\tDESTINATION\tPORT/PROTOCOL\tCONNECTIONS\tHUBBLE\tENDPOINT\tDIRECTION\tREASON\n".to_owned();
    let party = |address: IpAddr, pod: &Option<String>, identity: u32| match pod {
        Some(pod) => format!("{pod} ({address})"),
        None => format!("{address} (identity {identity})"),
    };
    for cut in cut {
        let Cut { port, protocol_name, seen, endpoint, direction, reason, .. } = cut;
        let source = party(cut.source, &cut.source_pod, cut.source_identity);
        let destination = party(cut.destination, &cut.destination_pod, cut.destination_identity);
        let Seen { connections, flows } = seen;
        let _ = writeln!(
            text,
            "{source}\t{destination}\t{port}/{protocol_name}\t{connections}\t{flows}\t{endpoint}\t{direction}\t{reason}"
        );
    }
    Ok(table(&text, 5, out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pod: Option<&str>) -> Cut {
        let answer = json!({
            "index": 0, "source": "10.0.0.1", "source_pod": pod, "source_identity": 300,
            "destination": "10.0.0.2", "destination_pod": "shop/web", "destination_identity": 301, "protocol": 6,
            "protocol_name": "TCP", "port": 80, "endpoint": 7, "direction": "ingress", "reason": "denied: so",
        });
        Cut { seen: Seen { connections: 2, flows: 1 }, ..serde_json::from_value(answer).unwrap() }
    }

    #[test]
    fn a_preview_lists_policies_and_the_flows_that_they_cut() {
        let policy = json!({"policy": "cnp/shop/web", "is_new": true, "warnings": ["spec.x: has no effect"]});
        let cut = vec![cut(Some("shop/client")), cut(None)];
        let preview = Preview { revision: 2, policies: vec![policy], found: 9, decided: 5, denied: 1, cut };
        let mut out = Vec::new();
        print(&preview, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["Policy", "cnp/shop/web:", "new"]);
        assert_eq!(lines[2].join(" "), "Flows: 9 found, 5 of endpoints of this node, 1 denied already");
        assert_eq!(lines[3].join(" "), "2 flows would be cut:");
        let first = "shop/client (10.0.0.1) shop/web (10.0.0.2) 80/TCP 2 1 7 ingress denied: so";
        assert_eq!(lines[6].join(" "), first);
        assert!(lines[7].join(" ").starts_with("10.0.0.1 (identity 300) shop/web (10.0.0.2)"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_manifest_is_named_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.yaml");
        std::fs::write(&file, "kind: x\n---\na: [\n").unwrap();
        let error = manifests(&file).unwrap_err().to_string();
        assert!(error.contains("policy.yaml, line "), "{error}");
        std::fs::write(&file, "# nothing\n").unwrap();
        assert!(manifests(&file).unwrap_err().to_string().contains("has no document"));
        std::fs::write(&file, "{\"kind\": \"a\"}\n---\nkind: b\n").unwrap();
        assert_eq!(manifests(&file).unwrap().len(), 2);
        assert!(
            manifests(&folder.path().join("none")).unwrap_err().to_string().starts_with("unable to read")
        );
    }
}
