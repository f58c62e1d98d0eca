//! The state file: Services and EndpointSlices without a cluster.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use k8s_tables::core::{EndpointSlice, Service};
use k8s_tables::{Document, JsonItem, Problem, Refusal};
use serde_json::Value;

use crate::model::backend::Backend;
use crate::model::families::Families;
use crate::model::frontend::FrontendParams;
use crate::model::name::ServiceName;
use crate::model::shared::Names;
use crate::model::source::Source;
use crate::reflectors::convert;
use crate::reflectors::objects::invalid_fields::{of_annotations, of_weight};
use crate::writer::services_writer::State;

/// The reason why a state file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateFileError {
    /// It does not exist.
    #[error("there is no state file {}; write it, or leave option lb-state-file out", .0.display())]
    Missing(PathBuf),
    /// It cannot be read.
    #[error("state file {} cannot be read: {source}; let the agent read it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// Its content is invalid: each error with its line and path.
    #[error("state file {}: {}", path.display(), .faults.join("; "))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The errors: each with place and remedy.
        faults: Vec<String>,
    },
}

/// Reads a state file of at most `largest` bytes; a larger one is not read at all.
pub fn read(path: &Path, families: Families, largest: u64) -> Result<State, StateFileError> {
    load(path, families, largest).map(|loaded| loaded.state)
}

/// The content of a state file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) state: State,
    /// Parts without effect: unknown fields, and annotations with unknown values.
    pub(crate) invalid_fields: Vec<String>,
}

/// Reads a state file, including a report of the parts without effect; see [`read`].
pub(crate) fn load(path: &Path, families: Families, largest: u64) -> Result<Loaded, StateFileError> {
    let unreadable = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => StateFileError::Missing(path.to_owned()),
        _ => StateFileError::Unreadable { path: path.to_owned(), source },
    };
    let wrong = |faults| StateFileError::Wrong { path: path.to_owned(), faults };
    // Must not block on a pipe without a writer.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(wrong(vec!["is no regular file; put a file in its place".to_owned()]));
    }
    let mut content = Vec::new();
    if metadata.len() <= largest {
        file.take(largest + 1).read_to_end(&mut content).map_err(unreadable)?;
    }
    if metadata.len().max(content.len() as u64) > largest {
        return Err(wrong(vec![format!("is too long; shorten it to {largest} bytes")]));
    }
    parse_all(&content, families).map_err(wrong)
}

/// Parses the content of a state file. An empty one has no services; unknown fields are ignored.
pub fn parse(content: &[u8], families: Families) -> Result<State, Vec<String>> {
    parse_all(content, families).map(|loaded| loaded.state)
}

/// Parses a state file, including a report of the parts without effect; see [`parse`].
fn parse_all(content: &[u8], families: Families) -> Result<Loaded, Vec<String>> {
    if let Some(loaded) = parse_json(content, families) {
        return Ok(loaded);
    }
    let mut documents = k8s_tables::documents_of_bytes(content).into_iter();
    let Some(document) = documents.next() else { return Ok(Loaded::default()) };
    let document = document.map_err(|broken| vec![broken.to_string()])?;
    if let Some(second) = documents.next() {
        let line = second.map_or_else(|broken| broken.line, |document| document.line);
        return Err(vec![format!("line {line}: is a second document; join both into one")]);
    }
    let mut faults = Faults::default();
    let top = match &document.value {
        Value::Null => return Ok(Loaded::default()),
        Value::Object(top) => top,
        _ => {
            faults.add("", "expected an object with services and endpoints");
            return Err(faults.texts(&document));
        }
    };
    let mut objects = Objects::new(families);
    let unknown = top.keys().filter(|name| !["services", "endpoints"].contains(&name.as_str()));
    let unknown = unknown.map(|name| Problem::new(name, "is no field of a state file"));
    objects.invalid_fields.extend(unknown);
    for (path, item) in items(top.get("services"), "services", &mut faults) {
        match k8s_tables::manifest::<Service>(item) {
            Ok((manifest, unknown)) => {
                objects.pass_over(unknown, || path.clone());
                _ = objects.service(&manifest, || path.clone()).map_err(|fault| faults.add(&path, &fault))
            }
            Err(refusal) => faults.refused(&path, refusal),
        }
    }
    for (path, item) in items(top.get("endpoints"), "endpoints", &mut faults) {
        match k8s_tables::manifest::<EndpointSlice>(item) {
            Ok((manifest, unknown)) => {
                objects.pass_over(unknown, || path.clone());
                let label = |fault| faults.add(&format!("{path}.metadata.labels"), fault);
                _ = objects.slice(&manifest, || path.clone()).map_err(label);
            }
            Err(refusal) => faults.refused(&path, refusal),
        }
    }
    if faults.0.is_empty() { Ok(objects.loaded()) } else { Err(faults.texts(&document)) }
}

