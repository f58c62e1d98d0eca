//! The responder: `GET /hello` on the node's addresses.
//!
//! [`addresses`] is pure, [`follow`] starts and stops a [`listener`] an address as the node's row changes.
//!
//! Sibling folders that it uses: none.

mod addresses;
mod follow;
mod listener;

pub(crate) use follow::Responder;
pub(crate) use listener::{Listening, serve_endpoint};
