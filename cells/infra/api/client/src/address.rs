//! The address of the agent.

use std::fmt;
use std::path::{Path, PathBuf};

/// The default socket of all clients of Cilium.
const DEFAULT_SOCKET: &str = "/var/run/cilium/cilium.sock";

/// The agent's address, as clients get it in `CILIUM_SOCK`: a path, `unix://PATH` or `tcp://IP:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// IP address and port.
    Tcp(String),
}

impl Address {
    /// Parses one of the three forms; an empty text is the default socket.
    pub fn parse(text: &str) -> Self {
        if text.is_empty() {
            return Self::Unix(DEFAULT_SOCKET.into());
        }
        match text.strip_prefix("tcp://") {
            Some(host) => Self::Tcp(host.into()),
            None => Self::Unix(text.strip_prefix("unix://").unwrap_or(text).into()),
        }
    }

    /// Returns the address in `CILIUM_SOCK`, or the default socket.
    pub fn from_env() -> Self {
        Self::parse(&std::env::var("CILIUM_SOCK").unwrap_or_default())
    }

    /// Returns the path of a unix socket; `None` for TCP.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            Self::Tcp(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(host) => write!(f, "tcp://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_forms_are_parsed() {
        assert_eq!(Address::parse("").to_string(), "unix:///var/run/cilium/cilium.sock");
        assert_eq!(Address::parse("/run/x.sock"), Address::parse("unix:///run/x.sock"));
        assert_eq!(Address::parse("tcp://127.0.0.1:80"), Address::Tcp("127.0.0.1:80".into()));
    }
}
