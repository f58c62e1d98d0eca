//! The operations `GET`, `PATCH` and `DELETE /prefilter`.

use std::sync::Arc;

use api::{Operation, Request, Response, Route};
use api_models::{Prefilter, PrefilterSpec, PrefilterStatus};
use ipnetwork::IpNetwork;

use crate::prefilter::senders::{Error, Senders};

/// The status of a request with a text that is no range.
const INVALID_CIDR: u16 = 461;

pub(super) fn routes(senders: Arc<Senders>) -> Vec<Route> {
    let (listed, patched) = (senders.clone(), senders.clone());
    let get = Route::new(Operation::GetPrefilter, move |_: Request| {
        let senders = listed.clone();
        async move { hive::blocking(move || answer(&senders)).await }
    });
    let patch = Route::new(Operation::PatchPrefilter, move |request: Request| {
        let senders = patched.clone();
        async move { hive::blocking(move || change(&senders, &request, Senders::insert)).await }
    });
    let delete = Route::new(Operation::DeletePrefilter, move |request: Request| {
        let senders = senders.clone();
        async move { hive::blocking(move || change(&senders, &request, Senders::remove)).await }
    });
    vec![get, patch, delete]
}

fn change(
    senders: &Senders,
    request: &Request,
    apply: fn(&Senders, i64, &[IpNetwork]) -> Result<(), Error>,
) -> Response {
    let spec: PrefilterSpec = match request.json() {
        Ok(spec) => spec,
        Err(answer) => return answer,
    };
    let mut ranges = Vec::new();
    for text in spec.deny.iter() {
        match text.parse::<IpNetwork>() {
            Ok(range) if text.contains('/') => ranges.push(range),
            _ => {
                let message =
                    format!("invalid CIDR string {text}: give an address and a length, such as 192.0.2.0/24");
                return Response::error(INVALID_CIDR, message);
            }
        }
    }
    match apply(senders, spec.revision, &ranges) {
        Ok(()) => answer(senders),
        Err(error) => Response::error(500, error.to_string()),
    }
}

fn answer(senders: &Senders) -> Response {
    match senders.list() {
        Ok((revision, ranges)) => {
            let deny: Vec<String> = ranges.iter().map(IpNetwork::to_string).collect();
            let spec = PrefilterSpec { deny: deny.into(), revision };
            let status = Some(PrefilterStatus { realized: Some(spec.clone()) });
            Response::json(200, &Prefilter { spec: Some(spec), status })
        }
        Err(error) => Response::error(500, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use maps::FamilyConfig;
    use test_kit::{Sandbox, require_root};

    use super::*;

    #[test]
    fn requests_change_the_list_and_name_what_is_wrong() {
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        let senders =
            Senders::new(crate::prefilter::senders::tests::maps(&sandbox), &FamilyConfig::default());
        let answer = |operation, body: &str, apply| {
            let mut request = Request::new(operation, &[]);
            request.body = body.to_owned().into();
            change(&senders, &request, apply)
        };
        let patch = |body: &str| answer(Operation::PatchPrefilter, body, Senders::insert);
        let done = patch(r#"{"revision": 1, "deny": ["192.0.2.7/24", "2001:db8::1/128"]}"#);
        let spec = r#"{"deny":["192.0.2.0/24","2001:db8::1/128"],"revision":2}"#;
        let expected = format!("{{\"spec\":{spec},\"status\":{{\"realized\":{spec}}}}}\n");
        assert_eq!(done.status(), 200);
        let body = futures::executor::block_on(done.body());
        assert_eq!(String::from_utf8(body.to_vec()).unwrap(), expected);
        for (body, status) in [
            (r#"{"revision": 2, "deny": ["192.0.2.0"]}"#, INVALID_CIDR),
            (r#"{"revision": 2, "deny": ["192.0.2.0/33"]}"#, INVALID_CIDR),
            (r#"{"revision": 1, "deny": ["10.0.0.0/8"]}"#, 500),
        ] {
            assert_eq!(patch(body).status(), status, "{body}");
        }
        let body = r#"{"revision": 2, "deny": ["192.0.2.0/24"]}"#;
        assert_eq!(answer(Operation::DeletePrefilter, body, Senders::remove).status(), 200);
        assert_eq!(senders.list().unwrap(), (3, vec!["2001:db8::1/128".parse().unwrap()]));
    }
}
