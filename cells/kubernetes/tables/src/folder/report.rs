//! Reports the state of a folder: rows, health, metrics, and a log line for each change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hive::Health;
use k8s_types::Kind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use statedb::RwTable;

use super::manifests::Manifests;
use crate::source_file::SourceFile;

/// The maximum number of faults of a file in log and health; the table has more.
const MAX_SHOWN: usize = 5;

/// Labels of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct SourceLabels {
    source: String,
}

/// Labels of objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ObjectLabels {
    source: String,
    kind: &'static str,
}

/// The metrics of all sources.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceMetrics {
    objects: Family<ObjectLabels, Gauge>,
    faults: Family<SourceLabels, Gauge>,
}

impl SourceMetrics {
    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        metrics.register("k8s_manifest_objects", "Objects from files of manifests", self.objects.clone());
        metrics.register(
            "k8s_manifest_faults",
            "Faults in files of manifests, whose documents are refused",
            self.faults.clone(),
        );
    }
}

/// The receivers of reports.
pub(crate) struct Report {
    source: Arc<str>,
    path: String,
    accepted: &'static [Kind],
    table: Arc<RwTable<SourceFile>>,
    health: Health,
    metrics: SourceMetrics,
    /// The number of faults of each file that has any.
    faulty: BTreeMap<Arc<str>, usize>,
    files: usize,
    /// The kinds with a gauge: those that have or had objects.
    seen: BTreeSet<Kind>,
    /// The reason why the folder cannot be read.
    folder: Option<String>,
    /// The reason why the kernel does not report changes.
    late: Option<String>,
    reported: Option<String>,
}

impl Report {
    pub(crate) fn new(
        source: &str,
        path: &str,
        accepted: &'static [Kind],
        table: Arc<RwTable<SourceFile>>,
        health: Health,
        metrics: SourceMetrics,
    ) -> Report {
        Report {
            source: source.into(),
            path: path.to_owned(),
            accepted,
            table,
            health,
            metrics,
            faulty: BTreeMap::new(),
            files: 0,
            seen: BTreeSet::new(),
            folder: None,
            late: None,
            reported: None,
        }
    }

    /// Reports whether the folder can be read.
    pub(crate) fn folder(&mut self, fault: Option<&str>, manifests: &Manifests) {
        if self.folder.as_deref() != fault {
            match fault {
                Some(error) => tracing::warn!(
                    source = &*self.source,
                    path = self.path,
                    error,
                    "Folder of manifests cannot be read, its objects stay as they are"
                ),
                None => tracing::info!(
                    source = &*self.source,
                    path = self.path,
                    "Folder of manifests can be read again"
                ),
            }
            self.folder = fault.map(str::to_owned);
            self.files(Vec::new(), Vec::new(), manifests);
        }
    }

    /// Reports whether the kernel reports changes.
    pub(crate) fn late(&mut self, fault: Option<&str>, manifests: &Manifests) {
        if self.late.as_deref() != fault {
            match fault {
                Some(error) => {
                    tracing::warn!(
                        source = &*self.source,
                        path = self.path,
                        error,
                        "Folder of manifests is not watched"
                    );
                }
                None => tracing::info!(
                    source = &*self.source,
                    path = self.path,
                    "Folder of manifests is watched again"
                ),
            }
            self.late = fault.map(str::to_owned);
            self.files(Vec::new(), Vec::new(), manifests);
        }
    }

    /// Reports changed files.
    pub(crate) fn files(&mut self, rows: Vec<SourceFile>, gone: Vec<Arc<str>>, manifests: &Manifests) {
        let mut txn = self.table.write();
        for file in gone {
            txn.delete(SourceFile::by_name(&self.source, &file));
            self.faulty.remove(&file);
        }
        for row in rows {
            let old = txn.get(SourceFile::by_name(&self.source, &row.file));
            if old.is_some_and(|old| **old == row) {
                continue;
            }
            let before = old.map(|old| old.faults.clone()).unwrap_or_default();
            if before != row.faults {
                self.log(&row);
            }
            match row.faults.len() {
                0 => _ = self.faulty.remove(&row.file),
                faults => _ = self.faulty.insert(row.file.clone(), faults),
            }
            txn.insert(row);
        }
        txn.commit();
        self.files = manifests.files().count();
        let mut total = 0;
        for kind in self.accepted {
            let count = manifests.count(*kind);
            total += count;
            if count > 0 {
                self.seen.insert(*kind);
            }
            if self.seen.contains(kind) {
                let labels = ObjectLabels { source: self.source.to_string(), kind: kind.name() };
                self.metrics.objects.get_or_create(&labels).set(count as i64);
            }
        }
        let labels = SourceLabels { source: self.source.to_string() };
        let faults: usize = self.faulty.values().sum::<usize>() + usize::from(self.folder.is_some());
        self.metrics.faults.get_or_create(&labels).set(faults as i64);
        self.update_health(total);
    }

    fn log(&self, row: &SourceFile) {
        let (source, file) = (&*self.source, &*row.file);
        if row.faults.is_empty() {
            tracing::info!(source, file, "File of manifests has no faults any more");
            return;
        }
        let mut faults: Vec<String> = row.faults.iter().take(MAX_SHOWN).map(ToString::to_string).collect();
        if row.faults.len() > MAX_SHOWN {
            faults.push(format!("{} more in table k8s-sources", row.faults.len() - MAX_SHOWN));
        }
        let kept = row.kept;
        tracing::warn!(source, file, kept, error = faults.join("; "), "Manifests refused, the rest applies");
    }

    /// Updates health if it has changed.
    fn update_health(&mut self, objects: usize) {
        let message = format!("{objects} objects from {} files of {}", self.files, self.path);
        let error = match (self.folder.as_ref().or(self.late.as_ref()), self.faulty.first_key_value()) {
            (Some(error), _) => Some(error.clone()),
            (None, None) => None,
            (None, Some((file, _))) => {
                let snapshot = self.table.snapshot();
                let row = self.table.get(&snapshot, SourceFile::by_name(&self.source, file));
                let fault =
                    row.and_then(|row| row.faults.first().map(ToString::to_string)).unwrap_or_default();
                Some(format!("{} files have faults; the first: {file}: {fault}", self.faulty.len()))
            }
        };
        let text = format!("{message}\n{}", error.as_deref().unwrap_or_default());
        if self.reported.as_ref() == Some(&text) {
            return;
        }
        match error {
            Some(error) => self.health.degraded(message, error),
            None => self.health.ok(message),
        }
        self.reported = Some(text);
    }
}
