//! The description of an exporter: by options, by an entry of the file of dynamic exporters.

use std::time::Duration;

use hubble::BadFilter;
use hubble_api::flow::FlowFilter;
use hubble_api::{BadJson, BadMask, filter_from_json};
use jiff::Timestamp;
use k8s_types::documents;
use serde_json::{Map, Value};

use crate::file::Limits;

/// Bytes of a megabyte in options.
const MEGABYTE: u64 = 1 << 20;

/// The size in megabytes and the number of rotated files of an entry that gives none.
const DEFAULT_LIMITS: (u64, usize) = (10, 5);

/// An exporter: the flows that it selects, their form, and the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name, unique among dynamic exporters.
    pub name: String,
    /// The path of the file; `stdout` for the standard output.
    pub path: String,
    /// One of these must match, if there are any.
    pub allow: Vec<FlowFilter>,
    /// None of these may match.
    pub deny: Vec<FlowFilter>,
    /// Paths of the fields that are written; empty for all.
    pub fields: Vec<String>,
    /// Paths of the fields that flows of an interval must have in common to be written as one; empty for none.
    pub aggregate: Vec<String>,
    /// The interval.
    pub interval: Duration,
    /// The limits of the file.
    pub limits: Limits,
    /// The time after which nothing is written.
    pub end: Option<Timestamp>,
}

/// An exporter that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSpec {
    /// A filter has an invalid value.
    #[error(transparent)]
    Filter(#[from] BadFilter),
    /// A path names no field.
    #[error(transparent)]
    Mask(#[from] BadMask),
    /// A filter is no JSON of a filter.
    #[error("{list}[{at}]: {source}")]
    Json {
        /// The list of filters.
        list: &'static str,
        /// The filter's position in it.
        at: usize,
        /// The fault.
        source: BadJson,
    },
    /// A list of filters is no JSON.
    #[error("{list}: objects in JSON, one after another: {fault}")]
    Syntax {
        /// The list of filters.
        list: &'static str,
        /// The fault.
        fault: String,
    },
}

/// A file of dynamic exporters that is refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFile {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// It is no YAML.
    #[error("line {line}: {problem}")]
    Yaml {
        /// The line.
        line: usize,
        /// The fault.
        problem: String,
    },
    /// A value has another type, is missing or is used twice.
    #[error("{path}: {problem}")]
    Value {
        /// The path of the value.
        path: String,
        /// The problem, and what would be right.
        problem: String,
    },
    /// An exporter cannot be built.
    #[error("exporter {name}: {source}")]
    Spec {
        /// The exporter.
        name: String,
        /// The fault.
        source: BadSpec,
    },
}

/// Returns filters as options have them: JSON objects, one after another.
pub(crate) fn filters_of_option(list: &'static str, text: &str) -> Result<Vec<FlowFilter>, BadSpec> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>().enumerate();
    values
        .map(|(at, value)| {
            let value = value.map_err(|error| BadSpec::Syntax { list, fault: error.to_string() })?;
            filter_from_json(&value).map_err(|source| BadSpec::Json { list, at, source })
        })
        .collect()
}

/// Returns the exporters of a file of dynamic exporters.
///
/// # Errors
/// The file is refused as a whole: the exporters before it stay.
pub fn flow_logs(text: &str) -> Result<Vec<Spec>, BadFile> {
    let mut specs: Vec<Spec> = Vec::new();
    let file = document(text)?;
    let Some(entries) = file.get("flowLogs").filter(|value| !value.is_null()) else { return Ok(specs) };
    let entries = entries.as_array().ok_or_else(|| bad("flowLogs", "must be a list"))?;
    for (at, entry) in entries.iter().enumerate() {
        let path = format!("flowLogs[{at}]");
        let entry = Entry { path: &path, fields: object(&path, entry)? };
        let interval = entry.text("aggregationInterval")?;
        let interval = match interval.as_str() {
            "" => Duration::ZERO,
            text => go_duration::parse(text)
                .map_err(|problem| bad(&format!("{path}.aggregationInterval"), problem.to_string()))?,
        };
        let end = entry.text("end")?;
        let end = (!end.is_empty())
            .then(|| end.parse().map_err(|_| entry.bad("end", "must be a time in RFC 3339")));
        let spec = Spec {
            name: entry.text("name")?,
            path: entry.text("filePath")?,
            allow: entry.filters("includeFilters")?,
            deny: entry.filters("excludeFilters")?,
            fields: entry.texts("fieldMask")?,
            aggregate: entry.texts("fieldAggregate")?,
            interval,
            limits: limits(
                entry.number("fileMaxSizeMb")?,
                entry.number("fileMaxBackups")?,
                entry.flag("fileCompress")?,
            ),
            end: end.transpose()?,
        };
        for (key, value, other) in [
            ("name", &spec.name, specs.iter().find(|other| other.name == spec.name)),
            ("filePath", &spec.path, specs.iter().find(|other| other.path == spec.path)),
        ] {
            if value.is_empty() {
                return Err(entry.bad(key, "is missing"));
            }
            if let Some(other) = other {
                return Err(entry.bad(key, format!("{value:?} is also that of exporter {}", other.name)));
            }
        }
        specs.push(spec);
    }
    Ok(specs)
}

/// Returns limits by their numbers; zero for the default.
fn limits(max_size_mb: u64, max_backups: u64, compress: bool) -> Limits {
    let default = |value: u64, default: u64| if value == 0 { default } else { value };
    let max_backups = default(max_backups, DEFAULT_LIMITS.1 as u64);
    Limits {
        max_size: default(max_size_mb, DEFAULT_LIMITS.0).saturating_mul(MEGABYTE),
        max_backups: usize::try_from(max_backups).unwrap_or(usize::MAX),
        compress,
    }
}

