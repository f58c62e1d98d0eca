//! The dynamic exporters by name, and how a new list replaces them.

use std::collections::BTreeMap;
use std::io;

use hubble::Event;
use tokio::time::Instant;

use crate::exporter::{Exporter, Moment};
use crate::file::Cleanup;
use crate::spec::{BadFile, Spec};

/// Exporters by name.
#[derive(Debug, Default)]
pub struct Exporters(BTreeMap<String, Exporter>);

/// The numbers of exporters that a new list has added, updated and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New names.
    pub added: u64,
    /// Names with another description.
    pub updated: u64,
    /// Names that are gone.
    pub removed: u64,
}

impl Exporters {
    /// Replaces the exporters by those of a list; one with an equal description goes on.
    ///
    /// # Errors
    /// An exporter cannot be built: nothing has changed.
    pub fn replace(&mut self, specs: Vec<Spec>, moment: &Moment) -> Result<Changes, BadFile> {
        let is_new = |spec: &Spec| self.0.get(&spec.name).is_none_or(|exporter| exporter.spec() != spec);
        let (new, same): (Vec<_>, Vec<_>) = specs.into_iter().partition(is_new);
        let build = |spec: Spec| {
            let name = spec.name.clone();
            let built = Exporter::new(spec).map_err(|source| BadFile::Spec { name: name.clone(), source });
            Ok((name, built?))
        };
        let new = new.into_iter().map(build).collect::<Result<Vec<_>, _>>()?;
        let mut changes = Changes::default();
        let is_kept = |name: &String| same.iter().any(|spec| spec.name == *name);
        let gone: Vec<_> = self.0.keys().filter(|name| !is_kept(name)).cloned().collect();
        for name in gone {
            let is_updated = new.iter().any(|(other, _)| *other == name);
            *if is_updated { &mut changes.updated } else { &mut changes.removed } += 1;
            self.remove(&name, moment);
        }
        changes.added = new.len() as u64 - changes.updated;
        self.0.extend(new);
        Ok(changes)
    }

    /// Adds an exporter; one of the same name ends.
    pub fn insert(&mut self, exporter: Exporter, moment: &Moment) {
        let name = exporter.spec().name.clone();
        self.remove(&name, moment);
        self.0.insert(name, exporter);
    }

    /// Ends an exporter. Returns whether there was one of this name.
    pub fn remove(&mut self, name: &str, moment: &Moment) -> bool {
        let Some(mut exporter) = self.0.remove(name) else { return false };
        if let Err(error) = exporter.finish(moment) {
            tracing::warn!(exporter = name, %error, "The last flows of an exporter are not written");
        }
        true
    }

    /// Returns the exporters, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = &Exporter> {
        self.0.values()
    }

    /// Has all exporters write events. Returns the names of those that could not, with their errors.
    pub fn write(&mut self, events: &[Event], lost: u64, moment: &Moment) -> Vec<(String, io::Error)> {
        let write = |(name, exporter): (&String, &mut Exporter)| {
            exporter.write(events, lost, moment).err().map(|error| (name.clone(), error))
        };
        self.0.iter_mut().filter_map(write).collect()
    }

    /// Returns when aggregated flows are due next.
    pub fn due(&self) -> Option<Instant> {
        self.0.values().filter_map(Exporter::due).min()
    }

    /// Returns pending work on rotated files of one exporter.
    pub fn take_cleanup(&mut self) -> Option<Cleanup> {
        self.0.values_mut().find_map(Exporter::take_cleanup)
    }

    /// Ends all exporters.
    pub fn finish(&mut self, moment: &Moment) {
        while let Some(name) = self.0.keys().next().cloned() {
            self.remove(&name, moment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::flow_logs;

    fn moment() -> Moment {
        let time = "2026-11-21T12:05:30Z".parse().unwrap();
        Moment { time, instant: Instant::now(), node: "n".to_owned() }
    }

    #[tokio::test]
    async fn a_list_replaces_what_has_changed_and_a_bad_one_nothing() {
        let mut exporters = Exporters::default();
        let mut replace = |text: &str| exporters.replace(flow_logs(text).unwrap(), &moment());
        let both = "flowLogs: [{name: a, filePath: /a}, {name: b, filePath: /b}]";
        assert_eq!(replace(both), Ok(Changes { added: 2, updated: 0, removed: 0 }));
        assert_eq!(replace(both), Ok(Changes::default()));
        let bad = "flowLogs: [{name: c, filePath: /c}, {name: b, filePath: /b, fieldMask: [x]}]";
        let error = replace(bad).unwrap_err().to_string();
        assert!(error.starts_with("exporter b: invalid fieldmask"), "{error}");
        let other = "flowLogs: [{name: c, filePath: /c}, {name: b, filePath: /b, fieldMask: [time]}]";
        assert_eq!(replace(other), Ok(Changes { added: 1, updated: 1, removed: 1 }));
        let names: Vec<_> = exporters.iter().map(|exporter| &*exporter.spec().name).collect();
        assert_eq!(names, ["b", "c"]);
    }
}
