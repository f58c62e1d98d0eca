//! The state of the objects: the pure core behind the table.

use std::collections::BTreeMap;

use k8s_types::WatchEvent;

use crate::object::{self, ObjectOptions};
use crate::row::ClusterConfig;
use crate::spec::{ConfigSource, Overrides};

/// The followed objects: a view for each pair of object and source of cluster objects.
#[derive(Debug)]
pub(crate) struct Objects {
    sources: Vec<ConfigSource>,
    overrides: Overrides,
    views: Vec<View>,
}

/// One object in one source.
#[derive(Debug)]
struct View {
    /// Its position in `config-sources`.
    index: usize,
    /// Its options, if it exists.
    now: Option<ObjectOptions>,
    /// The same in an incomplete list.
    listing: Option<Option<ObjectOptions>>,
    listed: bool,
    /// The error of the current object, which is invalid; its last good options are kept.
    refused: Option<String>,
    /// The error that is logged already.
    reported: Option<String>,
    /// The current error of the source.
    failed: Option<String>,
}

/// The outcome of an event, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing to report.
    Quiet,
    /// The object cannot be read.
    Refused(String),
    /// Invalid keys are skipped.
    InvalidKeys(Vec<String>),
}

impl Objects {
    pub(crate) fn new(sources: Vec<ConfigSource>, overrides: Overrides) -> Objects {
        Objects { sources, overrides, views: Vec::new() }
    }

    /// Adds a view of the object at this position; returns the view's index.
    pub(crate) fn add(&mut self, index: usize) -> usize {
        self.views.push(View {
            index,
            now: None,
            listing: None,
            listed: false,
            refused: None,
            reported: None,
            failed: None,
        });
        self.views.len() - 1
    }

    /// Returns the object of a view.
    pub(crate) fn source(&self, view: usize) -> &ConfigSource {
        &self.sources[self.views[view].index]
    }

    /// Applies an event of a source.
    pub(crate) fn take(&mut self, view: usize, event: WatchEvent) -> Change {
        let source = &self.sources[self.views[view].index];
        let view = &mut self.views[view];
        view.failed = None;
        match event {
            WatchEvent::Restart => (view.listing, view.refused) = (Some(None), None),
            WatchEvent::Listed => {
                let listing = view.listing.take().flatten();
                // An invalid object still exists: its last good version is kept.
                if listing.is_some() || view.refused.is_none() {
                    view.now = listing;
                }
                view.listed = true;
            }
            WatchEvent::Applied { json, .. } => match object::read(source.kind, &json) {
                // Sources may ignore the selection, so other objects are filtered out here.
                Ok(options) if source.is(&options.key) => return view.apply(options),
                Ok(_) => {}
                Err(refusal) => return view.refuse(refusal.to_string()),
            },
            WatchEvent::Unreadable { key, reason } if key.as_ref().is_none_or(|key| source.is(key)) => {
                return view.refuse(reason);
            }
            WatchEvent::Deleted(key) if source.is(&key) => {
                view.refused = None;
                match &mut view.listing {
                    Some(listing) => *listing = None,
                    None => view.now = None,
                }
            }
            WatchEvent::Deleted(_) | WatchEvent::Unreadable { .. } | WatchEvent::Progress => {}
        }
        Change::Quiet
    }

    /// Records an error of a source, which retries by itself.
    pub(crate) fn fail(&mut self, view: usize, error: String) {
        self.views[view].failed = Some(error);
    }

    /// Whether every source has sent its first list.
    pub(crate) fn is_complete(&self) -> bool {
        self.views.iter().all(|view| view.listed)
    }

    /// Returns the number of existing objects, and the errors of the others.
    pub(crate) fn status(&self) -> (usize, Vec<String>) {
        let troubled = self.views.iter().filter_map(|view| {
            let error = view.refused.as_ref().or(view.failed.as_ref())?;
            Some(format!("{}: {error}", self.sources[view.index]))
        });
        (self.views.iter().filter(|view| view.now.is_some()).count(), troubled.collect())
    }

    /// Returns the rows of the table by their keys. Of rows with the same key, the one with the lower priority is kept:
    /// objects of different kinds may have the same name, and several sources may have the same object.
    pub(crate) fn rows(&self) -> BTreeMap<String, ClusterConfig> {
        let mut rows: BTreeMap<String, ClusterConfig> = BTreeMap::new();
        for view in &self.views {
            let source = &self.sources[view.index];
            for (key, value) in view.now.iter().flat_map(|options| options.values.iter()) {
                let row = ClusterConfig {
                    key: key.to_string(),
                    source: source.name.clone(),
                    priority: self.overrides.priority(key, view.index, self.sources.len()),
                    value: value.to_string(),
                    object: source.to_string(),
                };
                let now = rows.entry(statedb::TableSpec::key(&row)).or_insert_with(|| row.clone());
                if row.priority < now.priority {
                    *now = row;
                }
            }
        }
        rows
    }
}

