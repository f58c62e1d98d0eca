//! The objects of a folder's files, without I/O: takes contents of files, returns changes of objects.

#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::last_good::{LastGood, Taken};
use super::outcome::{Good, Outcome};
use crate::Problem;
use crate::in_memory_source::{Change, Raw};
use crate::object::{ObjectKey, key_of, object};
use crate::source_file::{ManifestFault, SourceFile};
use k8s_types::schema::nearest;
use k8s_types::{Document, Kind, documents_of_bytes};

/// The maximum number of reported faults of a file; the rest is counted.
const MAX_FAULTS: usize = 50;

/// The maximum number of kinds that a fault lists.
const SHOWN_KINDS: usize = 5;

/// The objects of all files of a folder.
///
/// - Of several manifests of one object the last one takes precedence, by file name, then by position in the file, as
///   after `kubectl apply -f FOLDER`. The others are reported.
/// - The object of a refused manifest keeps its last good version. While a file has a fault that may concern any object
///   (such as a syntax error), no object of that file is deleted.
/// - All other files take precedence over a removed file in its grace period.
pub(crate) struct Manifests {
    source: Arc<str>,
    accepted: &'static [Kind],
    /// The name of this node, to which pods without a node belong.
    node: Arc<str>,
    files: BTreeMap<Arc<str>, File>,
    /// The claims of files on objects.
    claims: BTreeMap<ObjectKey, BTreeMap<Arc<str>, Claim>>,
    counts: BTreeMap<Kind, usize>,
}

#[derive(Default)]
struct File {
    documents: usize,
    objects: BTreeSet<ObjectKey>,
    faults: Vec<ManifestFault>,
    leaving: bool,
}

#[derive(Clone)]
struct Claim {
    object: Raw,
    document: usize,
    line: usize,
    /// Whether it was kept from an earlier version of the file.
    kept: bool,
}

impl Manifests {
    pub(crate) fn new(source: &str, accepted: &'static [Kind], node: &str) -> Manifests {
        Manifests {
            source: source.into(),
            accepted,
            node: node.into(),
            files: BTreeMap::new(),
            claims: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Returns the accepted kinds.
    pub(crate) fn accepted(&self) -> &'static [Kind] {
        self.accepted
    }

    /// Returns the names of the known files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<str>> {
        self.files.keys()
    }

