//! Secrets of the cluster: resources of SDS, and the certificates and values that rules of policies name.
//!
//! They are in no table: nothing that shows tables shows them.
//!
//! Sibling folders that it uses: none.

mod files;
mod follow;
mod policy;
mod secret;
mod store;

pub(crate) use files::SecretFiles;
pub(crate) use policy::{Absence, Found, PolicySecrets};
pub(crate) use secret::{AUTHORITY, CERTIFICATE, KEY, Secret};
pub(crate) use store::Store;
