//! Tables over HTTP, outside of the operations, for `cilium-dbg` and clients that follow a table.

mod base64;
mod changes;
mod dump;
mod query;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request};
use serde::Serialize;
use statedb::{AnyObj, Db};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::layers;
use crate::request::decode;
use crate::response::Response;

/// Prefix of the paths of tables.
const BASE: &str = "/statedb/";

/// The tables of an agent, if it has any.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) db: Option<Arc<Db>>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Tables {
    /// Whether the path belongs to tables.
    pub(crate) fn has(path: &str) -> bool {
        path.starts_with(BASE)
    }

    /// Answers a request for tables.
    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Response
    where
        B: hyper::body::Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static>,
    {
        let (head, body) = request.into_parts();
        let below = head.uri.path().strip_prefix(BASE).filter(|_| head.method == Method::GET);
        let below = below.unwrap_or_default();
        let db = self.db.as_deref();
        if below == "query" {
            return match layers::read(body).await {
                Ok(body) => query::answer(db, &body),
                Err(error) => refusal(400, error.to_string()),
            };
        }
        match below.split_once('/') {
            None if below == "dump" => dump::answer(db, None),
            Some(("dump", table)) if !table.is_empty() && !table.contains('/') => {
                dump::answer(db, Some(&decode(table)))
            }
            Some(("changes", table)) if !table.is_empty() && !table.contains('/') => {
                changes::answer(self, &decode(table))
            }
            _ => Response::text(404, "404 page not found\n"),
        }
    }
}

/// Returns an error in the form of a row.
fn refusal(status: u16, err: String) -> Response {
    #[derive(Serialize)]
    struct Refusal {
        rev: u64,
        obj: (),
        err: String,
    }
    let line = serde_json::to_string(&Refusal { rev: 0, obj: (), err }).unwrap_or_default();
    Response::text(status, line + "\n")
}

fn no_table(name: &str) -> Response {
    refusal(404, format!("Table {name:?} not found"))
}

/// Encodes a row as a line.
fn line(object: &AnyObj) -> String {
    format!("{{\"rev\":{},\"obj\":{}}}\n", object.revision(), object.json_text())
}