    /// Whether a file is known.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// Returns the number of objects of a kind.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.counts.get(&kind).copied().unwrap_or_default()
    }

    /// Sets the content of a file, or the reason why it cannot be read.
    pub(crate) fn set(&mut self, name: &str, content: Result<&[u8], String>) -> Outcome {
        let name: Arc<str> = name.into();
        let read = match content {
            Ok(content) => self.read(&name, content),
            Err(reason) => {
                let problem = Problem::new("", reason);
                let fault = ManifestFault { document: 0, line: 0, object: String::new(), problem };
                Contents { faults: vec![fault], open: true, ..Contents::default() }
            }
        };
        let old = self.files.remove(&name).unwrap_or_default();
        let mut good = Good { taken: read.taken.into_values().collect(), ..Good::default() };
        let mut claims = read.claims;
        for key in &old.objects {
            let stays = !claims.contains_key(key) && (read.open || read.refused.contains(key));
            if stays && let Some(claim) = self.claims.get(key).and_then(|by_file| by_file.get(&name)) {
                claims.insert(key.clone(), Claim { kept: true, ..claim.clone() });
                good.kept.insert(key.clone());
            }
        }
        let objects: BTreeSet<ObjectKey> = claims.keys().cloned().collect();
        let touched = old.objects.union(&objects).cloned().collect();
        for key in old.objects.difference(&objects) {
            self.drop_claim(key, &name);
        }
        for (key, claim) in claims {
            let kind = key.kind;
            let by_file = self.claims.entry(key).or_default();
            if by_file.is_empty() {
                *self.counts.entry(kind).or_default() += 1;
            }
            by_file.insert(name.clone(), claim);
        }
        let file = File { documents: read.documents, objects, faults: read.faults, leaving: false };
        self.files.insert(name.clone(), file);
        Outcome { good: vec![(name.clone(), Some(good))], ..self.outcome(touched, name) }
    }

    /// Restores the objects of a file from the previous run, until it is read. Does nothing if it was read already.
    pub(crate) fn restore(&mut self, name: &str, before: &LastGood) -> Outcome {
        if self.has(name) {
            return Outcome::default();
        }
        let name: Arc<str> = name.into();
        let mut file = File::default();
        for taken in &before.manifests {
            let Some((key, json)) = taken.object(self.accepted, &self.node) else { continue };
            let Taken { document, line, origin, .. } = taken;
            let by_file = self.claims.entry(key.clone()).or_default();
            if by_file.is_empty() {
                *self.counts.entry(key.kind).or_default() += 1;
            }
            let object = Raw { json, origin: origin.into() };
            let claim = Claim { object, document: *document, line: *line, kept: true };
            by_file.insert(name.clone(), claim);
            file.objects.insert(key);
        }
        let touched = file.objects.clone();
        self.files.insert(name.clone(), file);
        self.outcome(touched, name)
    }

    /// Starts the grace period of a removed file: other files take precedence.
    pub(crate) fn leave(&mut self, name: &str) -> Outcome {
        let Some((name, file)) = self
            .files
            .get_key_value(name)
            .map(|(name, _)| name.clone())
            .and_then(|name| self.files.get_mut(&name).map(|file| (name, file)))
        else {
            return Outcome::default();
        };
        file.leaving = true;
        let touched = file.objects.clone();
        self.outcome(touched, name)
    }

    /// Removes a file and its objects.
    pub(crate) fn remove(&mut self, name: &str) -> Outcome {
        let Some((name, file)) = self.files.remove_entry(name) else { return Outcome::default() };
        file.objects.iter().for_each(|key| self.drop_claim(key, &name));
        Outcome { good: vec![(name.clone(), None)], ..self.outcome(file.objects, name) }
    }

    fn drop_claim(&mut self, key: &ObjectKey, file: &str) {
        if let Some(by_file) = self.claims.get_mut(key) {
            by_file.remove(file);
            if by_file.is_empty() {
                self.claims.remove(key);
                *self.counts.entry(key.kind).or_default() -= 1;
            }
        }
    }

    /// Returns the file that provides an object, with its claim.
    fn winner(&self, key: &ObjectKey) -> Option<(&Arc<str>, &Claim)> {
        let by_file = self.claims.get(key)?;
        let stays = |file: &Arc<str>| self.files.get(file).is_some_and(|file| !file.leaving);
        by_file.iter().max_by_key(|(file, _)| (stays(file), *file))
    }

    fn outcome(&self, touched: BTreeSet<ObjectKey>, file: Arc<str>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut files = BTreeSet::from([file]);
        for key in touched {
            files.extend(self.claims.get(&key).into_iter().flat_map(BTreeMap::keys).cloned());
            outcome.changes.push(match self.winner(&key) {
                Some((_, claim)) => Change::Set(key.kind, key.key, claim.object.clone()),
                None => Change::Delete(key.kind, key.key),
            });
        }
        for file in files {
            match self.row(&file) {
                Some(row) => outcome.rows.push(row),
                None => outcome.gone.push(file),
            }
        }
        outcome
    }

    fn row(&self, name: &Arc<str>) -> Option<SourceFile> {
        let file = self.files.get(name)?;
        let mut faults = file.faults.clone();
        let mut kept = 0;
        for key in &file.objects {
            let Some(claim) = self.claims.get(key).and_then(|by_file| by_file.get(name)) else { continue };
            kept += usize::from(claim.kept);
            match self.winner(key) {
                Some((winner, other)) if winner != name && !file.leaving => {
                    let reason = format!(
                        "is also in document {} of {winner}, which counts; remove one of them",
                        other.document
                    );
                    faults.push(ManifestFault {
                        document: claim.document,
                        line: claim.line,
                        object: key.to_string(),
                        problem: Problem::new("", reason),
                    });
                }
                _ => {}
            }
        }
        if let Some(more) = faults.len().checked_sub(MAX_FAULTS).filter(|&more| more > 0) {
            faults.truncate(MAX_FAULTS);
            let problem = Problem::new("", format_args!("has {more} faults more"));
            faults.push(ManifestFault { document: 0, line: 0, object: String::new(), problem });
        }
        Some(SourceFile {
            source: self.source.clone(),
            file: name.clone(),
            documents: file.documents,
            objects: file.objects.len(),
            kept,
            faults,
        })
    }

    fn read(&self, file: &str, content: &[u8]) -> Contents {
        let mut contents = Contents::default();
        for document in documents_of_bytes(content) {
            contents.documents += 1;
            match document {
                Ok(document) => self.read_document(file, &document, &mut contents),
                Err(broken) => {
                    contents.open = true;
                    contents.faults.push(ManifestFault {
                        document: broken.number,
                        line: broken.line,
                        object: String::new(),
                        problem: broken.problem,
                    });
                }
            }
        }
        contents
    }

    fn read_document(&self, file: &str, document: &Document, contents: &mut Contents) {
        let lines = OnceCell::new();
        for manifest in document.manifests() {
            let fault = |object: String, path: &str, reason: &str| {
                let path = manifest.path.join(path);
                let line = lines.get_or_init(|| document.lines()).of(&path);
                ManifestFault { document: document.number, line, object, problem: Problem::new(path, reason) }
            };
            let Some(&kind) = self.accepted.iter().find(|kind| kind.name() == manifest.kind) else {
                let kinds: Vec<&str> = self.accepted.iter().map(|kind| kind.name()).collect();
                let right = match kinds.len() {
                    few if few <= SHOWN_KINDS => format!("one of {}", kinds.join(", ")),
                    _ => {
                        "a kind that the agent reads, such as Pod, Service or CiliumNetworkPolicy".to_owned()
                    }
                };
                let (open, reason) = match (manifest.kind, nearest(manifest.kind, kinds.iter().copied())) {
                    ("", _) => (true, format!("is missing; give {right}")),
                    ("List", _) => (true, "List has no list of items; give it one".to_owned()),
                    (other, Some(near)) => (true, format!("{other} is no kind; did you mean {near}?")),
                    (other, None) => (false, format!("{other} is not read from here; give {right}")),
                };
                contents.open |= open;
                contents.faults.push(fault(String::new(), "kind", &reason));
                continue;
            };
            let named = key_of(kind, manifest.value);
            match object(kind, manifest.value, &self.node) {
                Ok((key, json)) => {
                    let mut origin = format!("{file}, document {}", document.number);
                    if let Some(at) = manifest.path.0 {
                        origin.push_str(&format!(", items[{at}]"));
                    }
                    let (number, line) = (document.number, document.line);
                    let taken = Taken::new(kind, manifest.value, &origin, number, line);
                    contents.taken.insert(key.clone(), taken);
                    let object = Raw { json, origin: origin.into() };
                    let claim = Claim { object, document: number, line, kept: false };
                    if let Some(before) = contents.claims.insert(key.clone(), claim) {
                        let reason = format!(
                            "is in document {} too, of which this one counts; remove one",
                            before.document
                        );
                        contents.faults.push(fault(key.to_string(), "", &reason));
                    }
                }
                Err(refusal) => {
                    let object = named.as_ref().map_or_else(|| kind.name().to_owned(), ObjectKey::to_string);
                    match named {
                        Some(key) if self.names(file, &key) => _ = contents.refused.insert(key),
                        _ => contents.open = true,
                    }
                    for problem in refusal.0 {
                        contents.faults.push(fault(object.clone(), &problem.path, &problem.reason));
                    }
                }
            }
        }
    }

    /// Whether a file claims an object.
    fn names(&self, file: &str, key: &ObjectKey) -> bool {
        self.files.get(file).is_some_and(|file| file.objects.contains(key))
    }
}

/// The parsed content of a file.
#[derive(Default)]
struct Contents {
    documents: usize,
    claims: BTreeMap<ObjectKey, Claim>,
    taken: BTreeMap<ObjectKey, Taken>,
    faults: Vec<ManifestFault>,
    /// Objects with a refused manifest.
    refused: BTreeSet<ObjectKey>,
    /// Whether a fault may concern any object, since the object of a refused manifest is unknown.
    open: bool,
}
