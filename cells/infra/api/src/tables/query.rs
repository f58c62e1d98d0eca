//! `GET /statedb/query`: the rows of an index with a key, or from a key upwards.

use bytes::Bytes;
use futures::stream;
use serde::Deserialize;
use statedb::{Db, Error};

use super::{base64, line, no_table, refusal};
use crate::response::Response;

/// Maximum number of rows in one batch.
const BATCH: usize = 64;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Question {
    /// The bytes of the key as Cilium encodes it, in base64.
    key: String,
    table: String,
    /// Empty for the primary index.
    index: String,
    /// Whether to return rows with greater keys as well.
    lowerbound: bool,
}

/// Answers with a line for each row.
pub(super) fn answer(db: Option<&Db>, body: &[u8]) -> Response {
    let question: Question = match serde_json::from_slice(body) {
        Ok(question) => question,
        Err(error) => return refusal(400, error.to_string()),
    };
    let key = match base64::decode(&question.key) {
        Ok(key) => key,
        Err(place) => return refusal(400, format!("illegal base64 data at input byte {place}")),
    };
    let Some((db, table)) = db.and_then(|db| Some((db, db.table_by_name(&question.table).ok()?))) else {
        return no_table(&question.table);
    };
    let rows = match table.find_raw(&db.snapshot(), question.lowerbound, &question.index, &key) {
        Ok(rows) => rows,
        Err(Error::UnknownIndex { index, .. }) => return refusal(400, format!("Index {index:?} not found")),
        Err(error) => return refusal(400, error.to_string()),
    };
    if rows.is_empty() {
        return Response::empty(200);
    }
    if rows.len() <= BATCH {
        return Response::text(200, rows.iter().map(line).collect::<String>());
    }
    let mut rows = rows.into_iter();
    let portions = std::iter::from_fn(move || {
        let text: String = rows.by_ref().take(BATCH).map(|row| line(&row)).collect();
        (!text.is_empty()).then(|| Bytes::from(text))
    });
    Response::stream(200, "text/plain; charset=utf-8", stream::iter(portions))
}
