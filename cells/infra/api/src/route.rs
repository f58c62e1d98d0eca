//! The handler of an operation. Cells contribute routes to the server.

use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};

use crate::operation::Operation;
use crate::request::Request;
use crate::response::Response;

type Handler = dyn Fn(Request) -> BoxFuture<'static, Response> + Send + Sync;

/// An operation with its handler. A cell contributes it to the group of the server:
/// `Member(Route::new(Operation::GetConfig, handler))`.
#[derive(Clone)]
pub struct Route {
    operation: Operation,
    handler: Arc<Handler>,
}

impl Route {
    /// Returns a route. A handler completes even if the client disconnects.
    pub fn new<H, F>(operation: Operation, handler: H) -> Self
    where
        H: Fn(Request) -> F + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        Self { operation, handler: Arc::new(move |request| handler(request).boxed()) }
    }

    /// Returns the operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Runs the handler.
    pub fn call(&self, request: Request) -> BoxFuture<'static, Response> {
        (self.handler)(request)
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Route").field(&self.operation).finish()
    }
}
