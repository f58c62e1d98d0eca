//! Which handler serves an operation. Cells contribute routes, the server looks them up.

use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};

use crate::operation::Operation;
use crate::request::Request;
use crate::response::Response;

type Handler = dyn Fn(Request) -> BoxFuture<'static, Response> + Send + Sync;

/// An operation with its handler. A cell gives it to the group that the server reads:
/// `Member(Route::new(Operation::GetConfig, handler))`.
#[derive(Clone)]
pub struct Route {
    operation: Operation,
    handler: Arc<Handler>,
}

impl Route {
    /// A route. A handler runs to its end, even when the client has gone.
    pub fn new<H, F>(operation: Operation, handler: H) -> Self
    where
        H: Fn(Request) -> F + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        Self { operation, handler: Arc::new(move |request| handler(request).boxed()) }
    }

    /// The operation.
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
