//! From a request line to an operation and its handler, with the checks that come before a handler: path, method,
//! content type, accepted type, headers, query.

use std::collections::BTreeMap;

use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Uri};

use crate::error::{BadRequest, Error};
use crate::off;
use crate::operation::Operation;
use crate::request::{decode, parse_query};
use crate::route::Route;
use crate::rules::{self, Body};

/// Prefix of the paths of all operations.
pub(crate) const BASE: &str = "/v1";

/// All operations with their handlers.
pub(crate) struct Router {
    routes: BTreeMap<Operation, Route>,
}

/// An operation found for a request.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) operation: Operation,
    pub(crate) path_params: Vec<(&'static str, String)>,
}

impl Router {
    /// Returns the routes of all operations; those that no cell claims answer as Cilium with the feature disabled.
    pub(crate) fn new(claimed: impl IntoIterator<Item = Route>) -> Result<Self, Error> {
        let mut routes = BTreeMap::new();
        for route in claimed {
            if let Some(twice) = routes.insert(route.operation(), route) {
                return Err(Error::ClaimedTwice(twice.operation()));
            }
        }
        for &operation in Operation::ALL {
            routes.entry(operation).or_insert_with(|| off::route(operation));
        }
        Ok(Self { routes })
    }

    pub(crate) fn route(&self, operation: Operation) -> &Route {
        &self.routes[&operation]
    }
}

/// Finds the operation of a method and a path.
pub(crate) fn find_operation(method: &Method, path: &str) -> Result<Found, BadRequest> {
    let clean = clean(path);
    let below = clean.strip_prefix(BASE).filter(|rest| rest.starts_with('/'));
    let mut fitting: Vec<Found> = below
        .into_iter()
        .flat_map(|below| {
            Operation::ALL.iter().filter_map(move |&operation| {
                Some(Found { operation, path_params: fit(operation.path(), below)? })
            })
        })
        .collect();
    // A fixed path takes precedence over one with a variable part: /identity/endpoints is not an identity's id.
    if fitting.iter().any(|found| found.path_params.is_empty()) {
        fitting.retain(|found| found.path_params.is_empty());
    }
    let allowed: Vec<Method> = fitting.iter().map(|found| found.operation.method()).collect();
    match fitting.into_iter().find(|found| found.operation.method() == method) {
        Some(found) => Ok(found),
        None if allowed.is_empty() => Err(BadRequest::UnknownPath { path: path.to_owned() }),
        None => Err(BadRequest::WrongMethod { method: method.clone(), allowed }),
    }
}

/// Normalizes a path: removes empty and `.` segments and resolves `..`.
fn clean(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    segments.iter().fold(String::new(), |path, segment| path + "/" + segment)
}

/// Returns the variable parts of `path`, decoded, if it matches `template`.
fn fit(template: &'static str, path: &str) -> Option<Vec<(&'static str, String)>> {
    let mut wanted = template.split('/');
    let mut given = path.split('/');
    let mut params = Vec::new();
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(params),
            (Some(wanted), Some(given)) => {
                match wanted.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                    Some(name) => params.push((name, decode(given))),
                    None if wanted == given => {}
                    None => return None,
                }
            }
            _ => return None,
        }
    }
}

