//! Errors and their codes in the CNI specification.

use crate::version;
use serde_json::json;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The error of a call. The text is the `msg` of the CNI error document.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Variables that the verb needs are not set.
    #[error("required env variables [{names}] missing")]
    MissingEnv {
        /// The missing names, separated by commas.
        names: String,
    },
    /// `CNI_COMMAND` is not a verb of the specification.
    #[error("unknown CNI_COMMAND: {found}")]
    UnknownCommand {
        /// Its value.
        found: String,
    },
    /// A variable has a value that cannot be used.
    #[error("invalid {name} {found:?}: {reason}")]
    InvalidEnv {
        /// The variable.
        name: &'static str,
        /// Its value.
        found: String,
        /// A description of valid values.
        reason: &'static str,
    },
    /// The configuration could not be read from stdin.
    #[error("cannot read the network configuration from stdin: {source}")]
    Stdin {
        /// The read error.
        source: io::Error,
    },
    /// The configuration is not JSON of the right shape.
    #[error("cannot decode the network configuration: {source}")]
    Decode {
        /// The parse error with its position.
        source: serde_json::Error,
    },
    /// A key of the configuration has a value that cannot be used.
    #[error("invalid network configuration, key {key:?}: {reason}")]
    InvalidConfig {
        /// The key.
        key: &'static str,
        /// The fault and a description of valid values.
        reason: String,
    },
    /// The configuration has a version of the specification that the plugin does not support.
    #[error("incompatible CNI versions")]
    IncompatibleVersion {
        /// The version of the configuration.
        found: String,
    },
    /// The verb was added to the specification after the configuration's version.
    #[error("config version {found:?} does not allow {command}")]
    VerbTooNew {
        /// The verb.
        command: &'static str,
        /// The version of the configuration.
        found: &'static str,
    },
    /// The agent does not respond to an ADD or DEL.
    #[error("unable to connect to the agent at {address}: {source}. Is the agent running?")]
    AgentUnreachable {
        /// The agent's address.
        address: String,
        /// The last error.
        source: io::Error,
    },
    /// CHECK could not reach the agent: the state of the container is unknown.
    #[error("DaemonDown")]
    CheckAgentDown {
        /// The connection error.
        reason: String,
    },
    /// STATUS: the plugin cannot serve an ADD.
    #[error("DaemonDown")]
    NotAvailable {
        /// The connection error, or the agent's response.
        reason: String,
    },
    /// The agent rejected a request.
    #[error("unable to {action}: {reason}")]
    Agent {
        /// The requested action.
        action: &'static str,
        /// The agent's message with its status.
        reason: String,
    },
    /// The agent has no health state of the container.
    #[error("HealthzFailed")]
    HealthUnknown {
        /// The agent's message.
        reason: String,
    },
    /// The agent reports the container as unhealthy.
    #[error("Unhealthy")]
    Unhealthy,
    /// The agent returned no usable address.
    #[error("IPAM provided neither an IPv4 nor an IPv6 address that the node has enabled")]
    NoAddress,
    /// An address of the agent or of a result cannot be parsed.
    #[error("invalid address {found:?} in {place}")]
    InvalidAddress {
        /// The text.
        found: String,
        /// Its source.
        place: &'static str,
    },
    /// The network namespace of the container cannot be used.
    #[error("{action} the network namespace {}: {source}", path.display())]
    Netns {
        /// `opening` or `entering`.
        action: &'static str,
        /// `CNI_NETNS`.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A netlink request about a link failed.
    #[error("unable to {action} {interface:?}: {source}")]
    Link {
        /// The requested action.
        action: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's error.
        source: netlink::Error,
    },
    /// A chained ADD found no interface to take over.
    #[error(
        "the network namespace {} has no veth: the plugin before this one in the list of plugins has to create it",
        netns.display()
    )]
    NoVeth {
        /// `CNI_NETNS`.
        netns: PathBuf,
    },
    /// The host's end of the interface is not in the node's network namespace.
    #[error("the peer of {interface:?}, index {}, is no veth of this node", index.map_or("unknown".into(), |i| i.to_string()))]
    NoPeer {
        /// The pod's interface.
        interface: String,
        /// The index of its peer, as the kernel reports it.
        index: Option<u32>,
    },
    /// The interface that another plugin has made has no address for an endpoint.
    #[error("the plugin before has left no address of a family that the node has enabled on {interface:?}")]
    NoChainedAddress {
        /// The pod's interface.
        interface: String,
    },
    /// An interface was deleted right after it was created.
    #[error("interface {interface:?} was deleted while it was being set up")]
    NoInterface {
        /// The interface.
        interface: String,
    },
    /// Random bytes for MAC addresses could not be read.
    #[error("unable to choose MAC addresses: /dev/urandom: {source}")]
    Random {
        /// The system's error.
        source: io::Error,
    },
    /// The kernel does not accept packets to an address of the pod.
    #[error(
        "the pod does not receive packets to {address} {waited:?} after it was added to {interface:?}: the kernel has no \
         local route to it; look at `ip -6 addr` for a duplicate, or at the node's load, and the runtime tries again"
    )]
    NotLocal {
        /// The address.
        address: IpAddr,
        /// The interface.
        interface: String,
        /// The time that the plugin waited.
        waited: Duration,
    },
    /// A sysctl could not be set.
    #[error("unable to set sysctl {key} to {value:?}: {source}")]
    Sysctl {
        /// Its key.
        key: String,
        /// The desired value.
        value: String,
        /// The system's error.
        source: io::Error,
    },
    /// CHECK: the interface differs from the result of ADD.
    #[error("{reason}")]
    Mismatch {
        /// The expected state and its place.
        reason: String,
    },
    /// The deletion could not be queued for an agent that is not running.
    #[error("unable to queue the deletion in {}: {reason}", folder.display())]
    Queue {
        /// The queue.
        folder: PathBuf,
        /// The cause.
        reason: String,
    },
    /// A delegated IPAM plugin could not be run or failed.
    #[error("failed to invoke delegated plugin {plugin:?} {command} for IPAM: {reason}")]
    Delegate {
        /// `ipam.type`.
        plugin: String,
        /// The verb.
        command: &'static str,
        /// The cause.
        reason: String,
    },
}

