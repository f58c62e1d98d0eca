//! Errors of services.

use crate::model::address::LbAddress;
use crate::model::name::ServiceName;
use crate::model::source::Source;

/// The reason why the writer refused a service as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Another service owns one of its addresses.
    #[error("frontend already owned by another service: {address} is owned by {owner}")]
    Owned {
        /// The address.
        address: LbAddress,
        /// Its owner.
        owner: ServiceName,
    },
    /// A source of higher precedence defines the service.
    #[error("service {name} is defined by source {owner} already")]
    Defined {
        /// The service.
        name: ServiceName,
        /// The other source.
        owner: Source,
    },
}
