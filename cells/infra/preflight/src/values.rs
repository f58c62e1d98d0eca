//! Chart values: judged by the files of the chart, and where they are copied to options by the agent's hive.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::Error;
use crate::document::plain;
use crate::options::{Judged, Program, Scope, judge};
use crate::report::{Finding, Outcome};
use crate::schema::{Fault, FaultKind, faults, join};

pub(crate) const SCHEMA: &str = include_str!("../../../../helm/apiary/values.schema.json");
const NOT_BUILT: &str = include_str!("../../../../helm/apiary/not-built.tsv");
const REMOVED: &str = include_str!("../../../../helm/apiary/removed.tsv");
const OPTIONS: &str = include_str!("../../../../helm/apiary/options.tsv");

/// The value that has options as members.
const EXTRA: &str = "extraConfig";
/// The beginning of the description of a value that the schema accepts without an effect, and the reason.
const MARKS: [(&str, &str); 2] = [
    ("Not built", "belongs to a feature that is not built, and whose switch is off"),
    ("Removed", "is no value of Cilium 1.20"),
];

/// Judges the values of a file; the hive has the options that are copies of values.
pub fn judge_values(values: &Value, program: Program<'_>) -> Result<Judged, Error> {
    let schema: Value = serde_json::from_str(SCHEMA)
        .map_err(|error| Error::Chart { file: "values.schema.json", reason: error.to_string() })?;
    let copies = rows(OPTIONS, "options.tsv")?;
    let mut options = BTreeMap::new();
    for [key, path, form] in &copies {
        if let Some(text) = at(values, path).and_then(|value| copy(value, form)) {
            options.insert((*key).to_owned(), text);
        }
    }
    let extra = values.get(EXTRA).and_then(Value::as_object);
    options.extend(extra.into_iter().flatten().map(|(key, value)| (key.clone(), plain(value))));
    let Judged { findings, hive } = judge(&options, Scope::Partial, program)?;
    let by_option: BTreeMap<&str, &Finding> = findings.iter().map(|f| (f.key.as_str(), f)).collect();

    let context = Context { faults: faults(&schema, values), schema: &schema, copies: &copies, by_option };
    let not_built = rows(NOT_BUILT, "not-built.tsv")?.into_iter().map(|row| (row, "is not built"));
    let removed = rows(REMOVED, "removed.tsv")?.into_iter().map(|row| (row, "is no value of Cilium 1.20"));
    let is_requested = |path: &str, off: &str| at(values, path).is_some_and(|value| is_on(value, off));
    let requested: Vec<(&str, String)> = not_built
        .chain(removed)
        .filter(|([path, off, _], _)| is_requested(path, off))
        .map(|([path, _, remedy], reason)| (path, format!("{reason}: {remedy}")))
        .collect();
    let mut judged = Vec::new();
    for (path, value) in leaves(values) {
        let within = |(row, reason): &(&str, String)| is_below(&path, row).then(|| reason.clone());
        let (outcome, reason) = match requested.iter().find_map(within) {
            Some(reason) => (Outcome::Refused, reason),
            None => context.judge(&path),
        };
        judged.push(Finding { key: path, value, outcome, reason });
    }
    // A required value that is missing is no leaf.
    for Fault { path, kind } in &context.faults {
        if let (None, FaultKind::Invalid(reason)) = (judged.iter().find(|f| is_below(&f.key, path)), kind) {
            let (key, value) = (path.clone(), String::new());
            judged.push(Finding { key, value, outcome: Outcome::Refused, reason: reason.clone() });
        }
    }
    Ok(Judged { findings: judged, hive })
}

struct Context<'a> {
    faults: Vec<Fault>,
    schema: &'a Value,
    copies: &'a [[&'static str; 3]],
    by_option: BTreeMap<&'a str, &'a Finding>,
}

