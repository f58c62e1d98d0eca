//! Where the agent is.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where every client of Cilium looks for the agent.
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
    /// Reads one of the three spellings; an empty text is the default socket.
    pub fn parse(text: &str) -> Self {
        if text.is_empty() {
            return Self::Unix(DEFAULT_SOCKET.into());
        }
        match text.strip_prefix("tcp://") {
            Some(host) => Self::Tcp(host.into()),
            None => Self::Unix(text.strip_prefix("unix://").unwrap_or(text).into()),
        }
    }

    /// The address in `CILIUM_SOCK`, or the default socket.
    pub fn from_env() -> Self {
        Self::parse(&std::env::var("CILIUM_SOCK").unwrap_or_default())
    }

    /// The socket's path, if it is one.
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
    fn three_spellings() {
        assert_eq!(Address::parse("").to_string(), "unix:///var/run/cilium/cilium.sock");
        assert_eq!(Address::parse("/run/x.sock"), Address::parse("unix:///run/x.sock"));
        assert_eq!(Address::parse("tcp://127.0.0.1:80"), Address::Tcp("127.0.0.1:80".into()));
    }
}
