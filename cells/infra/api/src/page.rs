//! Requests of our own tools, under paths that Cilium does not use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use http::Method;
use http_body_util::{BodyExt, Limited};
use tokio::time::timeout;

use crate::request::{find, parse_query};
use crate::response::Response;

/// Prefix of the paths of pages; no path of Cilium has it.
const BASE: &str = "/apiary/";

type Handler = dyn Fn(Query, Bytes) -> BoxFuture<'static, Response> + Send + Sync;

/// The maximum size of a body.
const BODY_LIMIT: usize = 16 << 20;
/// The time in which a body has to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// The handler of `GET /apiary/<name>`, or of `POST` with a body. A cell contributes it to the group of the server:
/// `Member(Page::new("why", handler))`.
#[derive(Clone)]
pub struct Page {
    name: &'static str,
    method: Method,
    handler: Arc<Handler>,
}

/// The query of a request for a page, percent-decoded.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Returns the value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        find(&self.0, name)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Query {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Query {
        Query(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Page {
    /// Returns a page.
    pub fn new<H, F>(name: &'static str, handler: H) -> Page
    where
        H: Fn(Query) -> F + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        Page { name, method: Method::GET, handler: Arc::new(move |query, _| handler(query).boxed()) }
    }

    /// Returns a page that answers to a `POST`, whose handler gets the body.
    pub fn post<H, F>(name: &'static str, handler: H) -> Page
    where
        H: Fn(Bytes) -> F + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        Page { name, method: Method::POST, handler: Arc::new(move |_, body| handler(body).boxed()) }
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the handler.
    pub fn call(&self, query: Query) -> BoxFuture<'static, Response> {
        self.call_with(query, Bytes::new())
    }

    /// Runs the handler with a body.
    pub fn call_with(&self, query: Query, body: Bytes) -> BoxFuture<'static, Response> {
        (self.handler)(query, body)
    }

    /// Whether the path belongs to pages.
    pub(crate) fn is_path(path: &str) -> bool {
        path.starts_with(BASE)
    }

    /// Answers a request for one of these pages.
    pub(crate) async fn answer<B>(pages: &[Page], request: http::Request<B>) -> Response
    where
        B: hyper::body::Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static>,
    {
        let name = request.uri().path().strip_prefix(BASE).unwrap_or_default();
        let Some(page) = pages.iter().find(|page| page.name == name) else {
            return Response::error(404, "no such page");
        };
        if request.method() != page.method {
            return Response::error(405, format!("only {} is answered here", page.method));
        }
        let query = Query(parse_query(request.uri().query().unwrap_or_default()));
        if page.method == Method::GET {
            return page.call(query).await;
        }
        let body = Limited::new(request.into_body(), BODY_LIMIT).collect();
        match timeout(BODY_TIMEOUT, body).await {
            Ok(Ok(body)) => page.call_with(query, body.to_bytes()).await,
            Ok(Err(_)) => {
                Response::error(413, format!("the body has more than {BODY_LIMIT} bytes or is cut off"))
            }
            Err(_) => Response::error(408, "the body does not arrive"),
        }
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Page").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_page_gets_its_query_and_others_are_not_found() {
        let echo = |query: Query| async move { Response::text(200, query.get("src").unwrap_or("-")) };
        let body = |body: Bytes| async move { Response::text(200, String::from_utf8_lossy(&body)) };
        let pages = [Page::new("why", echo), Page::post("preview", body)];
        let ask = async |method: &str, path: &str| {
            let body = http_body_util::Full::new(Bytes::from_static(b"the body"));
            let request = http::Request::builder().method(method).uri(path).body(body).unwrap();
            let response = Page::answer(&pages, request).await;
            let status = response.status().as_u16();
            (status, String::from_utf8(response.body().await.to_vec()).unwrap())
        };
        assert_eq!(ask("GET", "/apiary/why?src=default%2Fa").await, (200, "default/a".to_owned()));
        assert_eq!(ask("GET", "/apiary/why").await, (200, "-".to_owned()));
        assert_eq!(ask("GET", "/apiary/what").await.0, 404);
        assert_eq!(ask("POST", "/apiary/why").await.0, 405);
        assert_eq!(ask("POST", "/apiary/preview").await, (200, "the body".to_owned()));
        assert_eq!(ask("GET", "/apiary/preview").await.0, 405);
        assert!(!Page::is_path("/v1/apiary/why"));
    }
}
