//! What the files of a folder say, without files: contents in, changes of objects out.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::document::{Document, documents_of_bytes};
use crate::field::nearest;
use crate::folder::last_good::{LastGood, Taken};
use crate::object::{Kind, Object, ObjectKey};
use crate::problem::Problem;
use crate::source_file::{ManifestFault, SourceFile};
use crate::writer::Change;

/// Faults of a file that are told; the rest is counted.
const MAX_FAULTS: usize = 50;

/// The objects of all files of a folder.
///
/// - Of several manifests of one object the last one counts, by file name, then by place in the file: that is what
///   `kubectl apply -f FOLDER` ends with. The others are reported.
/// - What a refused manifest named stays as it was. As long as a file has a fault that leaves open which object is
///   meant, nothing of that file goes that no other manifest in it names.
/// - A file that is leaving gives way to all others.
pub(crate) struct Manifests {
    source: Arc<str>,
    accepted: &'static [Kind],
    files: BTreeMap<Arc<str>, File>,
    /// By object, by file.
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
    object: Arc<Object>,
    document: usize,
    line: usize,
    /// Whether this is what an earlier version of the file said.
    kept: bool,
}

/// What came of a change of files.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) changes: Vec<Change>,
    /// New rows of files, and the names of files without one.
    pub(crate) rows: Vec<SourceFile>,
    pub(crate) gone: Vec<Arc<str>>,
    /// What files say that is right, for the next run; none of files that are gone.
    pub(crate) good: Vec<(Arc<str>, Option<Good>)>,
}

/// What a file says that is right: manifests that were read, and objects that are as an earlier version said.
#[derive(Debug, Default)]
pub(crate) struct Good {
    pub(crate) taken: Vec<Taken>,
    pub(crate) kept: BTreeSet<ObjectKey>,
}

impl Manifests {
    pub(crate) fn new(source: &str, accepted: &'static [Kind]) -> Manifests {
        Manifests {
            source: source.into(),
            accepted,
            files: BTreeMap::new(),
            claims: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// The kinds that are taken.
    pub(crate) fn accepted(&self) -> &'static [Kind] {
        self.accepted
    }

    /// The names of the files that are there.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<str>> {
        self.files.keys()
    }

