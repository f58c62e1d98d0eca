//! The options, in Cilium's spelling. Changes take effect at the next start, those of the file at once.

use std::path::PathBuf;

use server_tls::TlsFiles;

use crate::spec::BadMetrics;

/// Metrics of flows.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Hubble")]
pub struct HubbleMetricsConfig {
    /// Address on which metrics of flows are served, such as :9965; none if empty, and then nothing is counted
    #[flag(default = "")]
    pub hubble_metrics_server: String,
    /// Metrics of flows, separated by spaces: NAME[:OPTION[=VALUE|VALUE]][;OPTION...]
    #[flag(default = "")]
    pub hubble_metrics: String,
    /// YAML file with metrics of flows, which is followed while the agent runs
    #[flag(default = "")]
    pub hubble_dynamic_metrics_config_path: String,
    /// Serve metrics of flows as OpenMetrics to clients that accept it, with exemplars of metrics with the option exemplars
    #[flag(default = false)]
    pub enable_hubble_open_metrics: bool,
    /// Serve metrics of flows by TLS 1.3
    #[flag(default = false)]
    pub hubble_metrics_server_enable_tls: bool,
    /// Certificate of the server of metrics of flows, in PEM; a changed file is read
    #[flag(default = "")]
    pub hubble_metrics_server_tls_cert_file: PathBuf,
    /// Key of the certificate, in PEM
    #[flag(default = "")]
    pub hubble_metrics_server_tls_key_file: PathBuf,
    /// Certificates of authorities that sign certificates of clients, in PEM; with them, a client without such a certificate is refused
    #[flag(default = "")]
    pub hubble_metrics_server_tls_client_ca_files: Vec<String>,
}

impl HubbleMetricsConfig {
    /// Returns the files of TLS; `None` without TLS.
    pub(crate) fn tls(&self) -> Result<Option<TlsFiles>, BadMetrics> {
        if !self.hubble_metrics_server_enable_tls {
            return Ok(None);
        }
        let file = |path: &PathBuf, option| match path.as_os_str().is_empty() {
            true => Err(BadMetrics::NoFile(option)),
            false => Ok(path.clone()),
        };
        // A list of the chart may be joined by blanks.
        let authorities =
            self.hubble_metrics_server_tls_client_ca_files.iter().flat_map(|files| files.split_whitespace());
        Ok(Some(TlsFiles {
            server: "hubble-metrics",
            authorities_option: "hubble-metrics-server-tls-client-ca-files",
            protocol: b"http/1.1",
            certificate: file(
                &self.hubble_metrics_server_tls_cert_file,
                "hubble-metrics-server-tls-cert-file",
            )?,
            key: file(&self.hubble_metrics_server_tls_key_file, "hubble-metrics-server-tls-key-file")?,
            client_authorities: authorities.map(PathBuf::from).collect(),
        }))
    }
}