/// Parses a file that is valid JSON object by object, so that it takes no more memory than a single object. `None` for
/// every other file.
fn parse_json(content: &[u8], families: Families) -> Option<Loaded> {
    let text = std::str::from_utf8(content).ok()?;
    let mut objects = Objects::new(families);
    let whole =
        k8s_tables::json_items(text, &["services", "endpoints"], |JsonItem { list, at, value, text }| {
            let path = || format!("{list}[{at}]");
            match list {
                "services" => match k8s_tables::manifest_of_json::<Service>(&value, text) {
                    Ok((manifest, unknown)) => {
                        objects.pass_over(unknown, path);
                        objects.service(&manifest, path).is_ok()
                    }
                    Err(_) => false,
                },
                _ => match k8s_tables::manifest_of_json::<EndpointSlice>(&value, text) {
                    Ok((manifest, unknown)) => {
                        objects.pass_over(unknown, path);
                        objects.slice(&manifest, path).is_ok()
                    }
                    Err(_) => false,
                },
            }
        });
    whole.then(|| objects.loaded())
}

/// The parsed objects of a file.
struct Objects {
    families: Families,
    names: HashSet<ServiceName>,
    port_names: Names,
    services: Vec<(crate::model::service::Service, Vec<FrontendParams>)>,
    backends: Vec<Backend>,
    /// Unknown fields, and annotations without effect.
    invalid_fields: Vec<Problem>,
}

impl Objects {
    fn new(families: Families) -> Objects {
        let (names, port_names) = (HashSet::new(), Names::default());
        let (services, backends, invalid_fields) = (Vec::new(), Vec::new(), Vec::new());
        Objects { families, names, port_names, services, backends, invalid_fields }
    }

    /// Adds a service, or its errors.
    fn service(&mut self, manifest: &Service, path: impl Fn() -> String) -> Result<(), String> {
        self.pass_over(of_annotations(manifest), path);
        let (service, frontends) =
            convert::service(manifest, Source::Api, self.families, &mut self.port_names);
        if !self.names.insert(service.name.clone()) {
            return Err(format!("service {} is given twice; remove one", service.name));
        }
        self.services.push((service, frontends));
        Ok(())
    }

    /// Adds the backends of a slice, or the errors of its labels.
    fn slice(&mut self, manifest: &EndpointSlice, path: impl Fn() -> String) -> Result<(), &'static str> {
        self.pass_over(of_weight(manifest), path);
        let backends = convert::slice(manifest, Source::Api, self.families, &mut self.port_names);
        self.backends.extend(backends.ok_or("names no service; add label kubernetes.io/service-name")?);
        Ok(())
    }

    fn pass_over(&mut self, problems: impl IntoIterator<Item = Problem>, path: impl Fn() -> String) {
        self.invalid_fields.extend(
            problems.into_iter().map(|Problem { path: field, reason }| Problem {
                path: format!("{}.{field}", path()),
                reason,
            }),
        );
    }

    /// Merges the parsed services and backends.
    fn loaded(self) -> Loaded {
        let state = State { services: self.services, backends: convert::merge(self.backends) };
        Loaded { state, invalid_fields: self.invalid_fields.iter().map(Problem::to_string).collect() }
    }
}

/// Returns the items of a list with their paths.
fn items<'v>(list: Option<&'v Value>, name: &str, faults: &mut Faults) -> Vec<(String, &'v Value)> {
    match list {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => {
            let item = |(at, item)| (format!("{name}[{at}]"), item);
            items.iter().enumerate().map(item).collect()
        }
        Some(_) => {
            faults.add(name, "expected a list");
            Vec::new()
        }
    }
}

/// Errors of a document, each with its path.
#[derive(Default)]
struct Faults(Vec<Problem>);

impl Faults {
    fn add(&mut self, path: &str, reason: &str) {
        self.0.push(Problem::new(path, reason));
    }

    /// Formats the errors, each with its line.
    fn texts(self, document: &Document) -> Vec<String> {
        let lines = document.lines();
        self.0.iter().map(|problem| format!("line {}: {problem}", lines.of(&problem.path))).collect()
    }

    fn refused(&mut self, item: &str, refusal: Refusal) {
        for Problem { path, reason } in refusal.0 {
            let path = match path.as_str() {
                "" => item.to_owned(),
                rest if rest.starts_with('[') => format!("{item}{rest}"),
                rest => format!("{item}.{rest}"),
            };
            self.add(&path, &reason);
        }
    }
}

#[cfg(test)]
#[path = "state_file_tests.rs"]
mod tests;