/// Validates the head before the body is read; returns the query.
pub(crate) fn check_head(
    operation: Operation,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Vec<(String, String)>, BadRequest> {
    if has_body(headers) {
        check_content_type(headers)?;
    }
    check_accept(headers)?;
    let query = parse_query(uri.query().unwrap_or(""));
    for param in operation.params() {
        rules::check(param, &query, headers)?;
    }
    Ok(query)
}

/// Checks that a required body is not empty.
pub(crate) fn check_body(operation: Operation, body: &[u8]) -> Result<(), BadRequest> {
    match operation.body() {
        Body::Required(name) if body.is_empty() => Err(BadRequest::Required { name, place: "body" }),
        _ => Ok(()),
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
        || headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
}

fn check_content_type(headers: &HeaderMap) -> Result<(), BadRequest> {
    let full = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media_type = full.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    match media_type.as_str() {
        "application/json" => Ok(()),
        "" => Err(BadRequest::ContentType { found: "application/octet-stream".to_owned() }),
        _ => Err(BadRequest::ContentType { found: media_type }),
    }
}

/// Checks that one of the accepted types is JSON. A missing `Accept` accepts all types.
fn check_accept(headers: &HeaderMap) -> Result<(), BadRequest> {
    let mut accepted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|range| !range.is_empty())
        .peekable();
    if accepted.peek().is_none() || accepted.any(accepts_json) {
        return Ok(());
    }
    Err(BadRequest::NotAcceptable)
}

fn accepts_json(range: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or("");
    let refused = parts
        .filter_map(|parameter| parameter.strip_prefix("q="))
        .any(|quality| quality.parse::<f32>().is_ok_and(|quality| quality <= 0.0));
    !refused
        && ["application/json", "application/*", "*/*"]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(media_type))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::request::Request;
    use crate::response::Response;

    fn operation(method: Method, path: &str) -> Result<Found, String> {
        find_operation(&method, path).map_err(|error| format!("{} {error}", error.code()))
    }

    #[test]
    fn each_operation_is_found_by_its_method_and_path() {
        for &expected in Operation::ALL {
            let path = format!("{BASE}{}", expected.path().replace(['{', '}'], ""));
            assert_eq!(operation(expected.method(), &path).unwrap().operation, expected, "{path}");
        }
    }

    #[test]
    fn variable_parts_are_decoded_and_fixed_paths_go_first() {
        let found = operation(Method::GET, "/v1/endpoint/cni-attachment-id%3Aa:eth0/healthz").unwrap();
        assert_eq!(found.operation, Operation::GetEndpointIDHealthz);
        assert_eq!(found.path_params, [("id", "cni-attachment-id:a:eth0".to_owned())]);
        let found = operation(Method::GET, "/v1/identity/endpoints").unwrap();
        assert_eq!(found.operation, Operation::GetIdentityEndpoints);
        let found = operation(Method::GET, "/v1/endpoint/cep-name%3Adefault%2Fp1").unwrap();
        assert_eq!(found.path_params[0].1, "cep-name:default/p1");
        assert_eq!(operation(Method::GET, "/v1//healthz/").unwrap().operation, Operation::GetHealthz);
        assert_eq!(operation(Method::GET, "/v1/ip/../healthz").unwrap().operation, Operation::GetHealthz);
    }

    #[test]
    fn unknown_paths_and_methods_are_refused_with_ciliums_texts() {
        let text = |method, path| operation(method, path).unwrap_err();
        assert_eq!(text(Method::GET, "/v1/nope"), "404 path /v1/nope was not found");
        assert_eq!(text(Method::GET, "/healthz"), "404 path /healthz was not found");
        assert_eq!(text(Method::GET, "/v1healthz"), "404 path /v1healthz was not found");
        assert_eq!(text(Method::GET, "/"), "404 path / was not found");
        assert_eq!(
            text(Method::GET, "/v1/endpoint/cep-name:default/none"),
            "404 path /v1/endpoint/cep-name:default/none was not found"
        );
        assert_eq!(text(Method::PUT, "/v1/healthz"), "405 method PUT is not allowed, but [GET] are");
        assert_eq!(text(Method::HEAD, "/v1/healthz"), "405 method HEAD is not allowed, but [GET] are");
        assert_eq!(
            text(Method::POST, "/v1/endpoint/1"),
            "405 method POST is not allowed, but [GET,PUT,PATCH,DELETE] are"
        );
    }

    fn head(operation: Operation, query: &str, headers: &[(&'static str, &'static str)]) -> String {
        let uri: Uri = format!("/v1/x?{query}").parse().unwrap();
        let mut map = HeaderMap::new();
        for &(name, value) in headers {
            map.append(name, HeaderValue::from_static(value));
        }
        match check_head(operation, &uri, &map) {
            Ok(_) => "ok".to_owned(),
            Err(error) => format!("{} {} {error}", error.status().as_u16(), error.code()),
        }
    }

    #[test]
    fn heads_are_checked_with_ciliums_texts() {
        use Operation::*;
        let body = ("content-length", "2");
        assert_eq!(
            head(PutEndpointID, "", &[body, ("content-type", "Application/JSON; charset=utf-8")]),
            "ok"
        );
        assert_eq!(
            head(PutEndpointID, "", &[body, ("content-type", "text/plain")]),
            "415 415 unsupported media type \"text/plain\", only [application/json] are allowed"
        );
        assert_eq!(
            head(PutEndpointID, "", &[body]),
            "415 415 unsupported media type \"application/octet-stream\", only [application/json] are allowed"
        );
        assert_eq!(head(GetConfig, "", &[("content-length", "0")]), "ok");
        assert_eq!(head(GetConfig, "", &[("accept", "text/html, application/*;q=0.8")]), "ok");
        assert_eq!(
            head(GetConfig, "", &[("accept", "text/html, application/json;q=0")]),
            "406 406 unsupported media type requested, only [application/json] are available"
        );
        assert_eq!(head(GetHealthz, "", &[("brief", "true")]), "ok");
        assert_eq!(
            head(GetHealthz, "", &[("brief", "maybe")]),
            "422 601 brief in header must be of type bool: \"maybe\""
        );
        assert_eq!(
            head(GetClusterNodes, "", &[("client-id", "x")]),
            "422 601 client-id in header must be of type int64: \"x\""
        );
        assert_eq!(head(PostIpam, "family=ipv4", &[]), "ok");
        assert_eq!(head(PostIpam, "family=", &[]), "ok");
        assert_eq!(head(PostIpam, "family=ipx", &[]), "422 606 family in query should be one of [ipv4 ipv6]");
        assert_eq!(head(GetBgpRoutes, "", &[]), "422 602 afi in query is required");
        assert_eq!(
            head(GetBgpRoutes, "afi=ipv4&safi=unicast&table_type=rib", &[]),
            "422 606 table_type in query should be one of [loc-rib adj-rib-in adj-rib-out]"
        );
    }

    #[test]
    fn missing_required_bodies_are_named() {
        let text = |operation| check_body(operation, b"").unwrap_err().to_string();
        assert_eq!(text(Operation::PatchConfig), "configuration in body is required");
        assert_eq!(text(Operation::PutEndpointID), "endpoint in body is required");
        assert_eq!(check_body(Operation::GetEndpoint, b""), Ok(()));
        assert_eq!(check_body(Operation::PatchConfig, b"{}"), Ok(()));
    }

    #[test]
    fn an_operation_is_claimed_once() {
        let route = || Route::new(Operation::GetIP, |_: Request| async { Response::empty(200) });
        assert!(Router::new([route()]).is_ok());
        let twice = Router::new([route(), route()]).err().unwrap();
        assert_eq!(twice.to_string(), "operation GetIP is claimed twice");
    }
}
