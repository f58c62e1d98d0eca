//! `GET /policy` and the selectors in the REST API.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Response;
use api_models as models;
use labels::Label;
use policy_engine::{
    Action, Direction, Engine, Entry, Peers, Port, PortSpec, Ports, Requirement, Selector, SelectorRow,
    Subject, Test,
};
use serde::Serialize;

use crate::api::proxy::{Mode, Proxy};
use crate::model::selectors::model;

/// Returns the response of `GET /policy`: all rules as JSON inside a string.
pub(crate) fn policy(engine: &Engine) -> Response {
    let policy = rules(engine);
    let revision = i64::try_from(engine.revision()).unwrap_or(i64::MAX);
    Response::json(200, &models::Policy { policy, revision })
}

/// Returns all rules as JSON.
pub(crate) fn rules(engine: &Engine) -> String {
    let rules: Vec<Rule<'_>> = engine.policies().flat_map(|policy| &policy.entries).map(Rule::from).collect();
    serde_json::to_string_pretty(&rules).unwrap_or_default()
}

/// Returns the response of `GET /policy/selectors` and `GET /policy/subject-selectors`, with some of the identities.
pub(crate) fn selectors<'a>(
    rows: impl Iterator<Item = &'a SelectorRow>,
    is_listed: impl Fn(u32) -> bool,
) -> Response {
    Response::json(200, &rows.map(|row| model(row, &is_listed)).collect::<Vec<_>>())
}

/// A rule, with fields in Cilium's order.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Rule<'a> {
    tier: u8,
    priority: serde_json::Number,
    authentication: Option<Mode>,
    log: Log<'a>,
    subject: LabelSelector,
    l3: Vec<L3>,
    l4: Vec<PortRule<'a>>,
    labels: Vec<RuleLabel>,
    default_deny: bool,
    verdict: u8,
    ingress: bool,
    node: bool,
}

#[derive(Serialize)]
struct RuleLabel {
    key: String,
    value: String,
    source: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum L3 {
    Labels(LabelSelector),
    Text(String),
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct LabelSelector {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    match_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<Expression>,
}

#[derive(Serialize)]
struct Expression {
    key: String,
    operator: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
}

#[derive(Serialize)]
struct Log<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    value: &'a str,
}

#[derive(Serialize)]
struct PortRule<'a> {
    ports: Vec<PortProtocol>,
    #[serde(flatten)]
    proxy: Proxy<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PortProtocol {
    port: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_port: Option<u16>,
    protocol: String,
}

/// Returns Cilium's number of an action.
pub(crate) fn verdict(action: Action) -> u8 {
    match action {
        Action::Allow => 0,
        Action::Deny => 1,
        Action::Pass => 2,
    }
}

/// Returns the priority as Cilium writes it: that of the object, with the index of the rule as hundredths.
fn priority(entry: &Entry) -> serde_json::Number {
    match entry.priority % 100 {
        0 => (entry.priority / 100).into(),
        _ => serde_json::Number::from_f64(f64::from(entry.priority) / 100.0).unwrap_or_else(|| 0.into()),
    }
}

impl<'a> From<&'a Entry> for Rule<'a> {
    fn from(entry: &'a Entry) -> Rule<'a> {
        let (node, subject) = match &entry.subject {
            Subject::Endpoints(selector) => (false, selector),
            Subject::Node(selector) => (true, selector),
        };
        let l3 = match &entry.peers {
            Peers::All => vec![L3::Labels(LabelSelector::default())],
            Peers::Nothing => Vec::new(),
            Peers::Of(selectors) => selectors.iter().map(L3::from).collect(),
        };
        let plain = match &entry.ports {
            Ports::All => None,
            Ports::Of(specs) if specs.is_empty() && !entry.redirects.is_empty() => None,
            Ports::Of(specs) => Some(specs.iter().map(PortProtocol::from).collect()),
        };
        let mut l4: Vec<PortRule<'a>> = Vec::new();
        l4.extend(plain.map(|ports| PortRule { ports, proxy: Proxy::default() }));
        // Redirects of one element of `toPorts` share their rules.
        for same in entry.redirects.chunk_by(|a, b| Arc::ptr_eq(&a.rules, &b.rules)) {
            let ports = same.iter().map(|redirect| PortProtocol::from(&redirect.port)).collect();
            l4.push(PortRule { ports, proxy: Proxy::new(&same[0].rules) });
        }
        let rule_label = |text: &String| {
            let Label { key, value, source } = Label::parse(text);
            RuleLabel { key, value, source }
        };
        Rule {
            tier: entry.tier.number(),
            priority: priority(entry),
            authentication: entry.authentication.map(Mode::new),
            log: Log { value: &entry.log },
            subject: LabelSelector::from(subject),
            l3,
            l4,
            labels: entry.labels.iter().map(rule_label).collect(),
            default_deny: entry.default_deny,
            verdict: verdict(entry.action),
            ingress: entry.direction == Direction::Ingress,
            node,
        }
    }
}

impl From<&Selector> for L3 {
    fn from(selector: &Selector) -> L3 {
        match selector {
            Selector::Labels(_) => L3::Labels(selector.into()),
            Selector::Cidr(_) | Selector::Fqdn(_) => L3::Text(selector.key()),
            Selector::None => L3::Labels((&Selector::reserved("none")).into()),
        }
    }
}

impl From<&Selector> for LabelSelector {
    fn from(selector: &Selector) -> LabelSelector {
        let mut found = LabelSelector::default();
        let Selector::Labels(requirements) = selector else { return found };
        for Requirement { source, key, test } in requirements {
            let key = format!("{source}:{key}");
            let (operator, values) = match test {
                Test::Equals(value) => {
                    found.match_labels.insert(key, value.clone());
                    continue;
                }
                Test::In(values) => ("In", values.clone()),
                Test::NotIn(values) => ("NotIn", values.clone()),
                Test::Exists => ("Exists", Vec::new()),
                Test::DoesNotExist => ("DoesNotExist", Vec::new()),
            };
            found.match_expressions.push(Expression { key, operator, values });
        }
        found
    }
}

impl From<&PortSpec> for PortProtocol {
    fn from(spec: &PortSpec) -> PortProtocol {
        let (port, end_port) = match &spec.port {
            Port::All => ("0".to_owned(), None),
            Port::Range(first, last) => (first.to_string(), (last > first).then_some(*last)),
            Port::Named { name, end } => (name.to_string(), *end),
        };
        PortProtocol { port, end_port, protocol: protocol_name(spec.protocol) }
    }
}

/// Returns the name of a protocol, `ANY` for 0.
pub(crate) fn protocol_name(protocol: u8) -> String {
    if protocol == 0 { "ANY".to_owned() } else { maps::text::protocol_name(protocol) }
}
