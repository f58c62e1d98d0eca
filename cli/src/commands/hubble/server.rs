//! The server of the commands: options, environment, the place beside the agent's socket.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use hubble_api::{ClientTls, Server};

use crate::client::Agent;

/// The name of the socket, beside that of the API.
const SOCKET: &str = "hubble.sock";

/// The folder of the socket for an API on TCP.
const DEFAULT_FOLDER: &str = "/var/run/cilium";

/// Where the server is, for all clients.
const SERVER_VARIABLE: &str = "HUBBLE_SERVER";

#[derive(Debug, Default, Args)]
pub(crate) struct ServerOptions {
    /// Server: unix:///PATH, HOST:PORT or tls://HOST:PORT (default: HUBBLE_SERVER, else beside the agent's socket)
    #[arg(long, global = true, value_name = "ADDRESS")]
    server: Option<String>,
    /// Connect to HOST:PORT by TLS
    #[arg(long, global = true)]
    tls: bool,
    /// Certificates of authorities that sign those of servers
    #[arg(long, global = true, value_name = "FILES", value_delimiter = ',')]
    tls_ca_cert_files: Vec<PathBuf>,
    /// Certificate of this client
    #[arg(long, global = true, value_name = "FILE")]
    tls_client_cert_file: Option<PathBuf>,
    /// Key of the certificate of this client
    #[arg(long, global = true, value_name = "FILE")]
    tls_client_key_file: Option<PathBuf>,
    /// Name in the server's certificate (default: HOST)
    #[arg(long, global = true, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Accept every certificate
    #[arg(long, global = true)]
    tls_allow_insecure: bool,
}

impl ServerOptions {
    /// Returns the server of the option, of `HUBBLE_SERVER`, or beside the socket of the API.
    pub(crate) fn server(&self, agent: &Agent) -> anyhow::Result<Server> {
        let variable = std::env::var(SERVER_VARIABLE).ok().filter(|server| !server.is_empty());
        let server = match self.server.clone().or(variable) {
            Some(server) => server.parse()?,
            None => Server::Unix(match agent.socket() {
                Some(api) => api.with_file_name(SOCKET),
                None => PathBuf::from(DEFAULT_FOLDER).join(SOCKET),
            }),
        };
        self.with_tls(server)
    }

    fn with_tls(&self, server: Server) -> anyhow::Result<Server> {
        if self.tls_client_cert_file.is_some() != self.tls_client_key_file.is_some() {
            bail!("--tls-client-cert-file and --tls-client-key-file need each other");
        }
        let tls = ClientTls {
            authorities: self.tls_ca_cert_files.clone(),
            identity: self.tls_client_cert_file.clone().zip(self.tls_client_key_file.clone()),
            server_name: self.tls_server_name.clone(),
            is_insecure: self.tls_allow_insecure,
        };
        match server {
            Server::Unix(_) if self.tls => bail!("--tls: a unix socket has no TLS"),
            Server::Tls(address, _) => Ok(Server::Tls(address, tls)),
            Server::Tcp(address) if self.tls => Ok(Server::Tls(address, tls)),
            server if tls == ClientTls::default() => Ok(server),
            _ => bail!("options of TLS need --tls, or a server tls://HOST:PORT"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_tls_are_for_servers_with_tls() {
        let server = |address: &str, options: ServerOptions| options.with_tls(address.parse().unwrap());
        let plain = ServerOptions::default;
        assert_eq!(server("a:1", plain()).unwrap(), Server::Tcp("a:1".to_owned()));
        let files = || ServerOptions { tls_ca_cert_files: vec!["ca.crt".into()], ..plain() };
        let tls = ClientTls { authorities: vec!["ca.crt".into()], ..ClientTls::default() };
        assert_eq!(server("tls://a:1", files()).unwrap(), Server::Tls("a:1".to_owned(), tls.clone()));
        let by_option = ServerOptions { tls: true, ..files() };
        assert_eq!(server("a:1", by_option).unwrap(), Server::Tls("a:1".to_owned(), tls));
        assert!(server("a:1", files()).unwrap_err().to_string().contains("need --tls"));
        let unix = ServerOptions { tls: true, ..plain() };
        assert!(server("unix:///a", unix).unwrap_err().to_string().contains("has no TLS"));
    }
}
