//! `why`: whether a source may send to a destination, by which rule, and what the kernel does.
//!
//! Policy is the agent's answer. The path of the packets with their translations ([`node`], [`path`], [`service`],
//! [`source`]) comes from the pinned maps ([`entries`]), where this process may read them.

mod entries;
mod nat46x64;
mod node;
mod path;
mod service;
mod source;
#[cfg(test)]
mod tests;

use crate::client::Agent;
use crate::commands::service as service_command;
use crate::output::Output;
use anyhow::{Context as _, bail};
use api_client::escape;
use api_models::{Service, ServiceSpec};
use clap::Args;
use datapath_abi::drop;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use std::str::FromStr;

use path::Path;

#[derive(Debug, Args)]
pub(crate) struct WhyOptions {
    /// Who sends: an endpoint's number, namespace/name of a pod, an address, or identity:NUMBER
    pub(crate) source: String,
    /// Who receives, likewise
    pub(crate) destination: String,
    /// Destination port and protocol, as 80/TCP; of ICMP the type, as 8/ICMP
    #[arg(value_name = "PORT/PROTOCOL")]
    pub(crate) target: Target,
    /// Source port: entries of this connection, as `bpf ct list global` shows them, decide if there are any
    #[arg(long, value_name = "PORT")]
    pub(crate) source_port: Option<u16>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `PORT/PROTOCOL`, as `80/TCP`; of ICMP the type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    port: u16,
    protocol: String,
}

impl Target {
    /// Returns the target of a port, for ICMP of a type.
    pub(crate) fn new(port: u16, protocol: &str) -> Self {
        Self { port, protocol: protocol.to_owned() }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let port =
            port.parse().map_err(|_| "want PORT/PROTOCOL, for instance 80/TCP or 8/ICMP".to_owned())?;
        Ok(Target { port, protocol: protocol.to_ascii_lowercase() })
    }
}

