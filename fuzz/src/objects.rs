//! Cluster objects as a server sends them: bytes to types, their errors, and both output formats.

use k8s_types::schema::{MAX_PROBLEMS, Strictness, check};
use k8s_types::{Kind, KindVisitor, Problem, Refusal, Resource, decode, documents, with_type, yaml};
use serde_json::Value;

use crate::input;

/// The name of the kind, and the object.
pub(crate) fn run(data: &[u8]) {
    let [kind, object] = input::parts::<2>(data);
    let kind = match Kind::named(input::text(kind).trim()) {
        Some(kind) => kind,
        None => Kind::ALL[kind.iter().map(|&byte| usize::from(byte)).sum::<usize>() % Kind::ALL.len()],
    };
    match kind.visit(Typed(object)) {
        Ok(value) => written(kind, &value),
        Err(refusal) => refused(&refusal),
    }
    let Ok(value) = serde_json::from_slice::<Value>(object) else { return };
    let [server, manifest] =
        [Strictness::Server, Strictness::Manifest].map(|strictness| check(kind, &value, strictness));
    assert!(server.len() <= manifest.len() && manifest.len() <= MAX_PROBLEMS + 1);
    if manifest.len() <= MAX_PROBLEMS {
        assert!(server.iter().all(|problem| manifest.contains(problem)), "{server:?} and {manifest:?}");
    }
    if server.is_empty() && kind.visit(Typed(object)).is_ok() {
        assert!(kind.normalize(&value).is_ok());
    }
}

struct Typed<'t>(&'t [u8]);

impl KindVisitor for Typed<'_> {
    type Output = Result<Value, Refusal>;

    fn visit<T: Resource>(self) -> Self::Output {
        let object = decode::<T>(self.0)?;
        assert_eq!(
            decode::<T>(&object.to_json()).as_ref(),
            Ok(&object),
            "what is written is read as the same"
        );
        Ok(with_type(&object))
    }
}

/// An object is the same in YAML.
fn written(kind: Kind, value: &Value) {
    let shown = kind.normalize(value).unwrap();
    for value in [value, &shown] {
        if depth(value) < 60 {
            let text = yaml::print(value);
            match &documents(&text)[..] {
                [Ok(document)] => assert_eq!(&document.value, value, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}

/// A refusal names a path, unless there is no object.
fn refused(refusal: &Refusal) {
    let whole = ["is no JSON: ", "duplicate field ", "expected an object", "and ", "recursion limit"];
    let placed = |problem: &Problem| {
        !problem.path.is_empty() || whole.iter().any(|reason| problem.reason.starts_with(reason))
    };
    assert!(!refusal.0.is_empty() && refusal.0.iter().all(placed), "{refusal:?}");
}
