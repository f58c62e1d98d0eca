//! The options of the TCP listener, in Cilium's spelling. Changes take effect at the next start; changed files are read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use server_tls::TlsFiles;

/// The TCP listener.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Hubble")]
pub struct ListenConfig {
    /// TCP address on which flows are served to relay and to clients of other nodes: IP:PORT, or :PORT for all addresses; empty for none
    #[flag(default = "")]
    pub hubble_listen_address: String,
    /// Serve TCP without TLS: all clients that reach the address can read all flows
    #[flag(default = true)]
    pub hubble_disable_tls: bool,
    /// Certificate of the TCP listener, in PEM; a changed file is read
    #[flag(default = "")]
    pub hubble_tls_cert_file: PathBuf,
    /// Key of the certificate, in PEM
    #[flag(default = "")]
    pub hubble_tls_key_file: PathBuf,
    /// Certificates of authorities that sign certificates of clients, in PEM; with them, a client without such a certificate is refused
    #[flag(default = "")]
    pub hubble_tls_client_ca_files: Vec<String>,
    /// Name IPv6 addresses of nodes to relay, of nodes that have both
    #[flag(default = false)]
    pub hubble_prefer_ipv6: bool,
}

/// An option that the TCP listener cannot start with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address does not parse.
    #[error("hubble-listen-address: {0} is neither IP:PORT nor :PORT, such as :4244")]
    Address(String),
    /// TLS without a certificate.
    #[error("{0}: is empty, but TLS needs the file; to serve without TLS, set hubble-disable-tls")]
    NoFile(&'static str),
}

/// A valid configuration of the TCP listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    /// The address; without a host all addresses of both families.
    pub(crate) host: Option<IpAddr>,
    pub(crate) port: u16,
    /// The files of TLS; plain text without them.
    pub(crate) tls: Option<TlsFiles>,
}

impl Listen {
    /// Returns the addresses to bind, of which the first possible one is.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        match self.host {
            Some(host) => vec![SocketAddr::new(host, self.port)],
            // The address of IPv6 serves IPv4, too; kernels without IPv6 have the other one.
            None => [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)]
                .map(|host| SocketAddr::new(host, self.port))
                .to_vec(),
        }
    }
}

impl ListenConfig {
    /// Returns the checked configuration; `None` without an address.
    pub(crate) fn listen(&self) -> Result<Option<Listen>, ListenError> {
        let text = self.hubble_listen_address.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let invalid = || ListenError::Address(text.to_owned());
        let (host, port) = match text.strip_prefix(':') {
            Some(port) => (None, port.parse().map_err(|_| invalid())?),
            None => {
                let address: SocketAddr = text.parse().map_err(|_| invalid())?;
                (Some(address.ip()), address.port())
            }
        };
        let tls = if self.hubble_disable_tls { None } else { Some(self.files()?) };
        Ok(Some(Listen { host, port, tls }))
    }

    fn files(&self) -> Result<TlsFiles, ListenError> {
        let file = |path: &PathBuf, option| match path.as_os_str().is_empty() {
            true => Err(ListenError::NoFile(option)),
            false => Ok(path.clone()),
        };
        // A list of the chart may be joined by blanks.
        let authorities = self.hubble_tls_client_ca_files.iter().flat_map(|files| files.split_whitespace());
        Ok(TlsFiles {
            server: "hubble",
            authorities_option: "hubble-tls-client-ca-files",
            protocol: b"h2",
            certificate: file(&self.hubble_tls_cert_file, "hubble-tls-cert-file")?,
            key: file(&self.hubble_tls_key_file, "hubble-tls-key-file")?,
            client_authorities: authorities.map(PathBuf::from).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(address: &str) -> ListenConfig {
        ListenConfig {
            hubble_listen_address: address.to_owned(),
            hubble_disable_tls: true,
            hubble_tls_cert_file: PathBuf::new(),
            hubble_tls_key_file: "server.key".into(),
            hubble_tls_client_ca_files: vec!["a.crt b.crt".to_owned(), "c.crt".to_owned()],
            hubble_prefer_ipv6: false,
        }
    }

    #[test]
    fn addresses_are_checked() {
        assert_eq!(config("").listen(), Ok(None));
        let all = config(":4244").listen().unwrap().unwrap();
        assert_eq!(
            all.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["[::]:4244", "0.0.0.0:4244"]
        );
        let one = config("[fd00::1]:4244").listen().unwrap().unwrap();
        assert_eq!(one.addresses(), ["[fd00::1]:4244".parse().unwrap()]);
        for wrong in ["4244", ":", ":70000", "10.0.0.1", "fd00::1:4244x", "host:4244"] {
            assert_eq!(config(wrong).listen(), Err(ListenError::Address(wrong.to_owned())));
        }
    }

    #[test]
    fn tls_needs_a_certificate_and_a_key() {
        let mut tls = ListenConfig { hubble_disable_tls: false, ..config(":4244") };
        assert_eq!(tls.listen(), Err(ListenError::NoFile("hubble-tls-cert-file")));
        tls.hubble_tls_cert_file = "server.crt".into();
        let files = tls.listen().unwrap().unwrap().tls.unwrap();
        assert_eq!(files.client_authorities, ["a.crt", "b.crt", "c.crt"].map(PathBuf::from));
        assert_eq!(files.key, PathBuf::from("server.key"));
    }
}
