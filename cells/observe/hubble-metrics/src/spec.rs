//! Metrics as options and the file of dynamic metrics describe them.

use hubble::{BadFilter, Filters};
use hubble_api::filter_from_json;
use hubble_api::flow::FlowFilter;
use k8s_types::documents;
use serde_json::Value;

use crate::context::{BadContext, Context};
use crate::kind::Kind;

/// A metric with its options.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) context: Context,
    /// One of these must match a flow, if there are any.
    pub(crate) allow: Vec<FlowFilter>,
    /// None of these may match it.
    pub(crate) deny: Vec<FlowFilter>,
}

/// Metrics that are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadMetrics {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The file is no YAML, or a value has another type.
    #[error("{path}: {problem}")]
    Value {
        /// The path of the value, or its line.
        path: String,
        /// The problem, and what would be right.
        problem: String,
    },
    /// A context has an unknown value.
    #[error("metric {metric}: {source}")]
    Context {
        /// The metric.
        metric: String,
        /// The fault.
        source: BadContext,
    },
    /// An option that the metric does not have.
    #[error("metric {metric}: {option:?} is no option of it")]
    Option {
        /// The metric.
        metric: String,
        /// The option.
        option: String,
    },
    /// A filter has an invalid value.
    #[error("metric {metric}: {source}")]
    Filter {
        /// The metric.
        metric: String,
        /// The fault.
        source: BadFilter,
    },
    /// Metrics with families of one name.
    #[error("metrics {0} and {1} have series of the same name: leave one of them out")]
    Conflict(String, String),
    /// TLS without a certificate.
    #[error("{0}: is empty, but hubble-metrics-server-enable-tls needs the file")]
    NoFile(&'static str),
    /// Both options are set.
    #[error("hubble-metrics and hubble-dynamic-metrics-config-path are both set: leave one of them out")]
    Both,
}

/// Returns the metrics of the option `hubble-metrics`. Unknown names are reported and left out, as in Cilium.
pub(crate) fn of_option(text: &str) -> Result<Vec<Spec>, BadMetrics> {
    let mut specs: Vec<Spec> = Vec::new();
    for word in text.split_whitespace() {
        let (name, options) = word.split_once(':').unwrap_or((word, ""));
        let Some(mut spec) = Spec::new(name) else { continue };
        for option in options.split(';').filter(|option| !option.is_empty()) {
            let (option, value) = option.split_once('=').unwrap_or((option, ""));
            let separator = if option.eq_ignore_ascii_case("labelsContext") { ',' } else { '|' };
            let values: Vec<&str> = value.split(separator).filter(|value| !value.is_empty()).collect();
            spec.set(option, &values)?;
        }
        specs.retain(|other| other.name != spec.name);
        specs.push(spec);
    }
    check(&specs)?;
    Ok(specs)
}

/// Returns the metrics of a file.
pub(crate) fn of_file(text: &str) -> Result<Vec<Spec>, BadMetrics> {
    let bad =
        |path: &str, problem: &str| BadMetrics::Value { path: path.to_owned(), problem: problem.to_owned() };
    let mut specs: Vec<Spec> = Vec::new();
    let file = match documents(text).into_iter().next() {
        None => return Ok(specs),
        Some(Ok(document)) => document.value,
        Some(Err(broken)) => return Err(bad(&format!("line {}", broken.line), &broken.problem.to_string())),
    };
    let list = |path: &str, value: Option<&Value>| match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok(items.clone()),
        Some(_) => Err(bad(path, "must be a list")),
    };
    for (at, entry) in list("metrics", file.get("metrics"))?.iter().enumerate() {
        let path = format!("metrics[{at}]");
        let name = entry.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| bad(&format!("{path}.name"), "is missing"))?;
        let Some(mut spec) = Spec::new(name) else { continue };
        if specs.iter().any(|other| other.name == spec.name) {
            return Err(bad(&format!("{path}.name"), &format!("{name} is there twice")));
        }
        let options = format!("{path}.contextOptions");
        for (at, option) in list(&options, entry.get("contextOptions"))?.iter().enumerate() {
            let path = format!("{options}[{at}]");
            let name = option.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(|| bad(&format!("{path}.name"), "is missing"))?;
            let values = list(&format!("{path}.values"), option.get("values"))?;
            let values = values.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
            spec.set(
                name,
                &values.ok_or_else(|| bad(&format!("{path}.values"), "must be a list of strings"))?,
            )?;
        }
        for (key, filters) in [("includeFilters", &mut spec.allow), ("excludeFilters", &mut spec.deny)] {
            let path = format!("{path}.{key}");
            for (at, filter) in list(&path, entry.get(key))?.iter().enumerate() {
                let filter = filter_from_json(filter);
                filters.push(filter.map_err(|error| bad(&format!("{path}[{at}]"), &error.to_string()))?);
            }
        }
        spec.filters()?;
        specs.push(spec);
    }
    check(&specs)?;
    Ok(specs)
}

/// Refuses metrics with families of one name.
fn check(specs: &[Spec]) -> Result<(), BadMetrics> {
    let both = ["http", "httpV2"].map(|name| specs.iter().any(|spec| spec.name == name));
    match both {
        [true, true] => Err(BadMetrics::Conflict("http".to_owned(), "httpV2".to_owned())),
        _ => Ok(()),
    }
}

impl Spec {
    /// Returns a metric without options; `None` if its name is unknown, which is reported.
    fn new(name: &str) -> Option<Self> {
        let Some(kind) = Kind::of(name) else {
            tracing::warn!(metric = name, "An unknown metric of Hubble is left out");
            return None;
        };
        let (context, allow, deny) = (Context::default(), Vec::new(), Vec::new());
        Some(Self { name: name.to_owned(), kind, context, allow, deny })
    }

    fn set(&mut self, option: &str, values: &[&str]) -> Result<(), BadMetrics> {
        let known = self.context.set(option, values);
        let known = known.map_err(|source| BadMetrics::Context { metric: self.name.clone(), source })?;
        let is_on = !values.contains(&"false");
        if known || self.kind.set(option, is_on) {
            return Ok(());
        }
        Err(BadMetrics::Option { metric: self.name.clone(), option: option.to_owned() })
    }

    /// Compiles the filters.
    pub(crate) fn filters(&self) -> Result<Filters, BadMetrics> {
        Filters::new(&self.allow, &self.deny)
            .map_err(|source| BadMetrics::Filter { metric: self.name.clone(), source })
    }

    /// Returns the families with all their labels: those of the context in front or behind, as in Cilium.
    pub(crate) fn families(&self) -> Vec<(crate::family::Description, Vec<&'static str>)> {
        let mut families = self.kind.families();
        families.iter_mut().for_each(|(_, labels)| labels.extend(self.context.names()));
        families
    }
}
