//! Errors of requests, with Cilium's texts where its clients may compare them.

use std::path::PathBuf;

use crate::model::id::EndpointId;

/// An error in parsing an endpoint's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadId {
    /// The prefix before the colon is unknown.
    #[error("unknown endpoint ID prefix {0:?}")]
    UnknownPrefix(String),
    /// A kind of name that only other nodes' endpoints have.
    #[error("unsupported endpoint identifier")]
    Unsupported,
    /// The id cannot be parsed.
    #[error("invalid numeric cilium id: strconv.ParseInt: parsing {text:?}: {reason}")]
    NotANumber {
        /// The value.
        text: String,
        /// The error.
        reason: &'static str,
    },
    /// No endpoint has the id.
    #[error("endpoint id too large: {0}")]
    TooLarge(i64),
}

/// An invalid request for an endpoint. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The name in the path is invalid.
    #[error(transparent)]
    Id(#[from] BadId),
    /// A field of the body is invalid.
    #[error("unable to parse endpoint parameters: {0}")]
    Parameters(#[from] BadParameter),
    /// The requested id is taken.
    #[error("endpoint ID {0} already exists")]
    IdInUse(EndpointId),
    /// The container's interface already has an endpoint.
    #[error("endpoint for CNI attachment ID {0} already exists")]
    AttachmentInUse(String),
    /// Another endpoint has the address; with its kind, as `ipv4:10.0.0.1`.
    #[error("IP {0} is already in use")]
    AddressInUse(String),
    /// Another endpoint has the interface.
    #[error(
        "interface index {index} is endpoint {owner}'s: delete that endpoint first, or use another interface"
    )]
    InterfaceInUse {
        /// Index of the interface.
        index: u32,
        /// Its owner.
        owner: EndpointId,
    },
    /// Labels of the `reserved` source are the agent's.
    #[error("not allowed to add reserved labels: {0}")]
    ReservedLabels(String),
    /// Labels of the sources `cilium-generated` and `gen` are the agent's.
    #[error("not allowed to add generated labels: {0}")]
    GeneratedLabels(String),
    /// The request carried labels, none of which remains after filtering.
    #[error("no valid labels provided")]
    NoLabels,
    /// Clients may not change host, health and other endpoints of the agent.
    #[error("endpoint may not be associated reserved labels")]
    Reserved,
    /// All 65535 ids are in use.
    #[error("no more endpoint IDs available")]
    NoFreeId,
}

/// A field of a request that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadParameter {
    /// `mac` or `host-mac` is no MAC address.
    #[error("address {0}: invalid MAC address")]
    Mac(String),
    /// The text is no address.
    #[error("ParseAddr({text:?}): {reason}")]
    Address {
        /// The value.
        text: String,
        /// The error.
        reason: &'static str,
    },
    /// The address is of the other family.
    #[error("invalid {family} address {text:?}")]
    Family {
        /// The family of the field.
        family: &'static str,
        /// The value.
        text: String,
    },
    /// The number does not fit into its field.
    #[error("{field} is out of range: {value}")]
    Range {
        /// The field of the request.
        field: &'static str,
        /// Its value.
        value: i64,
    },
}

/// A file of the state folder that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// It cannot be read or written, or is damaged.
    #[error(transparent)]
    File(#[from] state_file::Error),
    /// The record can be read, a value cannot.
    #[error("{path}: {key} has no usable value: {found:?}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The record's key.
        key: &'static str,
        /// Its value.
        found: String,
    },
}