    /// Whether a file is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// Objects there are of a kind.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.counts.get(&kind).copied().unwrap_or_default()
    }

    /// A file has this content, or cannot be read.
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

    /// What a file said in the run before, until it is read. A file that was read already is left alone.
    pub(crate) fn restore(&mut self, name: &str, before: &LastGood) -> Outcome {
        if self.has(name) {
            return Outcome::default();
        }
        let name: Arc<str> = name.into();
        let mut file = File::default();
        for taken in &before.manifests {
            let Some(object) = taken.object(self.accepted) else { continue };
            let (key, Taken { document, line, .. }) = (object.key(), taken);
            let by_file = self.claims.entry(key.clone()).or_default();
            if by_file.is_empty() {
                *self.counts.entry(key.kind).or_default() += 1;
            }
            let claim = Claim { object: Arc::new(object), document: *document, line: *line, kept: true };
            by_file.insert(name.clone(), claim);
            file.objects.insert(key);
        }
        let touched = file.objects.clone();
        self.files.insert(name.clone(), file);
        self.outcome(touched, name)
    }

    /// A file is about to be gone: others count before it.
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

    /// A file is gone.
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

    /// The file that an object is taken from.
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
                Some((_, claim)) => Change::Set(claim.object.clone()),
                None => Change::Delete(key),
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
            let kinds: Vec<&str> = self.accepted.iter().map(|kind| kind.name()).collect();
            let Some(&kind) = self.accepted.iter().find(|kind| kind.name() == manifest.kind) else {
                let (open, reason) = match (manifest.kind, nearest(manifest.kind, &kinds)) {
                    ("", _) => (true, format!("is missing; give one of {}", kinds.join(", "))),
                    ("List", _) => (true, "List has no list of items; give it one".to_owned()),
                    (other, Some(near)) => (true, format!("{other} is no kind; did you mean {near}?")),
                    (other, None) => {
                        (false, format!("{other} is not read from here; give one of {}", kinds.join(", ")))
                    }
                };
                contents.open |= open;
                contents.faults.push(fault(String::new(), "kind", &reason));
                continue;
            };
            let named = kind.key_of(manifest.value);
            match kind.decode(&manifest) {
                Ok(object) => {
                    let key = object.key();
                    let mut origin = format!("{file}, document {}", document.number);
                    if let Some(at) = manifest.path.0 {
                        origin.push_str(&format!(", items[{at}]"));
                    }
                    let (number, line) = (document.number, document.line);
                    let taken = Taken::new(kind, manifest.value, &origin, number, line);
                    contents.taken.insert(key.clone(), taken);
                    let object = Arc::new(object.from_origin(origin));
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

    /// Whether a file names an object.
    fn names(&self, file: &str, key: &ObjectKey) -> bool {
        self.files.get(file).is_some_and(|file| file.objects.contains(key))
    }
}

/// What a file says.
#[derive(Default)]
struct Contents {
    documents: usize,
    claims: BTreeMap<ObjectKey, Claim>,
    taken: BTreeMap<ObjectKey, Taken>,
    faults: Vec<ManifestFault>,
    /// Objects whose manifest is refused.
    refused: BTreeSet<ObjectKey>,
    /// Whether something is refused of which it is not known what it was before.
    open: bool,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILES: [&str; 3] = ["a.yaml", "b.yaml", "c.yaml"];
    const PODS: [&str; 3] = ["p", "q", "r"];

    fn pod(name: &str, app: &str) -> String {
        format!("kind: Pod\nmetadata: {{name: {name}, labels: {{app: {app}}}}}\n---\n")
    }

    fn apply(table: &mut BTreeMap<ObjectKey, Arc<Object>>, outcome: Outcome) -> Vec<SourceFile> {
        for change in outcome.changes {
            match change {
                Change::Set(object) => _ = table.insert(object.key(), object),
                Change::Delete(key) => _ = table.remove(&key),
            }
        }
        outcome.rows
    }

    /// `name=app@file` of all.
    fn shown(table: &BTreeMap<ObjectKey, Arc<Object>>) -> String {
        let show = |object: &Arc<Object>| match &**object {
            Object::Pod(pod) => {
                format!("{}={}@{}", pod.name, pod.labels["app"], pod.origin.split(',').next().unwrap())
            }
            other => other.key().to_string(),
        };
        table.values().map(show).collect::<Vec<_>>().join(" ")
    }

    fn set(manifests: &mut Manifests, file: &str, text: &str) -> Outcome {
        manifests.set(file, Ok(text.as_bytes()))
    }

    #[test]
    fn the_last_file_wins_and_the_others_are_told() {
        let (mut m, mut table) = (Manifests::new("s", &Kind::ALL), BTreeMap::new());
        apply(&mut table, set(&mut m, "b.yaml", &pod("p", "b")));
        let rows = apply(&mut table, set(&mut m, "a.yaml", &pod("p", "a")));
        assert_eq!(shown(&table), "p=b@b.yaml");
        assert_eq!(
            rows[0].faults[0].to_string(),
            "document 1, line 1: Pod default/p: is also in document 1 of b.yaml, which counts; remove one of them"
        );
        assert!(rows[1].faults.is_empty());
        let rows = apply(&mut table, m.leave("b.yaml"));
        assert_eq!(shown(&table), "p=a@a.yaml");
        assert!(rows.iter().all(|row| row.faults.is_empty()), "{rows:?}");
        apply(&mut table, m.remove("b.yaml"));
        assert_eq!(shown(&table), "p=a@a.yaml");
        let rows = apply(&mut table, set(&mut m, "a.yaml", &(pod("p", "a") + &pod("p", "z"))));
        assert_eq!(shown(&table), "p=z@a.yaml");
        assert!(rows[0].faults[0].problem.reason.contains("is in document 1 too, of which this one counts"));
    }

    #[test]
    fn what_the_run_before_took_stays_until_the_file_is_right() {
        let mut m = Manifests::new("s", &Kind::ALL);
        let outcome = set(&mut m, "a.yaml", &(pod("p", "v1") + &pod("q", "v1")));
        let Some((_, Some(good))) = outcome.good.into_iter().next() else { panic!() };
        assert!(good.kept.is_empty());
        let before = LastGood { manifests: good.taken };

        for broken in ["kind: [\n", "kind: Pod\nmetadata: {name: p, labels: []}\n"] {
            let (mut m, mut table) = (Manifests::new("s", &Kind::ALL), BTreeMap::new());
            apply(&mut table, m.restore("a.yaml", &before));
            assert_eq!(shown(&table), "p=v1@a.yaml q=v1@a.yaml");
            let text = pod("q", "v2") + broken;
            let outcome = set(&mut m, "a.yaml", &text);
            assert_eq!(outcome.good[0].1.as_ref().unwrap().kept.len(), 1, "it is right of one of them");
            let rows = apply(&mut table, outcome);
            assert_eq!((shown(&table).as_str(), rows[0].kept), ("p=v1@a.yaml q=v2@a.yaml", 1), "{broken}");
            assert!(m.restore("a.yaml", &before).is_empty(), "what was read counts");
            apply(&mut table, set(&mut m, "a.yaml", &pod("q", "v3")));
            assert_eq!((shown(&table).as_str(), m.count(Kind::Pod)), ("q=v3@a.yaml", 1));
        }
        let mut m = Manifests::new("s", &Kind::POLICIES);
        assert!(m.restore("a.yaml", &before).changes.is_empty(), "kinds that are not read any more");
    }

    #[test]
    fn what_a_fault_may_hide_stays() {
        let (mut m, mut table) = (Manifests::new("s", &Kind::ALL), BTreeMap::new());
        apply(&mut table, set(&mut m, "a.yaml", &(pod("p", "v1") + &pod("q", "v1"))));
        // The fault names its object: the other one may go.
        let rows = apply(&mut table, set(&mut m, "a.yaml", &pod("p", "{}")));
        assert_eq!((shown(&table).as_str(), rows[0].kept), ("p=v1@a.yaml", 1));
        apply(&mut table, set(&mut m, "a.yaml", &(pod("p", "v2") + &pod("q", "v2"))));
        // It does not: nothing goes, what is right applies.
        for broken in
            ["kind: [\n", "kind: Pod\nmetadata: {name: Q}\n", "metadata: {name: q}\n", "kind: pdo\n"]
        {
            let rows = apply(&mut table, set(&mut m, "a.yaml", &(pod("p", "v3") + broken)));
            assert_eq!((shown(&table).as_str(), rows[0].kept), ("p=v3@a.yaml q=v2@a.yaml", 1), "{broken}");
        }
        let rows = apply(&mut table, m.set("a.yaml", Err("cannot be read".to_owned())));
        assert_eq!((rows[0].objects, rows[0].kept, rows[0].faults.len()), (2, 2, 1));
        apply(&mut table, set(&mut m, "a.yaml", ""));
        assert_eq!(shown(&table), "");
    }

    /// Something that happens to a file: new pods in it, each with a version; or it goes.
    type Event = (usize, Option<Vec<(usize, u8)>>);

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let pods = prop::collection::vec((0..PODS.len(), 0..4u8), 0..4);
        prop::collection::vec((0..FILES.len(), prop::option::weighted(0.8, pods)), 1..30)
    }

    proptest! {
        /// Without faults the table is what the files say, whatever came before; the rows count right.
        #[test]
        fn the_table_is_what_the_files_say(events in events()) {
            let (mut m, mut table) = (Manifests::new("s", &Kind::ALL), BTreeMap::new());
            let mut files: BTreeMap<usize, Vec<(usize, u8)>> = BTreeMap::new();
            for (file, pods) in events {
                let outcome = match &pods {
                    Some(pods) => {
                        let texts = pods.iter().map(|&(p, app)| pod(PODS[p], &format!("v{app}")));
                        set(&mut m, FILES[file], &texts.collect::<String>())
                    }
                    None => m.remove(FILES[file]),
                };
                for row in apply(&mut table, outcome) {
                    prop_assert_eq!(row.kept, 0);
                }
                match pods {
                    Some(pods) => _ = files.insert(file, pods),
                    None => _ = files.remove(&file),
                }
                let mut expected = BTreeMap::new();
                for (file, pods) in &files {
                    for (p, app) in pods {
                        expected.insert(PODS[*p], format!("{}=v{app}@{}", PODS[*p], FILES[*file]));
                    }
                }
                let expected: Vec<String> = expected.into_values().collect();
                prop_assert_eq!(shown(&table), expected.join(" "));
                prop_assert_eq!(m.count(Kind::Pod), expected.len());
            }
        }

        /// With faults: what is right applies, and no object goes whose manifest is there, right or wrong.
        #[test]
        fn no_object_goes_by_a_fault(events in events()) {
            let (mut m, mut table) = (Manifests::new("s", &Kind::ALL), BTreeMap::new());
            for (file, pods) in events {
                let Some(pods) = pods else {
                    apply(&mut table, m.remove(FILES[file]));
                    continue;
                };
                let before: BTreeSet<ObjectKey> = table.keys().cloned().collect();
                // Version 0 is a fault.
                let app = |app: u8| if app == 0 { "{}".to_owned() } else { format!("v{app}") };
                let texts: String = pods.iter().map(|&(p, version)| pod(PODS[p], &app(version))).collect();
                apply(&mut table, set(&mut m, FILES[file], &texts));
                for (p, version) in pods {
                    let key = ObjectKey { kind: Kind::Pod, namespace: "default".into(), name: PODS[p].into() };
                    if version != 0 || before.contains(&key) {
                        prop_assert!(table.contains_key(&key), "{} is gone", key);
                    }
                }
            }
        }
    }
}
