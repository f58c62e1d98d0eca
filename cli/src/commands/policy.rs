//! `policy`: the rules in force, the selections of their selectors, and waiting for a revision. `policy why` and
//! `policy trace` are the commands `why` and `trace`, `policy list` is `db show policies`.

use crate::client::Agent;
use crate::commands::db::{self, ShowOptions};
use crate::commands::preview::{self, PreviewOptions};
use crate::commands::trace::{self, TraceOptions};
use crate::commands::why::{self, WhyOptions};
use crate::output::{Output, table};
use anyhow::{Context as _, bail};
use api_models::{Endpoint, Label, Policy, SelectorIdentityMapping};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Display policy node information
    Get {
        #[command(flatten)]
        output: Output,
    },
    /// List policies with their problems and revisions: the table `policies`
    List(ShowOptions),
    /// Display cached information about selectors
    Selectors(SelectorOptions),
    /// Display cached information about subject selectors
    SubjectSelectors(SelectorOptions),
    /// Print which connections and flows policies would cut, before they are applied
    Preview(Box<PreviewOptions>),
    /// Print how many packets each rule has decided
    Rules(RuleOptions),
    /// Tell whether SOURCE may talk to DESTINATION, and which rule says so: the same as `why`
    Why(WhyOptions),
    /// Send one real packet of a pod and follow it through the datapath of this node: the same as `trace`
    Trace(Box<TraceOptions>),
    /// Wait for all endpoints to have updated to a given policy revision
    Wait(WaitOptions),
}

