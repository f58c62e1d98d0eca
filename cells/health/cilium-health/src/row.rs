//! The row of table `node-health`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use statedb::{Query, TableDisplay, TableSpec};

/// The connectivity to a node, as last probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct NodeHealth {
    /// The node's name, with that of its cluster unless it is the default one.
    pub name: Arc<str>,
    /// Whether it is the node that the agent runs on.
    pub local: bool,
    /// The node's own addresses, the primary one first.
    pub host: Vec<Path>,
    /// The addresses of its health endpoint, the primary one first.
    pub endpoint: Vec<Path>,
}

/// The connectivity to an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Path {
    /// The address.
    pub ip: IpAddr,
    /// When its last probe ended; none before the first.
    pub last_probed: Option<SystemTime>,
    /// The result of the last pings; none before the first, and where the agent cannot send pings.
    pub icmp: Option<CheckResult>,
    /// The result of the last request; none before the first.
    pub http: Option<CheckResult>,
}

/// The time until the answer, or why there is none.
pub type CheckResult = Result<Duration, Failure>;

/// The reason of a failed check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Failure {
    /// No answer in time.
    TimedOut,
    /// The address refused the connection.
    Refused(Arc<str>),
    /// Another error, of this node or of the peer.
    Other(Arc<str>),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("Connection timed out"),
            Self::Refused(text) | Self::Other(text) => f.write_str(text),
        }
    }
}

/// The state of a path, or of the primary path of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reachability {
    /// Not probed yet.
    Unknown,
    /// All checks succeeded.
    Reachable,
    /// A check failed.
    Unreachable,
}

impl Path {
    /// A path that is not probed yet.
    pub(crate) fn new(ip: IpAddr) -> Self {
        Self { ip, last_probed: None, icmp: None, http: None }
    }

    /// Returns its state.
    #[must_use]
    pub fn reachability(&self) -> Reachability {
        let checks = [&self.icmp, &self.http];
        if checks.iter().any(|check| matches!(check, Some(Err(_)))) {
            Reachability::Unreachable
        } else if self.http.is_some() {
            Reachability::Reachable
        } else {
            Reachability::Unknown
        }
    }
}

impl NodeHealth {
    /// Selects the row of a node.
    #[must_use]
    pub fn by_name(name: &str) -> Query<Self> {
        Query::primary(name)
    }

    /// Whether one of its addresses was probed.
    #[must_use]
    pub fn is_probed(&self) -> bool {
        self.host.iter().chain(&self.endpoint).any(|path| path.last_probed.is_some())
    }
}

/// Returns the state of the primary one of these paths; none without paths.
#[must_use]
pub fn primary(paths: &[Path]) -> Option<Reachability> {
    paths.first().map(Path::reachability)
}

impl TableSpec for NodeHealth {
    const NAME: &'static str = "node-health";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }
}

impl TableDisplay for NodeHealth {
    fn columns() -> &'static [&'static str] {
        &["Name", "Host", "Endpoint"]
    }

    fn row(&self) -> Vec<String> {
        let paths = |paths: &[Path]| paths.iter().map(Path::to_string).collect::<Vec<_>>().join("; ");
        vec![self.name.to_string(), paths(&self.host), paths(&self.endpoint)]
    }
}

/// `192.0.2.1 ICMP=201µs HTTP=failed: Connection timed out`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip)?;
        for (name, check) in [("ICMP", &self.icmp), ("HTTP", &self.http)] {
            match check {
                None => {}
                Some(Ok(latency)) => write!(f, " {name}={}", go_duration::format(*latency))?,
                Some(Err(failure)) => write!(f, " {name}=failed: {failure}")?,
            }
        }
        Ok(())
    }
}
