//! The address of a server, and how a client verifies it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A server of Hubble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A unix socket.
    Unix(PathBuf),
    /// `HOST:PORT` in plain text.
    Tcp(String),
    /// `HOST:PORT` by TLS.
    Tls(String, ClientTls),
}

/// How a client verifies its server, and what it shows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Files with certificates of authorities, in PEM.
    pub authorities: Vec<PathBuf>,
    /// Files with the client's certificate and its key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate; the host by default.
    pub server_name: Option<String>,
    /// Accept any certificate: encrypted, but without protection from a man in the middle.
    pub is_insecure: bool,
}

/// An address that is none of the known forms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is none of unix:///PATH, HOST:PORT, tls://HOST:PORT")]
pub struct BadServer(pub String);

impl FromStr for Server {
    type Err = BadServer;

    fn from_str(text: &str) -> Result<Self, BadServer> {
        let invalid = || BadServer(text.to_owned());
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(invalid()) };
        }
        let (address, has_tls) = match text.split_once("://") {
            Some(("tls", address)) => (address, true),
            Some(_) => return Err(invalid()),
            None => (text, false),
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
        let is_valid = !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok();
        match (is_valid, has_tls) {
            (false, _) => Err(invalid()),
            (true, true) => Ok(Self::Tls(address.to_owned(), ClientTls::default())),
            (true, false) => Ok(Self::Tcp(address.to_owned())),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
            Self::Tls(address, _) => write!(f, "tls://{address}"),
        }
    }
}

/// Returns the host of `HOST:PORT`, an IPv6 address without its brackets.
pub(crate) fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_cilium() {
        for text in ["unix:///run/hubble.sock", "localhost:4245", "[fd00::1]:4244", "tls://10.0.0.1:4244"] {
            assert_eq!(text.parse::<Server>().unwrap().to_string(), text);
        }
        for text in ["", "unix://x", "localhost", ":4245", "http://localhost:80", "tls://a", "a:b", "a/b:1"] {
            assert_eq!(text.parse::<Server>(), Err(BadServer(text.to_owned())), "{text}");
        }
        assert_eq!([host("[fd00::1]:4244"), host("a.b:1")], ["fd00::1", "a.b"]);
    }
}