impl Error {
    /// Returns the error's code: 1 to 99 as in the CNI specification, 100 and 101 as Cilium's plugin uses them for
    /// CHECK, 999 for errors without a specific code.
    pub fn code(&self) -> u32 {
        match self {
            Self::IncompatibleVersion { .. } | Self::VerbTooNew { .. } => 1,
            Self::MissingEnv { .. } | Self::UnknownCommand { .. } | Self::InvalidEnv { .. } => 4,
            Self::Stdin { .. } => 5,
            Self::Decode { .. } => 6,
            Self::InvalidConfig { .. } => 7,
            Self::CheckAgentDown { .. } => 11,
            Self::NotAvailable { .. } => 50,
            Self::HealthUnknown { .. } => 100,
            Self::Unhealthy => 101,
            _ => 999,
        }
    }

    /// Returns details of errors whose message is a fixed word.
    pub fn details(&self) -> Option<String> {
        match self {
            Self::IncompatibleVersion { found } => {
                Some(format!("config is {found:?}, plugin supports [{}]", version::list()))
            }
            Self::CheckAgentDown { reason } => Some(reason.clone()),
            Self::NotAvailable { reason } => Some(format!("unable to connect to Cilium agent: {reason}")),
            Self::HealthUnknown { reason } => Some(format!("failed to retrieve container health: {reason}")),
            Self::Unhealthy => Some("container is unhealthy in agent".into()),
            _ => None,
        }
    }

    /// Returns the error document for stdout.
    pub fn to_json(&self) -> String {
        let mut document = json!({ "code": self.code(), "msg": self.to_string() });
        if let Some(details) = self.details() {
            document["details"] = details.into();
        }
        crate::result::pretty(&document)
    }
}