#[derive(Debug, Args)]
pub(crate) struct SelectorOptions {
    /// Show the full labels of the rules
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct RuleOptions {
    /// Only rules that apply to endpoints of this node and have never decided
    #[arg(long)]
    pub(crate) unused: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct WaitOptions {
    /// The revision
    pub(crate) revision: i64,
    /// Wait time before failing, in seconds
    #[arg(long, default_value_t = 360)]
    pub(crate) max_wait_time: u64,
    /// Wait time after which an endpoint that failed makes the command fail, in seconds
    #[arg(long, default_value_t = 120)]
    pub(crate) fail_wait_time: u64,
    /// Sleep interval between checks, in seconds
    #[arg(long, default_value_t = 1)]
    pub(crate) sleep_time: u64,
}

/// Runs a verb of `policy`.
pub(crate) fn run(
    agent: &mut Agent,
    command: &PolicyCommand,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let done = match command {
        PolicyCommand::List(options) => return db::show("policies", options, out),
        PolicyCommand::Why(options) => return why::run(agent, options, out),
        PolicyCommand::Trace(options) => return trace::run(agent, options, out),
        PolicyCommand::Get { output } => get(agent, output, out),
        PolicyCommand::Selectors(options) => selectors(agent, "/policy/selectors", options, out),
        PolicyCommand::SubjectSelectors(options) => {
            selectors(agent, "/policy/subject-selectors", options, out)
        }
        PolicyCommand::Preview(options) => preview::run(agent, options, out),
        PolicyCommand::Rules(options) => rules(agent, options, out),
        PolicyCommand::Wait(options) => wait(agent, options),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Labels of rules that come from Kubernetes.
const NAMESPACE: &str = "io.cilium.k8s.policy.namespace";
const NAME: &str = "io.cilium.k8s.policy.name";

fn get(agent: &mut Agent, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let policy: Policy = agent.get("/policy").context("cannot get policy")?;
    if output.write(&policy, out)? {
        return Ok(());
    }
    Ok(writeln!(out, "{}\nRevision: {}", policy.policy, policy.revision)?)
}

/// Prints one of the two selector caches, at `path`.
fn selectors(
    agent: &mut Agent,
    path: &str,
    options: &SelectorOptions,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let found: Option<Vec<SelectorIdentityMapping>> = agent.find(path).context("cannot get policy")?;
    let mut selectors = found.unwrap_or_default();
    if options.output.write(&selectors, out)? {
        return Ok(());
    }
    selectors.sort_by(|a, b| a.selector.cmp(&b.selector));
    let mut text = "SELECTOR\tLABELS\tUSERS\tIDENTITIES\n".to_owned();
    for SelectorIdentityMapping { identities, labels, selector, users, .. } in &selectors {
        let rules = if options.verbose { all_labels(labels) } else { names(labels) };
        let _ = write!(text, "{selector}\t{rules}\t{users}");
        if identities.is_empty() {
            text.push_str("\t\n");
        }
        for (n, identity) in identities.iter().enumerate() {
            let _ = writeln!(text, "{}\t{identity}\t", if n == 0 { "" } else { "\t\t" });
        }
    }
    Ok(table(&text, 5, out)?)
}

/// The agent's response.
#[derive(Debug, Serialize, Deserialize)]
struct Rules {
    revision: u64,
    rules: Vec<Rule>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Rule {
    object: String,
    path: String,
    direction: String,
    action: String,
    endpoints: usize,
    packets: u64,
    bytes: u64,
}

fn rules(agent: &mut Agent, options: &RuleOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let response = agent.call_plain("GET", "/apiary/policy-rules")?;
    if response.status != 200 {
        bail!(response.words());
    }
    let mut found: Rules =
        serde_json::from_slice(&response.body).context("the agent's response cannot be decoded")?;
    if options.unused {
        found.rules.retain(|rule| rule.endpoints > 0 && rule.packets == 0);
    }
    if options.output.write(&found, out)? {
        return Ok(());
    }
    let mut text = "POLICY\tRULE\tDIRECTION\tACTION\tENDPOINTS\tPACKETS\tBYTES\n".to_owned();
    for Rule { object, path, direction, action, endpoints, packets, bytes } in &found.rules {
        let _ = writeln!(text, "{object}\t{path}\t{direction}\t{action}\t{endpoints}\t{packets}\t{bytes}");
    }
    Ok(table(&text, 5, out)?)
}

/// Formats the labels of each rule: `[source:key=value source:key], [...]`.
fn all_labels(rules: &[Vec<Label>]) -> String {
    let label = |Label { key, source, value, .. }: &Label| match value.is_empty() {
        true => format!("{source}:{key}"),
        false => format!("{source}:{key}={value}"),
    };
    let mut rules: Vec<String> = rules
        .iter()
        .map(|labels| format!("[{}]", labels.iter().map(label).collect::<Vec<_>>().join(" ")))
        .collect();
    rules.sort();
    rules.join(", ")
}

/// Formats `namespace/name` of each rule.
fn names(rules: &[Vec<Label>]) -> String {
    let value = |labels: &[Label], key: &str| {
        labels.iter().find(|label| label.key == key).map(|label| label.value.clone())
    };
    let mut names: Vec<String> = rules
        .iter()
        .filter_map(|labels| {
            let name = value(labels, NAME).or_else(|| value(labels, "filename")).unwrap_or_default();
            match value(labels, NAMESPACE) {
                Some(namespace) => Some(format!("{namespace}/{name}")),
                None if name.is_empty() => None,
                None => Some(name),
            }
        })
        .collect();
    names.sort();
    names.dedup();
    names.join(",")
}

/// Endpoints by their progress.
#[derive(Debug, Default, PartialEq, Eq)]
struct Progress {
    all: usize,
    there: usize,
    failed: usize,
}

impl Progress {
    fn of(endpoints: &[Endpoint], revision: i64) -> Progress {
        let mut progress = Progress::default();
        for endpoint in endpoints {
            let Some(status) = &endpoint.status else {
                progress.all += 1;
                continue;
            };
            // An endpoint that is being deleted gets no more policy: waiting for it would time out.
            if matches!(status.state.as_str(), "disconnecting" | "disconnected") {
                continue;
            }
            progress.all += 1;
            let realized = status.policy.as_ref().and_then(|policy| policy.realized.as_ref());
            let has = realized.is_some_and(|realized| realized.policy_revision >= revision);
            progress.there += usize::from(has && status.state.as_str() == "ready");
            progress.failed += usize::from(status.state.as_str() == "not-ready");
        }
        progress
    }
}

fn wait(agent: &mut Agent, options: &WaitOptions) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let endpoints: Option<Vec<Endpoint>> = agent.find("/endpoint").context("cannot get endpoints")?;
        let Progress { all, there, failed } = Progress::of(&endpoints.unwrap_or_default(), options.revision);
        if there == all {
            return Ok(());
        }
        let waited = begin.elapsed().as_secs();
        if waited >= options.max_wait_time || failed > 0 && waited >= options.fail_wait_time {
            bail!(
                "policy revision {} is not everywhere after {waited} s: {there} of {all} endpoints have it, {failed} failed",
                options.revision
            );
        }
        writeln!(
            io::stderr(),
            "Waiting for policy revision {}: {there} of {all} endpoints have it",
            options.revision
        )?;
        std::thread::sleep(Duration::from_secs(options.sleep_time.max(1)));
    }
}
