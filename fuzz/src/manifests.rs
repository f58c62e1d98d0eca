//! Manifests of the cluster's folder: documents, then objects of every kind.

use k8s_tables::core::{EndpointSlice, Namespace, Pod, Service};
use k8s_tables::{PolicyKind, PolicyObject, Refusal, documents_of_bytes, manifest};
use serde_json::Value;

/// A file.
pub(crate) fn run(data: &[u8]) {
    let lines = data.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let mut made = 0;
    for document in documents_of_bytes(data) {
        match document {
            Err(broken) => {
                assert!((1..=lines).contains(&broken.line), "line {} of {lines}: {broken}", broken.line);
            }
            Ok(document) => {
                assert!((1..=lines).contains(&document.line), "line {} of {lines}", document.line);
                made += values(&document.value);
                same_as_json(&document.value);
                let places = document.lines();
                for manifest in document.manifests() {
                    for path in decode(manifest.value) {
                        let line = places.of(&manifest.path.join(&path));
                        assert!((1..=lines).contains(&line), "{path}: line {line} of {lines}");
                    }
                }
            }
        }
    }
    assert!(made <= 2 * data.len() + MOST_ALIASED, "{made} values of {} bytes", data.len());
}

/// The maximum number of values beyond those that the input spells out: aliases must not expand without bounds.
const MOST_ALIASED: usize = 64 << 10;

fn values(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(values).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(values).sum::<usize>(),
        _ => 1,
    }
}

/// A document means the same in both formats: it survives a round trip through JSON.
fn same_as_json(value: &Value) {
    let objects = matches!(value, Value::Object(_));
    if !objects {
        return;
    }
    let text = serde_json::to_string(value).unwrap();
    let again: Vec<_> = documents_of_bytes(text.as_bytes());
    match &again[..] {
        [Ok(again)] => assert_eq!(&again.value, value, "{text}"),
        other => panic!("{text}: {other:?}"),
    }
}

/// Decodes a manifest as every possible kind; returns the paths of invalid fields.
fn decode(object: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    let mut note = |refused: Option<Refusal>| {
        let problems = refused.into_iter().flat_map(|refusal| {
            assert!(!refusal.0.is_empty(), "a refusal says why");
            refusal.0
        });
        paths.extend(problems.map(|problem| problem.path));
    };
    note(manifest::<Pod>(object).err());
    note(manifest::<Namespace>(object).err());
    note(manifest::<Service>(object).err());
    note(manifest::<EndpointSlice>(object).err());
    for kind in [PolicyKind::CiliumNetworkPolicy, PolicyKind::CiliumClusterwideNetworkPolicy] {
        note(PolicyObject::decode(kind, object).err());
    }
    paths
}