impl Context<'_> {
    fn judge(&self, path: &str) -> (Outcome, String) {
        let fault =
            self.faults.iter().find(|fault| is_below(path, &fault.path) || is_below(&fault.path, path));
        match fault.map(|fault| (fault, &fault.kind)) {
            Some((fault, FaultKind::Unknown(known))) => {
                let reason = match nearest(&fault.path, known) {
                    Some(nearest) => {
                        format!("the chart has no such value and refuses it: is {nearest} meant?")
                    }
                    None => "the chart has no such value and refuses it: remove it".to_owned(),
                };
                return (Outcome::Refused, reason);
            }
            Some((fault, FaultKind::Invalid(reason))) if fault.path == path => {
                return (Outcome::Refused, reason.clone());
            }
            Some((fault, FaultKind::Invalid(reason))) => {
                return (Outcome::Refused, format!("{} {reason}", fault.path));
            }
            None => {}
        }
        let option = match path.strip_prefix(EXTRA).and_then(|rest| rest.strip_prefix('.')) {
            Some(key) => Some(key),
            None => self.copies.iter().find(|[_, of, _]| is_below(path, of)).map(|[key, _, _]| *key),
        };
        match option.map(|key| (key, self.by_option.get(key))) {
            Some((key, Some(finding))) if finding.reason.is_empty() => {
                (finding.outcome, format!("option {key}"))
            }
            Some((key, Some(finding))) => (finding.outcome, format!("option {key}: {}", finding.reason)),
            Some((key, None)) => (Outcome::Effective, format!("leaves option {key} at its default")),
            None => match self.reason_to_ignore(path) {
                Some(reason) => (Outcome::Ignored, reason.to_owned()),
                None => (Outcome::Effective, "the templates of the chart use it".to_owned()),
            },
        }
    }

    /// Returns why a value that the schema accepts has no effect.
    fn reason_to_ignore(&self, path: &str) -> Option<&'static str> {
        let mut schema = self.schema;
        for name in path.split('.') {
            let Some(inner) = schema.get("properties").and_then(|properties| properties.get(name)) else {
                break;
            };
            schema = inner;
        }
        let description = schema["description"].as_str()?;
        MARKS.iter().find(|(mark, _)| description.starts_with(mark)).map(|(_, reason)| *reason)
    }
}

/// Returns the lines of a table of the chart.
fn rows(table: &'static str, file: &'static str) -> Result<Vec<[&'static str; 3]>, Error> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &'static str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let reason = || format!("not three columns: {line}");
        <[&str; 3]>::try_from(columns).map_err(|_| Error::Chart { file, reason: reason() })
    };
    lines.map(row).collect()
}

fn at<'v>(values: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(values, |value, name| value.get(name))
}