/// Returns the only document of a YAML file.
pub(crate) fn document(text: &str) -> Result<Value, BadFile> {
    match documents(text).into_iter().next() {
        None => Ok(Value::Null),
        Some(Ok(document)) => Ok(document.value),
        Some(Err(broken)) => Err(BadFile::Yaml { line: broken.line, problem: broken.problem.to_string() }),
    }
}

fn bad(path: &str, problem: impl Into<String>) -> BadFile {
    BadFile::Value { path: path.to_owned(), problem: problem.into() }
}

fn object<'v>(path: &str, value: &'v Value) -> Result<&'v Map<String, Value>, BadFile> {
    value.as_object().ok_or_else(|| bad(path, "must be an object"))
}

/// The fields of an entry, with its path for errors.
struct Entry<'v> {
    path: &'v str,
    fields: &'v Map<String, Value>,
}

impl<'v> Entry<'v> {
    fn bad(&self, key: &str, problem: impl Into<String>) -> BadFile {
        bad(&format!("{}.{key}", self.path), problem)
    }

    fn get<T: Default>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&'v Value) -> Option<T>,
    ) -> Result<T, BadFile> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(T::default()),
            Some(value) => read(value).ok_or_else(|| self.bad(key, format!("must be {expected}"))),
        }
    }

    fn text(&self, key: &str) -> Result<String, BadFile> {
        self.get(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, BadFile> {
        self.get(key, "a list of strings", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    fn number(&self, key: &str) -> Result<u64, BadFile> {
        self.get(key, "a number, not negative", Value::as_u64)
    }

    fn flag(&self, key: &str) -> Result<bool, BadFile> {
        self.get(key, "true or false", Value::as_bool)
    }

    fn filters(&self, key: &str) -> Result<Vec<FlowFilter>, BadFile> {
        let items = self.get(key, "a list of filters", |value| value.as_array().cloned())?;
        let filter = |(at, item)| {
            filter_from_json(item).map_err(|error| self.bad(&format!("{key}[{at}]"), error.to_string()))
        };
        items.iter().enumerate().map(filter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
flowLogs:
- name: drops
  filePath: /var/log/drops.log
  fieldMask: [time, source.pod_name]
  includeFilters:
  - verdict: [DROPPED]
    sourcePod: [shop/]
  excludeFilters: []
  fileMaxSizeMb: 3
  fileCompress: true
  end: 2026-11-21T12:00:00-07:00
- {name: all, filePath: stdout, fieldAggregate: [verdict], aggregationInterval: 30s}
";

    #[test]
    fn a_file_has_entries_with_defaults() {
        let specs = flow_logs(FILE).unwrap();
        let (first, second) = (&specs[0], &specs[1]);
        assert_eq!((&*first.name, &*first.path), ("drops", "/var/log/drops.log"));
        assert_eq!((&first.allow[0].source_pod[..], first.deny.len()), (&["shop/".to_owned()][..], 0));
        assert_eq!(first.limits, Limits { max_size: 3 << 20, max_backups: 5, compress: true });
        assert_eq!(first.end, Some("2026-11-21T19:00:00Z".parse().unwrap()));
        assert_eq!(second.limits, Limits { max_size: 10 << 20, max_backups: 5, compress: false });
        assert_eq!((second.interval, second.end), (Duration::from_secs(30), None));
        assert_eq!((flow_logs("").unwrap(), flow_logs("flowLogs:\n").unwrap()), (vec![], vec![]));
    }

    #[test]
    fn faults_are_named_with_their_place() {
        for (text, fault) in [
            ("flowLogs: [", "line 1: "),
            ("flowLogs: {}", "flowLogs: must be a list"),
            ("flowLogs: [1]", "flowLogs[0]: must be an object"),
            ("flowLogs: [{filePath: a}]", "flowLogs[0].name: is missing"),
            ("flowLogs: [{name: a}]", "flowLogs[0].filePath: is missing"),
            ("flowLogs: [{name: a, filePath: x}, {name: a, filePath: z}]", "flowLogs[1].name: \"a\" is also"),
            (
                "flowLogs: [{name: a, filePath: x}, {name: b, filePath: x}]",
                "flowLogs[1].filePath: \"x\" is also",
            ),
            ("flowLogs: [{name: a, filePath: x, end: soon}]", "flowLogs[0].end: must be a time"),
            (
                "flowLogs: [{name: a, filePath: x, fieldMask: time}]",
                "flowLogs[0].fieldMask: must be a list of",
            ),
            (
                "flowLogs: [{name: a, filePath: x, includeFilters: [{pod: [a]}]}]",
                "flowLogs[0].includeFilters[0]: pod: is no field",
            ),
            (
                "flowLogs: [{name: a, filePath: x, aggregationInterval: soon}]",
                "flowLogs[0].aggregationInterval: ",
            ),
        ] {
            let error = flow_logs(text).unwrap_err().to_string();
            assert!(error.starts_with(fault), "{text}: {error}");
        }
    }

    #[test]
    fn options_have_filters_one_after_another() {
        let filters =
            filters_of_option("allow", "{\"source_pod\": [\"a/\"]}\n {\"verdict\":[\"DROPPED\"]}").unwrap();
        assert_eq!((filters.len(), filters[1].verdict.len()), (2, 1));
        let error = filters_of_option("allow", "{\"sourcepod\": []}").unwrap_err();
        assert_eq!(error.to_string(), "allow[0]: sourcepod: is no field");
        assert!(
            filters_of_option("allow", "{").unwrap_err().to_string().starts_with("allow: objects in JSON")
        );
        assert!(filters_of_option("allow", "").unwrap().is_empty());
    }
}
