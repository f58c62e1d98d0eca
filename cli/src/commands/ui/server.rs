//! Requests of the page and their responses.

use std::path::PathBuf;
use std::sync::Arc;

use api_client::Address;
use hubble_api::Server;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::body::Content;
use super::flows::{self, Selection};
use super::guard::Guard;
use super::panels;
use crate::client::Agent;

/// The page; each response has a nonce of its own for its script and style.
const PAGE: &str = include_str!("page.html");
/// The place of the nonce in the page.
const NONCE: &str = "@NONCE@";

/// Events that wait for a client, beside those in the kernel.
const QUEUE: usize = 4;

/// Headers of every response.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // The token is in the address of the page.
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The sources of responses.
pub(super) struct Ui {
    pub(super) guard: Guard,
    pub(super) agent: Address,
    pub(super) hubble: Server,
    pub(super) shell: PathBuf,
    /// Streams of flows.
    pub(super) tasks: TaskTracker,
}

impl Ui {
    /// Answers a request.
    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Content> {
        let path = match self.guard.check(request.method(), request.headers(), request.uri().path()) {
            Ok(path) => path,
            Err(status) => return refusal(status, "only GET of the page's own address is answered"),
        };
        let query = request.uri().query().unwrap_or_default();
        match path {
            "" => page(),
            "api/node" => self.blocking(panels::node).await,
            "api/endpoints" => self.blocking(panels::endpoints).await,
            "api/maps" => {
                let shell = self.shell.clone();
                self.blocking(move |agent| panels::maps(agent, &shell)).await
            }
            "api/traffic" => json_response(flows::traffic(&self.hubble).await),
            "api/timeline.svg" => self.timeline().await,
            "api/flows" => match Selection::parse(query) {
                Ok(selection) => self.stream(selection),
                Err(error) => refusal(StatusCode::BAD_REQUEST, &error),
            },
            _ => refusal(StatusCode::NOT_FOUND, "there is no such panel"),
        }
    }

    /// Returns the JSON that a function makes of the answers of the agent, for which it may wait.
    async fn blocking(
        &self,
        panel: impl FnOnce(&mut Agent) -> anyhow::Result<Value> + Send + 'static,
    ) -> Response<Content> {
        json_response(self.ask(panel).await)
    }

    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Agent) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let mut agent = Agent::at(self.agent.clone());
        tokio::task::spawn_blocking(move || work(&mut agent)).await?
    }

    async fn timeline(&self) -> Response<Content> {
        match self.ask(panels::timeline).await {
            Ok(picture) => {
                let mut response = respond(StatusCode::OK, "image/svg+xml", picture);
                // A picture has styles of its own; opened as a document, it has no other rights.
                set_policy(&mut response, "default-src 'none'; style-src 'unsafe-inline'; sandbox");
                response
            }
            Err(error) => json_response(Err(error)),
        }
    }

    fn stream(&self, selection: Selection) -> Response<Content> {
        let (sender, receiver) = tokio::sync::mpsc::channel(QUEUE);
        self.tasks.spawn(flows::follow(self.hubble.clone(), selection, sender));
        let mut response = respond(StatusCode::OK, "text/event-stream", Bytes::new());
        *response.body_mut() = Content::Stream(receiver);
        response
    }
}

fn page() -> Response<Content> {
    let Ok(nonce) = Guard::random() else {
        return refusal(StatusCode::INTERNAL_SERVER_ERROR, "the kernel has no random numbers");
    };
    let nonce = nonce.token();
    let mut response = respond(StatusCode::OK, "text/html; charset=utf-8", PAGE.replace(NONCE, nonce));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    );
    set_policy(&mut response, &policy);
    response
}

/// Returns JSON, or status 502 with the error of the agent.
fn json_response(panel: anyhow::Result<Value>) -> Response<Content> {
    match panel {
        Ok(value) => respond(StatusCode::OK, "application/json", value.to_string()),
        Err(error) => refusal(StatusCode::BAD_GATEWAY, &format!("{error:#}")),
    }
}

fn refusal(status: StatusCode, error: &str) -> Response<Content> {
    let mut response = respond(status, "application/json", json!({"error": error}).to_string());
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
    }
    response
}

fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Content> {
    let mut response = Response::new(Content::Whole(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    set_policy(&mut response, "default-src 'none'; frame-ancestors 'none'");
    response
}

fn set_policy(response: &mut Response<Content>, policy: &str) {
    if let Ok(policy) = HeaderValue::from_str(policy) {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
}