/// Whether a path is another one, or inside of it.
fn is_below(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Whether a value requests a feature, as the template that refuses it decides: `off` are the texts, separated by `|`, of those
/// that do not.
fn is_on(value: &Value, off: &str) -> bool {
    let text = go_text(value);
    !(text.is_empty() || off.split('|').any(|off| off == text))
}

/// Returns a value as `toString` of a template prints it.
fn go_text(value: &Value) -> String {
    let spaced = |items: Vec<String>| items.join(" ");
    match value {
        Value::Null => String::new(),
        Value::Array(items) => format!("[{}]", spaced(items.iter().map(go_text).collect())),
        Value::Object(members) => {
            let members: BTreeMap<&String, &Value> = members.iter().collect();
            let member = |(name, value): (&String, &Value)| format!("{name}:{}", go_text(value));
            format!("map[{}]", spaced(members.into_iter().map(member).collect()))
        }
        _ => plain(value),
    }
}

/// Returns the option that a value becomes, as the templates print it; none if there is no key.
fn copy(value: &Value, form: &str) -> Option<String> {
    let (form, is_optional) = form.strip_suffix('?').map_or((form, false), |form| (form, true));
    let is_empty = match value {
        Value::Null => return None,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    };
    if is_optional && is_empty {
        return None;
    }
    let joined = |separator: &str| {
        value.as_array().map(|items| items.iter().map(plain).collect::<Vec<_>>().join(separator))
    };
    let text = match form {
        "int" => value.as_f64().map(|number| format!("{number:.0}")),
        "space" => joined(" "),
        "comma" => joined(","),
        "json" => Some(value.to_string()),
        _ => None,
    };
    Some(text.unwrap_or_else(|| plain(value)))
}

/// Returns all values that are no maps, by path; empty maps as well.
fn leaves(values: &Value) -> Vec<(String, String)> {
    fn visit(members: &Map<String, Value>, path: &str, found: &mut Vec<(String, String)>) {
        for (name, value) in members {
            let path = join(path, name);
            match value.as_object().filter(|members| !members.is_empty()) {
                Some(members) => visit(members, &path, found),
                None => found.push((path, plain(value))),
            }
        }
    }
    let mut found = Vec::new();
    visit(values.as_object().unwrap_or(&Map::new()), "", &mut found);
    found
}

/// Returns the path of the known name that differs in few letters.
fn nearest(path: &str, known: &[String]) -> Option<String> {
    let (parent, name) = path.rsplit_once('.').map_or(("", path), |(parent, name)| (parent, name));
    let (distance, best) =
        known.iter().map(|other| (strsim::damerau_levenshtein(name, other), other)).min()?;
    (distance <= name.len() / 3).then(|| join(parent, best))
}

#[cfg(test)]
mod tests {
    use hive::Hive;
    use hive::prelude::*;
    use known_options::known_options;
    use serde_json::json;

    use super::*;

    #[derive(hive::Config)]
    #[expect(dead_code, reason = "seen in settings only")]
    struct Options {
        /// Families
        #[flag(default = true)]
        enable_ipv4: bool,
        /// Bytes
        #[flag(default = 0, unit = "bytes")]
        mtu: u16,
    }

    fn judged(values: Value) -> Vec<String> {
        let builder = || Hive::builder(module("x", "x", [config::<Options>()])).foreign(known_options());
        let program = Program { builder: &builder, construct: &|_| Ok(()) };
        let findings = judge_values(&values, program).unwrap().findings.into_iter();
        let text = |f: Finding| format!("{}={} {:?}: {}", f.key, f.value, f.outcome, f.reason);
        findings.map(text).collect()
    }

    #[test]
    fn values_are_judged_by_the_files_of_the_chart() {
        for (values, expected) in [
            (json!({"ipv4": {"enabled": false}}), "ipv4.enabled=false Effective: option enable-ipv4"),
            (json!({"MTU": 9000}), "MTU=9000 Effective: option mtu"),
            (json!({"MTU": 0}), "MTU=0 Effective: leaves option mtu at its default"),
            (json!({"MTU": 70000}), "MTU=70000 Refused: is too large: the limit is 65535"),
            (json!({"MTU": "x"}), "MTU=x Refused: is not of type"),
            (
                json!({"routingMode": "native"}),
                "routingMode=native Effective: the templates of the chart use it",
            ),
            (json!({"vtep": {"enabled": true}}), "vtep.enabled=true Refused: is not built: leave it out"),
            (
                json!({"vtep": {"enabled": false}}),
                "vtep.enabled=false Ignored: belongs to a feature that is not built",
            ),
            (json!({"synchronizeK8sNodes": true}), "synchronizeK8sNodes=true Ignored: belongs to a feature"),
            (
                json!({"authentication": {"mutual": {"spire": {"annotations": {}}}}}),
                "authentication.mutual.spire.annotations={} Ignored: belongs to a feature",
            ),
            (
                json!({"prometheus": {"controllerGroupMetrics": ["all"]}}),
                "prometheus.controllerGroupMetrics=[\"all\"] Ignored: belongs to a feature",
            ),
            (
                json!({"externalIPs": {"enabled": true}}),
                "externalIPs.enabled=true Refused: is no value of Cilium 1.20: set kubeProxyReplacement true",
            ),
            (
                json!({"externalIPs": {"enabled": false}}),
                "externalIPs.enabled=false Ignored: is no value of Cilium 1.20",
            ),
            (
                json!({"loadBalancer": {"mode": "snat"}}),
                "loadBalancer.mode=snat Ignored: option bpf-lb-mode: ",
            ),
            (
                json!({"encryption": {"enabled": true}}),
                "encryption.enabled=true Refused: is not built: leave it out",
            ),
            (json!({"ipv5": {"enabled": 1}}), "ipv5.enabled=1 Refused: the chart has no such value"),
            (
                json!({"ipam": {"mod": "x"}}),
                "ipam.mod=x Refused: the chart has no such value and refuses it: is ipam.mode meant?",
            ),
            (json!({"extraEnv": [{}]}), "extraEnv=[{}] Refused: extraEnv[0].name is missing"),
            (
                json!({"extraConfig": {"mtu": "x"}}),
                "extraConfig.mtu=x Refused: option mtu: is not an integer",
            ),
            (json!({"extraConfig": {"mtuu": "1"}}), "extraConfig.mtuu=1 Unknown: option mtuu: is mtu meant?"),
            (
                json!({"extraConfig": {"enable-hubble": true}}),
                "extraConfig.enable-hubble=true Ignored: option enable-hubble: is not built",
            ),
            (
                json!({"extraConfig": {"nodes-gc-interval": "1m"}}),
                "extraConfig.nodes-gc-interval=1m Effective: option nodes-gc-interval: is an option of the operator",
            ),
        ] {
            let found = judged(values.clone());
            assert!(found[0].starts_with(expected), "{values}: {found:?}");
        }
    }

    /// Defaults of the chart are accepted values.
    #[test]
    fn the_defaults_of_the_chart_are_accepted() {
        let documents = k8s_types::documents(include_str!("../../../../helm/apiary/values.yaml"));
        let values = documents.into_iter().next().unwrap().unwrap().value;
        let found = judged(values);
        assert!(found.len() > 200, "{}", found.len());
        let refused: Vec<&String> = found.iter().filter(|text| text.contains(" Refused: ")).collect();
        assert_eq!(refused, [] as [&String; 0]);
    }
}
