//! `GET /identity` and `GET /identity/{id}`.

use api::{Request, Response};
use api_models as models;
use datapath_abi::identity::UNKNOWN;
use labels::{Label, LabelArray, Labels};
use statedb::Table;

use crate::identity::Identity;

/// Returns all identities, or the one that has exactly the labels of the body.
pub(crate) fn list(table: &Table<Identity>, request: &Request) -> Response {
    let snapshot = table.snapshot();
    if matches!(request.body.trim_ascii(), b"" | b"null") {
        return Response::json(200, &table.all(&snapshot).map(|row| model(row)).collect::<Vec<_>>());
    }
    let texts: models::Labels = match request.json() {
        Ok(labels) => labels,
        Err(answer) => return answer,
    };
    let labels = LabelArray::from(&Labels::parse(texts.iter().map(String::as_str)));
    match table.list(&snapshot, Identity::by_labels(&labels)).next() {
        Some(row) => Response::json(200, &[model(row)]),
        None => Response::empty(404),
    }
}

/// Returns the identity with the id. 0 is that of rows of policy maps for all peers: no row of the table, but an answer, as
/// `cilium-dbg bpf policy get` asks for the labels of each row.
pub(crate) fn by_id(table: &Table<Identity>, request: &Request) -> Response {
    let Ok(id) = request.param("id").parse::<u32>() else {
        return Response::empty(400);
    };
    match table.get(&table.snapshot(), Identity::by_id(id)) {
        Some(row) => Response::json(200, &model(row)),
        None if id == UNKNOWN => {
            let labels = vec![Label::reserved("unknown").to_string()];
            Response::json(200, &models::Identity { labels, ..models::Identity::default() })
        }
        None => Response::empty(404),
    }
}

/// Returns the model of a row.
fn model(row: &Identity) -> models::Identity {
    models::Identity { id: row.id.into(), labels: row.labels.texts(), ..models::Identity::default() }
}
