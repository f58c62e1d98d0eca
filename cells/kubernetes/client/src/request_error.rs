//! Errors of requests, with their remedies.

mod connection;

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;

use crate::access::Names;

pub(crate) use connection::of_connection;

/// The error of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct RequestError {
    pub(crate) kind: ErrorKind,
    /// The message, with the remedy.
    pub(crate) text: String,
    /// The delay from the header `Retry-After`.
    pub(crate) after: Option<Duration>,
}

/// The kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The server cannot be reached, or does not respond in time.
    Unreachable,
    /// The connection ended before the request was sent, without a reason.
    Dropped,
    /// The connection was lost in the middle of a response.
    Cut,
    /// No data was received until the timeout.
    Stalled,
    /// Too few bytes were received until the timeout.
    Slow,
    /// The response is not that of an API server.
    Nonsense,
    /// 400, 422 and other permanent errors.
    Invalid,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 409: an object of this name exists already.
    Exists,
    /// 409.
    Conflict,
    /// 410: the version is too old.
    Gone,
    /// The server's versions go back.
    Rewound,
    /// 504: the server does not know the version yet.
    TooNew,
    /// 429 and 503.
    Busy,
    /// Another status code that is not success.
    Failed,
    /// The process may not write any more; the request was not sent.
    Fenced,
}

impl ErrorKind {
    /// Returns its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Dropped => "dropped",
            ErrorKind::Cut => "cut",
            ErrorKind::Stalled => "stalled",
            ErrorKind::Slow => "slow",
            ErrorKind::Nonsense => "nonsense",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unauthorized => "unauthorized",
            ErrorKind::Forbidden => "forbidden",
            ErrorKind::NotFound => "not-found",
            ErrorKind::Exists => "exists",
            ErrorKind::Conflict => "conflict",
            ErrorKind::Gone => "gone",
            ErrorKind::Rewound => "rewound",
            ErrorKind::TooNew => "too-new",
            ErrorKind::Busy => "busy",
            ErrorKind::Failed => "failed",
            ErrorKind::Fenced => "fenced",
        }
    }
}

impl RequestError {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> RequestError {
        RequestError { kind, text: text.into(), after: None }
    }

    /// Whether the server itself fails, so that all requests are affected.
    pub(crate) fn is_of_server(&self) -> bool {
        matches!(self.kind, ErrorKind::Unreachable | ErrorKind::Dropped | ErrorKind::Unauthorized)
    }

    /// Returns the error of a response with another status code than success.
    pub(crate) fn of_answer(
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        about: &About<'_>,
    ) -> RequestError {
        let failure = serde_json::from_slice::<Status>(body).ok().filter(|failure| failure.kind == "Status");
        let after =
            headers.get(http::header::RETRY_AFTER).and_then(|after| after.to_str().ok()?.trim().parse().ok());
        let Some(failure) = failure else {
            if speaks_tls(body) {
                let text = format!("{} speaks TLS, and is asked without: make it https://", about.server);
                return RequestError::new(ErrorKind::Unreachable, text);
            }
            let kind = of_code(status.as_u16(), "", false);
            let mut error =
                RequestError::new(kind, about.explain(kind, status.as_u16(), &excerpt(headers, body)));
            error.after = after.map(Duration::from_secs);
            return error;
        };
        let mut error = RequestError::of_status(&failure, status.as_u16(), about);
        error.after = error.after.or(after.map(Duration::from_secs));
        error
    }

    /// Returns the error of the status that ends a watch.
    pub(crate) fn of_event(object: &[u8], about: &About<'_>) -> RequestError {
        match serde_json::from_slice::<Status>(object) {
            Ok(failure) => RequestError::of_status(&failure, failure.code, about),
            Err(error) => RequestError::new(
                ErrorKind::Nonsense,
                format!("the watch of {} ended with an unreadable status: {error}", about.name),
            ),
        }
    }

    fn of_status(failure: &Status, code: u16, about: &About<'_>) -> RequestError {
        let too_new = failure.details.causes.iter().any(|cause| cause.reason == "ResourceVersionTooLarge");
        // The start of a server's message about a JSON patch that does not apply; the message about an invalid result
        // starts with the kind.
        let unfit =
            code == 422 && failure.message.starts_with("the server rejected our request due to an error");
        let kind = if unfit { ErrorKind::Conflict } else { of_code(code, &failure.reason, too_new) };
        let causes: Vec<&str> = failure.details.causes.iter().map(|cause| cause.message.as_str()).collect();
        let causes: Vec<&str> = causes.into_iter().filter(|cause| !failure.message.contains(cause)).collect();
        let message = [&[failure.message.as_str()], &*causes].concat().join("; ");
        let text = about.explain(kind, code, &message);
        let after =
            Some(failure.details.retry_after_seconds).filter(|after| *after > 0).map(Duration::from_secs);
        RequestError { kind, text, after }
    }
}

fn of_code(code: u16, reason: &str, too_new: bool) -> ErrorKind {
    match code {
        400 | 405 | 406 | 413 | 415 | 422 => ErrorKind::Invalid,
        401 => ErrorKind::Unauthorized,
        403 => ErrorKind::Forbidden,
        404 => ErrorKind::NotFound,
        409 if reason == "AlreadyExists" => ErrorKind::Exists,
        409 => ErrorKind::Conflict,
        410 => ErrorKind::Gone,
        429 | 503 => ErrorKind::Busy,
        504 if too_new => ErrorKind::TooNew,
        _ => ErrorKind::Failed,
    }
}