/// The response of the agent.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    source: Party,
    destination: Party,
    protocol: String,
    port: u16,
    allowed: bool,
    egress: Option<Decision>,
    ingress: Option<Decision>,
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    path: Option<Path>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Party {
    name: String,
    pod: Option<String>,
    endpoint: Option<u16>,
    addresses: Vec<String>,
    identity: u32,
    labels: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Decision {
    endpoint: u16,
    allowed: bool,
    #[serde(default)]
    audited: bool,
    drop: Option<Drop>,
    reason: String,
    enforced: bool,
    rules: Vec<Rule>,
    entry: Option<Entry>,
    revision: u64,
    wanted_revision: u64,
    differs: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Drop {
    code: u8,
    text: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Rule {
    object: String,
    origins: Vec<String>,
    path: String,
    action: String,
    selector: String,
    labels: Vec<String>,
    #[serde(default)]
    log: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    identity: u32,
    protocol: String,
    first_port: u16,
    last_port: u16,
    deny: bool,
    precedence: u32,
    #[serde(default)]
    proxy_port: u16,
    #[serde(default)]
    auth_type: u8,
    #[serde(default)]
    cookie: u32,
    #[serde(default)]
    log: Vec<String>,
}

/// A service that is translated to the destination.
#[derive(Debug, Serialize)]
struct Translated {
    service: String,
    frontend: String,
    backends: Vec<Answer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Path>,
}

/// Prints the verdict; it is the exit code, too: 0 allowed, 2 denied. For a service's address each backend is checked,
/// because policy applies after the translation.
pub(crate) fn run(agent: &mut Agent, options: &WhyOptions, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let WhyOptions { source, destination, target, output, .. } = options;
    let allowed = match behind(agent, destination, target)? {
        None => {
            let mut answer = ask(agent, source, destination, target.port, &target.protocol)?;
            answer.path = node::path_of(agent, options, &[&answer])?;
            if !output.write(&answer, out)? {
                out.write_all(text(&answer).as_bytes())?;
            }
            answer.allowed
        }
        Some(spec) => {
            let frontend =
                service_command::endpoint(destination, target.port.into(), &target.protocol.to_uppercase());
            let flags = spec.flags.unwrap_or_default();
            let mut translated = Translated {
                service: format!("{}/{}", flags.namespace, flags.name),
                frontend,
                backends: Vec::new(),
                path: None,
            };
            for backend in spec.backend_addresses.iter().filter(|backend| backend.state == "active") {
                let port = u16::try_from(backend.port)?;
                translated.backends.push(ask(agent, source, &backend.ip.0, port, &target.protocol)?);
            }
            let answers: Vec<&Answer> = translated.backends.iter().collect();
            translated.path = node::path_of(agent, options, &answers)?;
            if !output.write(&translated, out)? {
                out.write_all(translated.text(source).as_bytes())?;
            }
            !translated.backends.is_empty() && translated.backends.iter().all(|answer| answer.allowed)
        }
    };
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn ask(
    agent: &mut Agent,
    source: &str,
    destination: &str,
    port: u16,
    protocol: &str,
) -> anyhow::Result<Answer> {
    let (src, dst, protocol) = (escape(source), escape(destination), escape(protocol));
    let path = format!("/apiary/why?src={src}&dst={dst}&port={port}&protocol={protocol}");
    let answer = agent.call_plain("GET", &path)?;
    if answer.status != 200 {
        bail!(answer.words());
    }
    serde_json::from_slice(&answer.body).context("the agent's answer cannot be decoded")
}

/// Returns the addresses of a destination that the agent knows by its name.
pub(crate) fn addresses(agent: &mut Agent, source: &str, destination: &str) -> anyhow::Result<Vec<IpAddr>> {
    // Any port: only the parties are of interest.
    let answer = ask(agent, source, destination, 1, "tcp")?;
    Ok(answer.destination.addresses.iter().filter_map(|address| address.parse().ok()).collect())
}

/// Returns the name of the service with the destination as its address.
pub(crate) fn service_name(
    agent: &mut Agent,
    destination: &str,
    target: &Target,
) -> anyhow::Result<Option<String>> {
    let flags = behind(agent, destination, target)?.map(|spec| spec.flags.unwrap_or_default());
    Ok(flags.map(|flags| format!("{}/{}", flags.namespace, flags.name)))
}

/// Returns the reason and the rules by which an endpoint's policy decides in a direction; none if it does not.
pub(crate) fn rules(
    agent: &mut Agent,
    (source, destination): (&str, &str),
    (port, protocol): (u16, &str),
    (endpoint, is_ingress): (u16, bool),
) -> anyhow::Result<Vec<String>> {
    let answer = ask(agent, source, destination, port, protocol)?;
    let decision = if is_ingress { answer.ingress } else { answer.egress };
    let Some(decision) = decision.filter(|decision| decision.endpoint == endpoint) else {
        return Ok(Vec::new());
    };
    let rule = |Rule { object, path, action, origins, .. }: &Rule| {
        format!("rule: {object} {path} ({action}), from {}", origins.join(", "))
    };
    let reason = format!("why: {}", decision.reason);
    Ok(std::iter::once(reason).chain(decision.rules.iter().map(rule)).collect())
}

/// Returns the service with the destination as its address.
fn behind(agent: &mut Agent, destination: &str, target: &Target) -> anyhow::Result<Option<ServiceSpec>> {
    let Ok(address) = destination.parse::<IpAddr>() else { return Ok(None) };
    let services: Option<Vec<Service>> = agent.find("/service").context("cannot get services")?;
    let specs = services.unwrap_or_default().into_iter().filter_map(|service| service.status?.realized);
    Ok(specs.into_iter().find(|spec| {
        let frontend = &spec.frontend_address;
        frontend.ip.parse() == Ok(address)
            && frontend.port == i64::from(target.port)
            && frontend.protocol.eq_ignore_ascii_case(&target.protocol)
            && frontend.scope != "internal"
    }))
}

impl Translated {
    fn text(&self, source: &str) -> String {
        let Translated { service, frontend, backends, .. } = self;
        let mut text = format!("{frontend} is service {service}, ");
        match backends.len() {
            0 => {
                let code = drop::SERVICE_BACKEND_NOT_FOUND;
                let _ = writeln!(
                    text,
                    "which has no active backend\nDENIED: {source} -> {frontend}\n  drop: {} ({code})",
                    drop::label(code).unwrap_or_default()
                );
            }
            1 => text.push_str("whose backend is asked for\n"),
            many => _ = writeln!(text, "whose {many} backends are asked for"),
        }
        for answer in backends {
            text.push('\n');
            text.push_str(&self::text(answer));
        }
        if let Some(path) = &self.path {
            text.push_str(&path.text());
        }
        text
    }
}

fn text(answer: &Answer) -> String {
    let verdict = if answer.allowed { "ALLOWED" } else { "DENIED" };
    let mut text = format!(
        "{verdict}: {} -> {} {}/{}\n",
        answer.source.title(),
        answer.destination.title(),
        answer.port,
        answer.protocol
    );
    for (word, party) in [("From", &answer.source), ("To", &answer.destination)] {
        let _ = writeln!(text, "\n{word}: {}", party.title());
        let _ = writeln!(text, "  identity {}: {}", party.identity, or_none(&party.labels, ", "));
        if !party.addresses.is_empty() {
            let _ = writeln!(text, "  addresses: {}", party.addresses.join(", "));
        }
        match party.endpoint {
            Some(endpoint) => _ = writeln!(text, "  endpoint {endpoint} of this node"),
            None => {
                text.push_str("  no endpoint of this node: its side of the policy is decided elsewhere\n")
            }
        }
    }
    let sides = [("Egress of the sender", &answer.egress), ("Ingress of the receiver", &answer.ingress)];
    for (side, decision) in sides {
        if let Some(decision) = decision {
            decision.write(side, &mut text);
        }
    }
    if let Some(path) = &answer.path {
        text.push_str(&path.text());
    }
    text
}

fn or_none(words: &[String], between: &str) -> String {
    if words.is_empty() { "no labels".to_owned() } else { words.join(between) }
}

impl Party {
    fn title(&self) -> &str {
        self.pod.as_deref().unwrap_or(&self.name)
    }
}

impl Decision {
    fn write(&self, side: &str, text: &mut String) {
        let verdict = match (self.allowed, self.audited) {
            (true, false) => "allowed",
            (true, true) => "allowed, as the endpoint is in policy audit mode",
            (false, _) => "denied",
        };
        let _ = writeln!(text, "\n{side}: {verdict}\n  why: {}", self.reason);
        if let Some(Drop { code, text: words }) = &self.drop {
            let _ = writeln!(text, "  drop: {words} ({code})");
        }
        if !self.enforced {
            text.push_str("  no rule decides about this direction\n");
        }
        for Rule { object, origins, path, action, selector, log, .. } in &self.rules {
            let _ = writeln!(text, "  rule: {object} {path} ({action}), from {}", origins.join(", "));
            let _ = writeln!(text, "  selector: {selector}");
            if !log.is_empty() {
                let _ = writeln!(text, "  log: {log}");
            }
        }
        match &self.entry {
            Some(entry) => _ = writeln!(text, "  map entry: {}", entry.text()),
            None => text.push_str("  map entry: none\n"),
        }
        let _ = write!(text, "  revision: {}", self.revision);
        if self.wanted_revision > self.revision {
            let _ = write!(text, ", {} is on its way", self.wanted_revision);
        }
        text.push('\n');
        if self.differs {
            text.push_str("  the kernel's row is not the computed one\n");
        }
    }
}

impl Entry {
    fn text(&self) -> String {
        let Entry { identity, protocol, first_port, last_port, precedence, .. } = self;
        let peer = if *identity == 0 { "anybody".to_owned() } else { format!("identity {identity}") };
        let ports = match (*first_port, *last_port) {
            (0, u16::MAX) => protocol.clone(),
            (first, last) if first == last => format!("{first}/{protocol}"),
            (first, last) => format!("{first}-{last}/{protocol}"),
        };
        let log = match &self.log[..] {
            _ if self.cookie == 0 => String::new(),
            [] => format!(", log {} (unknown)", self.cookie),
            texts => format!(", log {}: {}", self.cookie, texts.join("; ")),
        };
        format!(
            "{} {peer} {ports}, precedence {precedence:#x}{log}",
            if self.deny { "deny" } else { "allow" }
        )
    }
}