impl View {
    fn apply(&mut self, options: ObjectOptions) -> Change {
        (self.refused, self.reported) = (None, None);
        let before = self.now.as_ref().map(|options| &options.invalid_keys);
        let change = match options.invalid_keys.is_empty() || before == Some(&options.invalid_keys) {
            true => Change::Quiet,
            false => Change::InvalidKeys(options.invalid_keys.clone()),
        };
        match &mut self.listing {
            Some(listing) => *listing = Some(options),
            None => self.now = Some(options),
        }
        change
    }

    fn refuse(&mut self, error: String) -> Change {
        self.refused = Some(error.clone());
        match self.reported.replace(error.clone()) == Some(error.clone()) {
            true => Change::Quiet,
            false => Change::Refused(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_types::Key;

    use super::*;

    const TWO: &str =
        r#"[{"kind":"config-map","namespace":"garden","name":"base"},{"kind":"node","name":"n1"}]"#;

    /// Returns views of a ConfigMap at two sources, and of a node at one.
    fn objects() -> Objects {
        let mut objects = Objects::new(ConfigSource::parse_list(TWO).unwrap(), Overrides::default());
        assert_eq!([0, 0, 1].map(|index| objects.add(index)), [0, 1, 2]);
        objects
    }

    fn applied(json: impl Into<String>) -> WatchEvent {
        WatchEvent::Applied { json: json.into().into(), origin: "".into() }
    }

    fn map(name: &str, data: &str) -> WatchEvent {
        applied(format!(r#"{{"metadata":{{"name":"{name}","namespace":"garden"}},"data":{data}}}"#))
    }

    fn node(annotations: &str) -> WatchEvent {
        applied(format!(r#"{{"metadata":{{"name":"n1","annotations":{annotations}}}}}"#))
    }

    fn rows(objects: &Objects) -> Vec<String> {
        let text = |row: ClusterConfig| format!("{} {} {} {}", row.key, row.source, row.priority, row.value);
        objects.rows().into_values().map(text).collect()
    }

    #[test]
    fn lists_take_effect_when_complete() {
        let mut o = objects();
        for view in [0, 1, 2] {
            o.take(view, WatchEvent::Restart);
        }
        o.take(0, map("base", r#"{"a":"1"}"#));
        o.take(0, map("another", r#"{"b":"1"}"#));
        assert!(rows(&o).is_empty() && !o.is_complete());
        for view in [0, 1, 2] {
            o.take(view, WatchEvent::Listed);
        }
        assert!(o.is_complete());
        assert_eq!(rows(&o), ["a base 2 1"]);
        // The same object in another source: the first source takes precedence.
        o.take(1, map("base", r#"{"a":"9","c":"2"}"#));
        assert_eq!(rows(&o), ["a base 2 1", "c base 2 2"]);
        o.take(2, node(r#"{"config.cilium.io/a":"3","x/y":"z"}"#));
        assert_eq!(rows(&o), ["a base 2 1", "a n1 1 3", "c base 2 2"]);
        // Another list: an object that it does not contain is removed when it is complete.
        o.take(0, WatchEvent::Restart);
        assert_eq!(rows(&o).len(), 3);
        o.take(0, WatchEvent::Listed);
        assert_eq!(rows(&o), ["a base 2 9", "a n1 1 3", "c base 2 2"]);
        o.take(1, WatchEvent::Deleted(Key::new("elsewhere", "base")));
        o.take(2, WatchEvent::Deleted(Key::new("", "n1")));
        assert_eq!(rows(&o), ["a base 2 9", "c base 2 2"]);
    }

    #[test]
    fn an_unreadable_object_keeps_its_last_good_options() {
        let mut o = objects();
        o.take(0, map("base", r#"{"a":"1"}"#));
        let Change::Refused(error) = o.take(0, map("base", r#"{"a":1}"#)) else { panic!("not refused") };
        assert!(error.contains("data.a: expected a string"), "{error}");
        assert_eq!(o.take(0, map("base", r#"{"a":1}"#)), Change::Quiet, "reported once");
        assert_eq!(rows(&o), ["a base 2 1"]);
        assert!(o.status().1[0].starts_with("ConfigMap garden/base: "), "{:?}", o.status());
        // A list in which it is still invalid.
        o.take(0, WatchEvent::Restart);
        o.take(0, map("base", r#"{"a":1}"#));
        o.take(0, WatchEvent::Listed);
        assert_eq!((rows(&o), o.status().1.len()), (vec!["a base 2 1".to_owned()], 1));
        // A list without the object: it is removed.
        o.take(0, WatchEvent::Restart);
        o.take(0, WatchEvent::Listed);
        assert_eq!((rows(&o), o.status()), (vec![], (0, vec![])));

        o.fail(1, "connection refused".to_owned());
        assert_eq!(o.status().1, ["ConfigMap garden/base: connection refused"]);
        o.take(1, WatchEvent::Progress);
        assert_eq!(o.status(), (0, vec![]));
        let invalid_keys = o.take(2, node(r#"{"config.cilium.io/..":"3"}"#));
        assert_eq!(invalid_keys, Change::InvalidKeys(vec!["..".to_owned()]));
        assert_eq!(o.take(2, node(r#"{"config.cilium.io/..":"4"}"#)), Change::Quiet);
    }
}
