//! Bodies in chunks of any size.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::scan::{EventKind, Piece, Shape, Splitter, find, text};

/// Returns all pieces of a body that is received in chunks of these sizes.
fn pieces(shape: Shape, body: &[u8], sizes: &[usize]) -> Result<Vec<Piece>, String> {
    let mut splitter = Splitter::new(shape);
    let (mut rest, mut sizes, mut pieces) = (body, sizes.iter().cycle(), Vec::new());
    while !rest.is_empty() {
        let (chunk, behind) = rest.split_at(rest.len().min(*sizes.next().unwrap_or(&usize::MAX)));
        splitter.push(chunk);
        while let Some(piece) = splitter.piece().map_err(|error| error.to_string())? {
            pieces.push(piece);
        }
        rest = behind;
    }
    match splitter.is_between() {
        true => Ok(pieces),
        false => Err("cut".to_owned()),
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[\"\\\\{}\\[\\], :]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-z\"\\\\]{0,6}", value(), 0..6)
        .prop_map(|map| Value::Object(map.into_iter().collect()))
}

/// Returns the JSON in one of the formats of servers.
fn written(value: &Value, pretty: bool) -> String {
    if pretty { serde_json::to_string_pretty(value).unwrap() } else { value.to_string() }
}

proptest! {
    #[test]
    fn events_round_trip(
        objects in prop::collection::vec((object(), any::<bool>(), any::<bool>()), 0..8),
        sizes in prop::collection::vec(1_usize..50, 1..20),
    ) {
        let mut body = String::new();
        for (object, pretty, first) in &objects {
            let object = written(object, *pretty);
            match first {
                true => body.push_str(&format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n")),
                false => body.push_str(&format!(" {{ \"object\" : {object} , \"else\":[{object}, 1 ],\"type\" :\"MODIFIED\" }}")),
            }
        }
        let pieces = pieces(Shape::Events, body.as_bytes(), &sizes).unwrap();
        prop_assert_eq!(pieces.len(), objects.len());
        for (piece, (object, ..)) in pieces.iter().zip(&objects) {
            let Piece::Event { kind: EventKind::Modified, object: read } = piece else { panic!("{piece:?}") };
            prop_assert_eq!(&serde_json::from_slice::<Value>(read).unwrap(), object);
        }
    }

    #[test]
    fn items_round_trip(
        objects in prop::collection::vec(object(), 0..8),
        pretty in any::<bool>(),
        first in any::<bool>(),
        sizes in prop::collection::vec(1_usize..50, 1..20),
    ) {
        let metadata = json!({"resourceVersion": "17", "continue": "a\"b"});
        let items = written(&json!(objects), pretty);
        let body = match first {
            true => format!("{{\"kind\":\"PodList\",\"metadata\":{metadata},\"items\":{items}}}"),
            false => format!("{{\"apiVersion\":\"v1\",\"items\":{items},\"kind\":\"PodList\",\"metadata\":{metadata}}}\n"),
        };
        let mut pieces = pieces(Shape::List, body.as_bytes(), &sizes).unwrap();
        let Some(Piece::End(end)) = pieces.pop() else { panic!("no end") };
        prop_assert_eq!(text(&end, "continue"), Some("a\"b".to_owned()));
        let read: Vec<Value> = pieces.iter().map(|piece| match piece {
            Piece::Item(item) => serde_json::from_slice(item).unwrap(),
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(read, objects);
    }

    #[test]
    fn members_are_found(object in object(), name in "[a-z\"\\\\]{0,6}", pretty in any::<bool>()) {
        let body = written(&object, pretty);
        // Names are compared without unescaping: names that are looked up need no escapes.
        if !name.contains(['"', '\\']) {
            let found = find(body.as_bytes(), &name).map(|value| serde_json::from_slice::<Value>(value).unwrap());
            prop_assert_eq!(found.as_ref(), object.get(&name));
        }
    }

    #[test]
    fn no_body_panics(body in prop::collection::vec(any::<u8>(), 0..300), sizes in prop::collection::vec(1_usize..50, 1..5)) {
        let _ = pieces(Shape::Events, &body, &sizes);
        let _ = pieces(Shape::List, &body, &sizes);
        let _ = find(&body, "metadata");
    }
}

#[test]
fn invalid_json_is_quoted() {
    let error = pieces(Shape::List, b"<html>\n<body>no", &[7]).unwrap_err();
    assert_eq!(error, "a JSON object expected, found \"<html>\"");
    let error = pieces(Shape::Events, b"{\"type\":\"ADDED\"}", &[3]).unwrap_err();
    assert_eq!(error, "an event with type and object expected, found \"\"");
    assert_eq!(
        pieces(Shape::List, b"{\"metadata\":{},\"items\":null}", &[1]).unwrap(),
        [Piece::End("{}".into())]
    );
    assert_eq!(pieces(Shape::List, b"{\"items\":[{}", &[1]).unwrap_err(), "cut");
}

#[test]
fn endless_values_are_refused() {
    let chunk = vec![b'x'; 1 << 20];
    for begin in ["{\"type\":\"ADDED\",\"object\":{\"a\":\"", "{\"", "   "] {
        let mut splitter = Splitter::new(Shape::Events);
        splitter.push(begin.as_bytes());
        let chunk = if begin.trim().is_empty() { vec![b' '; chunk.len()] } else { chunk.clone() };
        let refused = (0..70).find_map(|n| {
            splitter.push(&chunk);
            splitter.piece().err().map(|error| (n, error.to_string()))
        });
        let (megabytes, error) = refused.unwrap();
        assert!(
            megabytes > 60 && error.starts_with("the end of an object within 64 MiB"),
            "{megabytes}: {error}"
        );
    }
}
