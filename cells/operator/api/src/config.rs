//! Options.

use std::path::PathBuf;

use server_tls::TlsFiles;

use crate::error::Error;

/// Addresses of the operator. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Operator API")]
pub struct OperatorApiConfig {
    /// Address of the operator's API, `host:port`; localhost is both of the loopback addresses
    #[flag(default = "localhost:9234")]
    pub operator_api_serve_addr: String,
    /// Serve metrics for Prometheus
    #[flag(default = false)]
    pub enable_metrics: bool,
    /// Where metrics are served with enable-metrics: `host:port`, or `:port` for all addresses
    #[flag(default = ":9963")]
    pub operator_prometheus_serve_addr: String,
    /// Serve metrics by TLS 1.3
    #[flag(default = false)]
    pub operator_prometheus_enable_tls: bool,
    /// Certificate of the server of metrics with its chain, in PEM; a changed file is read
    #[flag(default = "")]
    pub operator_prometheus_tls_cert_file: PathBuf,
    /// Key of the certificate, in PEM; a changed file is read
    #[flag(default = "")]
    pub operator_prometheus_tls_key_file: PathBuf,
    /// Certificates of authorities that sign certificates of clients, in PEM; with them, a client without such a certificate is refused
    #[flag(default = "")]
    pub operator_prometheus_tls_client_ca_files: Vec<String>,
}

impl OperatorApiConfig {
    /// Returns the files of TLS of metrics; `None` without TLS.
    pub(crate) fn tls(&self) -> Result<Option<TlsFiles>, Error> {
        if !self.operator_prometheus_enable_tls {
            return Ok(None);
        }
        let file = |path: &PathBuf, option| match path.as_os_str().is_empty() {
            true => Err(Error::NoFile { option }),
            false => Ok(path.clone()),
        };
        // A list of a ConfigMap may be joined by blanks.
        let authorities =
            self.operator_prometheus_tls_client_ca_files.iter().flat_map(|files| files.split_whitespace());
        Ok(Some(TlsFiles {
            server: "metrics",
            authorities_option: "operator-prometheus-tls-client-ca-files",
            protocol: b"http/1.1",
            certificate: file(&self.operator_prometheus_tls_cert_file, "operator-prometheus-tls-cert-file")?,
            key: file(&self.operator_prometheus_tls_key_file, "operator-prometheus-tls-key-file")?,
            client_authorities: authorities.map(PathBuf::from).collect(),
        }))
    }
}
