//! The answer of a handler, and its encoding on the wire.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use api_models::FrameworkError;
use bytes::Bytes;
use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use hyper::body::{Body as _, Frame, SizeHint};
use serde::Serialize;

use crate::access::DENIED;
use crate::error::{BadRequest, list};

/// Maximum size in bytes of a body that is sent with its length; longer ones are sent in chunks, as by Go's server.
pub(crate) const LONGEST_WITH_LENGTH: usize = 2048;

/// An answer.
#[derive(Debug)]
pub struct Response(pub(crate) Box<http::Response<Body>>);

impl Response {
    /// Returns a model as JSON, followed by a newline.
    pub fn json<T: Serialize + ?Sized>(status: u16, model: &T) -> Self {
        match serde_json::to_vec(model) {
            Ok(mut body) => {
                body.push(b'\n');
                Self::typed(status, "application/json", body)
            }
            Err(error) => Self::error(500, format!("cannot write the answer: {error}")),
        }
    }

    /// Returns a body that is JSON already.
    pub(crate) fn raw_json(status: u16, body: Vec<u8>) -> Self {
        Self::typed(status, "application/json", body)
    }

    /// Returns an error of an operation: a bare JSON string.
    pub fn error(status: u16, message: impl AsRef<str>) -> Self {
        Self::json(status, message.as_ref())
    }

    /// Returns an answer without a body.
    pub fn empty(status: u16) -> Self {
        Self::new(status, Body::Full(Full::default()))
    }

    /// Returns plain text.
    pub fn text(status: u16, text: impl Into<String>) -> Self {
        Self::typed(status, "text/plain; charset=utf-8", text.into().into_bytes())
    }

    /// Returns a body that is sent as the stream yields it.
    pub fn stream<S>(status: u16, content_type: &'static str, stream: S) -> Self
    where
        S: Stream<Item = Bytes> + Send + 'static,
    {
        let mut response = Self::new(status, Body::Stream(stream.boxed()));
        response.0.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }

    /// Returns the answer to a violated rule of the API that a handler has found.
    pub fn invalid(violation: api_models::Violation) -> Self {
        Self::bad_request(&BadRequest::Violation(violation))
    }

    /// Returns the answer to a path that the API does not have.
    pub fn unknown_path(path: impl Into<String>) -> Self {
        Self::bad_request(&BadRequest::UnknownPath { path: path.into() })
    }

    /// Returns the answer to a method that the path does not have.
    pub fn wrong_method(method: http::Method, allowed: Vec<http::Method>) -> Self {
        Self::bad_request(&BadRequest::WrongMethod { method, allowed })
    }

    /// Returns the answer to an operation that an option disables.
    pub fn denied() -> Self {
        Self::text(403, DENIED)
    }

    /// Returns it for hyper.
    pub fn into_http(self) -> http::Response<Body> {
        *self.0
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        self.0.status()
    }

    /// Returns the whole body, for tests of handlers.
    pub async fn body(self) -> Bytes {
        match http_body_util::BodyExt::collect(self.0.into_body()).await {
            Ok(body) => body.to_bytes(),
            Err(never) => match never {},
        }
    }

    pub(crate) fn bad_request(error: &BadRequest) -> Self {
        let body = FrameworkError { code: error.code().into(), message: error.to_string().into() };
        // Unlike answers of handlers, Cilium's framework errors end without a newline.
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = Self::typed(error.status().as_u16(), "application/json", body);
        if let BadRequest::WrongMethod { allowed, .. } = error
            && let Ok(allowed) = HeaderValue::from_str(&list(allowed, ","))
        {
            response.0.headers_mut().insert(ALLOW, allowed);
        }
        response
    }

    fn typed(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        let chunked = body.len() > LONGEST_WITH_LENGTH;
        let body = Full::from(body);
        let mut response = Self::new(status, if chunked { Body::Chunked(body) } else { Body::Full(body) });
        response.0.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }

    fn new(status: u16, body: Body) -> Self {
        let mut response = http::Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(0) = response.body().size_hint().exact() {
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        Self(Box::new(response))
    }
}

/// The body of an answer.
pub enum Body {
    /// Sent with its length.
    Full(Full<Bytes>),
    /// Sent in chunks, though its length is known.
    Chunked(Full<Bytes>),
    /// Sent as the stream yields it.
    Stream(BoxStream<'static, Bytes>),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(body) | Self::Chunked(body) => body.fmt(f),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Full(body) | Self::Chunked(body) => Pin::new(body).poll_frame(cx),
            Self::Stream(stream) => {
                stream.poll_next_unpin(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(body) => body.is_end_stream(),
            Self::Chunked(_) | Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(body) => body.size_hint(),
            Self::Chunked(_) | Self::Stream(_) => SizeHint::default(),
        }
    }
}
