//! Responses of an API server in chunks of any size: the incremental parser must agree with one that reads the whole.

use k8s_client::scan::{Piece, Shape, Splitter, find};
use serde_json::Value;

fn pieces(shape: Shape, body: &[u8], chunk: usize) -> (Vec<Piece>, bool) {
    let (mut splitter, mut pieces) = (Splitter::new(shape), Vec::new());
    for chunk in body.chunks(chunk) {
        splitter.push(chunk);
        loop {
            match splitter.piece() {
                Ok(Some(piece)) => pieces.push(piece),
                Ok(None) => break,
                Err(_) => return (pieces, false),
            }
        }
    }
    let complete = splitter.is_between();
    (pieces, complete)
}

/// The first byte selects the kind of response and the size of the chunks.
pub(crate) fn run(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    let shape = if first & 1 == 0 { Shape::Events } else { Shape::List };
    let whole = pieces(shape, body, body.len().max(1));
    assert_eq!(pieces(shape, body, usize::from(first >> 1) + 1), whole);
    let Ok(Value::Object(read)) = serde_json::from_slice::<Value>(body) else { return };
    // Parsers differ for duplicate names.
    for (name, value) in &read {
        let quoted = serde_json::to_string(name).unwrap_or_default();
        if String::from_utf8_lossy(body).matches(&quoted).count() == 1 && !quoted.contains('\\') {
            let found = find(body, name).map(|found| serde_json::from_slice::<Value>(found).ok());
            assert_eq!(found, Some(Some(value.clone())));
        }
    }
    let events = whole.0.iter().filter(|piece| matches!(piece, Piece::Event { .. })).count();
    assert!(events <= 1, "one object is one event");
}
