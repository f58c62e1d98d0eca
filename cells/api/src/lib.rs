//! The agent's REST server on a unix socket, to which cells add operations.

mod error;
mod off;
mod operation;
mod request;
mod response;
mod route;
mod router;
mod rules;

pub use error::Error;
pub use operation::Operation;
pub use request::Request;
pub use response::Response;
pub use route::Route;