/// Whether the response to plain HTTP shows that the server expects TLS, as by Go and nginx.
fn speaks_tls(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&body[..body.len().min(1000)]);
    text.contains("HTTP request to an HTTPS server") || text.contains("HTTP request was sent to HTTPS port")
}

/// Returns the start of a response that is not a `Status`, most often the HTML page of a proxy.
fn excerpt(headers: &HeaderMap, body: &[u8]) -> String {
    let form = headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|form| form.to_str().ok())
        .unwrap_or("no content type");
    let text = String::from_utf8_lossy(&body[..body.len().min(160)]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let place = headers.get(http::header::LOCATION).and_then(|place| place.to_str().ok());
    let place = place.map(|place| format!(", leads to {place}")).unwrap_or_default();
    format!(
        "the answer is not one of an API server ({form}: {text:?}{place}); does something else answer at this address, a \
         proxy or a login page?"
    )
}

/// The subject of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// The objects, as displayed.
    pub(crate) name: &'a str,
    /// `list`, `watch`, `get`, ...
    pub(crate) verb: &'a str,
    /// The plural name in paths.
    pub(crate) plural: &'a str,
    /// The group.
    pub(crate) group: &'a str,
    /// The server.
    pub(crate) server: &'a str,
    /// The locations of the credentials.
    pub(crate) names: &'a Names,
}

impl About<'_> {
    fn explain(&self, kind: ErrorKind, code: u16, message: &str) -> String {
        let About { name, verb, plural, group, server, names } = self;
        let group = if group.is_empty() { "\"\"" } else { group };
        match kind {
            ErrorKind::Forbidden => format!(
                "may not {verb} {name}: allow verb {verb} on resource {plural} of API group {group} in the agent's \
                 ClusterRole (the server says: {message})"
            ),
            ErrorKind::Unauthorized => {
                let credentials = &names.credentials;
                let certificate = names.certificate.as_ref();
                match certificate.and_then(|one| Some((&one.name, one.fault(Timestamp::now())?))) {
                    Some((certificate, fault)) => format!(
                        "{server} does not accept the credentials of {credentials} (401). Of the client's certificate, \
                         {certificate}: {fault}"
                    ),
                    None => format!(
                        "{server} does not accept the credentials of {credentials} (401): is the token expired, or of \
                         another cluster? They are read again when they change"
                    ),
                }
            }
            ErrorKind::NotFound => {
                format!("{server} does not know {plural} of API group {group} (404: {message})")
            }
            _ => format!("{server} answers {code} to {verb} {name}: {message}"),
        }
    }
}

/// The Kubernetes object `Status`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    kind: String,
    message: String,
    reason: String,
    code: u16,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    retry_after_seconds: u64,
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_about<T>(then: impl FnOnce(&About<'_>) -> T) -> T {
        let names = Names { credentials: "/etc/kubeconfig".to_owned(), ..Names::default() };
        let server = "https://10.0.0.1:6443";
        then(&About { name: "pods", verb: "watch", plural: "pods", group: "", server, names: &names })
    }

    fn answer_with(headers: &HeaderMap, code: u16, body: &str) -> RequestError {
        let code = StatusCode::from_u16(code).unwrap();
        with_about(|about| RequestError::of_answer(code, headers, body.as_bytes(), about))
    }

    fn answer(code: u16, body: &str) -> RequestError {
        answer_with(&HeaderMap::new(), code, body)
    }

    #[test]
    fn errors_of_responses_have_remedies() {
        let refused =
            answer(403, r#"{"kind":"Status","message":"pods is forbidden","reason":"Forbidden","code":403}"#);
        assert_eq!(refused.kind, ErrorKind::Forbidden);
        assert_eq!(
            refused.text,
            "may not watch pods: allow verb watch on resource pods of API group \"\" in the agent's ClusterRole (the \
             server says: pods is forbidden)"
        );
        let page = answer(502, "<html>\n <h1>Bad Gateway</h1>");
        assert_eq!(page.kind, ErrorKind::Failed);
        assert!(page.text.contains("(no content type: \"<html> <h1>Bad Gateway</h1>\")"), "{page}");
        assert!(answer(401, "").text.contains("credentials of /etc/kubeconfig"));
        let other = answer(400, "Client sent an HTTP request to an HTTPS server.\n");
        assert_eq!(other.kind, ErrorKind::Unreachable);
        assert!(other.text.ends_with("make it https://"), "{other}");
    }

    #[test]
    fn delays_are_those_of_the_server() {
        let busy = answer(
            429,
            r#"{"kind":"Status","message":"storage is (re)initializing","details":{"retryAfterSeconds":1}}"#,
        );
        assert_eq!((busy.kind, busy.after), (ErrorKind::Busy, Some(Duration::from_secs(1))));
        let mut headers = HeaderMap::new();
        headers.insert(http::header::RETRY_AFTER, "7".parse().unwrap());
        let busy = answer_with(&headers, 503, "");
        assert_eq!((busy.kind, busy.after), (ErrorKind::Busy, Some(Duration::from_secs(7))));
        let ahead = r#"{"kind":"Status","reason":"Timeout","code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
        assert_eq!(answer(504, ahead).kind, ErrorKind::TooNew);
        assert_eq!(
            with_about(|about| RequestError::of_event(ahead.as_bytes(), about)).kind,
            ErrorKind::TooNew
        );
        assert_eq!(answer(409, r#"{"kind":"Status","reason":"AlreadyExists"}"#).kind, ErrorKind::Exists);
    }
}
