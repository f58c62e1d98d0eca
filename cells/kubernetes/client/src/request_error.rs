//! Errors of requests, with their remedies.

mod connection;

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;

use crate::access::Names;

pub(crate) use connection::of_connection;

/// Why a request has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct RequestError {
    pub(crate) kind: ErrorKind,
    /// The error and its remedy, for people.
    pub(crate) text: String,
    /// The delay of the server's `Retry-After`.
    pub(crate) after: Option<Duration>,
}

/// The kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The server cannot be reached, or does not answer in time.
    Unreachable,
    /// The connection ended before the request was sent, without a reason.
    Dropped,
    /// The connection was lost in the middle of an answer.
    Cut,
    /// Nothing has come for too long.
    Stalled,
    /// Too few bytes came for too long.
    Slow,
    /// The answer is not one of an API server.
    Nonsense,
    /// 400, 422 and others that will not change.
    Invalid,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 409: there is one of this name already.
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
    /// Another answer that is none of success.
    Failed,
}

impl ErrorKind {
    /// Its name in metrics.
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
        }
    }
}

impl RequestError {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> RequestError {
        RequestError { kind, text: text.into(), after: None }
    }

    /// Whether the server as a whole is to blame, and all requests have it.
    pub(crate) fn is_of_server(&self) -> bool {
        matches!(self.kind, ErrorKind::Unreachable | ErrorKind::Dropped | ErrorKind::Unauthorized)
    }

    /// Returns the error of an answer without success.
    pub(crate) fn of_answer(
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        about: &About<'_>,
    ) -> RequestError {
        let said = serde_json::from_slice::<Status>(body).ok().filter(|said| said.kind == "Status");
        let after =
            headers.get(http::header::RETRY_AFTER).and_then(|after| after.to_str().ok()?.trim().parse().ok());
        let Some(said) = said else {
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
        let mut error = RequestError::of_status(&said, status.as_u16(), about);
        error.after = error.after.or(after.map(Duration::from_secs));
        error
    }

    /// Returns the error of a status that a watch ends with.
    pub(crate) fn of_event(object: &[u8], about: &About<'_>) -> RequestError {
        match serde_json::from_slice::<Status>(object) {
            Ok(said) => RequestError::of_status(&said, said.code, about),
            Err(error) => RequestError::new(
                ErrorKind::Nonsense,
                format!("the watch of {} ended with an unreadable status: {error}", about.name),
            ),
        }
    }

    fn of_status(said: &Status, code: u16, about: &About<'_>) -> RequestError {
        let too_new = said.details.causes.iter().any(|cause| cause.reason == "ResourceVersionTooLarge");
        // The begin of a server's message about a JSON patch that does not fit the object; an invalid result has its kind.
        let unfit =
            code == 422 && said.message.starts_with("the server rejected our request due to an error");
        let kind = if unfit { ErrorKind::Conflict } else { of_code(code, &said.reason, too_new) };
        let causes: Vec<&str> = said.details.causes.iter().map(|cause| cause.message.as_str()).collect();
        let causes: Vec<&str> = causes.into_iter().filter(|cause| !said.message.contains(cause)).collect();
        let message = [&[said.message.as_str()], &*causes].concat().join("; ");
        let text = about.explain(kind, code, &message);
        let after =
            Some(said.details.retry_after_seconds).filter(|after| *after > 0).map(Duration::from_secs);
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

/// Whether a server expects TLS: the answer of those in Go, and of nginx.
fn speaks_tls(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&body[..body.len().min(1000)]);
    text.contains("HTTP request to an HTTPS server") || text.contains("HTTP request was sent to HTTPS port")
}

/// Returns the begin of an answer that is no status: most often the HTML page of a proxy.
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
    /// The objects, as people call them.
    pub(crate) name: &'a str,
    /// `list`, `watch`, `get`, ...
    pub(crate) verb: &'a str,
    /// The name in addresses.
    pub(crate) plural: &'a str,
    /// The group.
    pub(crate) group: &'a str,
    /// The server.
    pub(crate) server: &'a str,
    /// Where the credentials are.
    pub(crate) names: &'a Names,
}

impl About<'_> {
    fn explain(&self, kind: ErrorKind, code: u16, said: &str) -> String {
        let About { name, verb, plural, group, server, names } = self;
        let group = if group.is_empty() { "\"\"" } else { group };
        match kind {
            ErrorKind::Forbidden => format!(
                "may not {verb} {name}: allow verb {verb} on resource {plural} of API group {group} in the agent's \
                 ClusterRole (the server says: {said})"
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
                format!("{server} does not know {plural} of API group {group} (404: {said})")
            }
            _ => format!("{server} answers {code} to {verb} {name}: {said}"),
        }
    }
}

/// `Status` of Kubernetes.
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
    fn errors_of_answers_have_remedies() {
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
    fn waiting_times_are_the_servers() {
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
