//! Identities without an allocator.

use std::collections::BTreeSet;

use api_models::{Identity, Labels};

use crate::request::Request;
use crate::response::Response;

/// The identities that exist before any is allocated.
const RESERVED: [(i64, &[&str]); 10] = [
    (1, &["reserved:host"]),
    (2, &["reserved:world"]),
    (3, &["reserved:unmanaged"]),
    (4, &["reserved:health"]),
    (5, &["reserved:init"]),
    (6, &["reserved:remote-node"]),
    (7, &["reserved:kube-apiserver", "reserved:remote-node"]),
    (8, &["reserved:ingress"]),
    (9, &["reserved:world-ipv4"]),
    (10, &["reserved:world-ipv6"]),
];

/// All, or the one that has exactly the labels of the body.
pub(super) fn list(request: &Request) -> Response {
    let all = RESERVED.map(identity);
    if matches!(request.body.trim_ascii(), b"" | b"null") {
        return Response::json(200, &all);
    }
    let labels = match request.json::<Labels>() {
        Ok(labels) => labels,
        Err(answer) => return answer,
    };
    // A label without a value may end with the sign before it.
    let wanted: BTreeSet<&str> = labels.iter().map(|label| label.trim_end_matches('=')).collect();
    match all.iter().find(|identity| identity.labels.iter().map(String::as_str).eq(wanted.iter().copied())) {
        Some(found) => Response::json(200, &[found]),
        None => Response::empty(404),
    }
}

pub(super) fn by_id(id: &str) -> Response {
    let Ok(id) = id.parse::<u32>() else {
        return Response::empty(400);
    };
    match RESERVED.into_iter().find(|(known, _)| *known == i64::from(id)) {
        Some(reserved) => Response::json(200, &identity(reserved)),
        None => Response::empty(404),
    }
}

fn identity((id, labels): (i64, &[&str])) -> Identity {
    let labels = labels.iter().map(|&label| label.to_owned()).collect();
    Identity { id, labels, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::operation::Operation;

    async fn text(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        (status, String::from_utf8(response.body().await.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn reserved_identities_are_found_by_number_and_by_labels() {
        let host = "{\"id\":1,\"labels\":[\"reserved:host\"]}";
        assert_eq!(text(by_id("1")).await, (200, format!("{host}\n")));
        assert_eq!(text(by_id("256")).await, (404, String::new()));
        assert_eq!(text(by_id("notanumber")).await, (400, String::new()));
        let asked = |body: &'static str| {
            let mut request = Request::new(Operation::GetIdentity, &[]);
            request.body = Bytes::from_static(body.as_bytes());
            text(list(&request))
        };
        for all in ["", "null"] {
            let (status, identities) = asked(all).await;
            assert_eq!(status, 200);
            assert_eq!(serde_json::from_str::<Vec<Identity>>(&identities).unwrap().len(), 10);
        }
        assert_eq!(asked("[\"reserved:host=\"]").await, (200, format!("[{host}]\n")));
        let (_, server) = asked("[\"reserved:remote-node\",\"reserved:kube-apiserver\"]").await;
        assert!(server.contains("\"id\":7,"), "{server}");
        assert_eq!(asked("[\"reserved:kube-apiserver\"]").await, (404, String::new()));
        assert_eq!(asked("[\"k8s:app=x\"]").await, (404, String::new()));
        assert_eq!(asked("[]").await, (404, String::new()));
        assert_eq!(asked("{").await.0, 400);
    }
}
