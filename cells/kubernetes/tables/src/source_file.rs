//! Table `k8s-sources`: files of manifests and their problems.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use statedb::{Query, TableDisplay, TableSpec};

use crate::Problem;

/// A row of `k8s-sources`: one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceFile {
    /// The source: the option that names the folder.
    pub source: Arc<str>,
    /// The file's name in the folder; empty for the folder itself.
    pub file: Arc<str>,
    /// The number of documents.
    pub documents: usize,
    /// The number of its objects, including kept ones.
    pub objects: usize,
    /// The number of objects kept from an earlier version of the file, because the current one is refused.
    pub kept: usize,
    /// The faults.
    pub faults: Vec<ManifestFault>,
}

/// A fault of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestFault {
    /// The document, from 1; 0 for a fault of the file.
    pub document: usize,
    /// The line, from 1; 0 for a fault of the file.
    pub line: usize,
    /// Kind and name of the object, as far as known.
    pub object: String,
    /// The problem and its path in the document.
    #[serde(flatten)]
    pub problem: Problem,
}

impl fmt::Display for ManifestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.document > 0 {
            write!(f, "document {}, line {}: ", self.document, self.line)?;
        }
        if !self.object.is_empty() {
            write!(f, "{}: ", self.object)?;
        }
        self.problem.fmt(f)
    }
}

impl SourceFile {
    /// Queries the row of a file.
    pub fn by_name(source: &str, file: &str) -> Query<SourceFile> {
        Query::primary(format!("{source}/{file}"))
    }
}

impl TableSpec for SourceFile {
    const NAME: &'static str = "k8s-sources";
    const PRIMARY: &'static str = "name";
    type Key<'a> = String;

    fn key(&self) -> String {
        format!("{}/{}", self.source, self.file)
    }
}

impl TableDisplay for SourceFile {
    fn columns() -> &'static [&'static str] {
        &["Source", "File", "Documents", "Objects", "Kept", "Faults"]
    }

    fn row(&self) -> Vec<String> {
        let faults: Vec<String> = self.faults.iter().map(ManifestFault::to_string).collect();
        vec![
            self.source.to_string(),
            self.file.to_string(),
            self.documents.to_string(),
            self.objects.to_string(),
            self.kept.to_string(),
            faults.join("; "),
        ]
    }
}
