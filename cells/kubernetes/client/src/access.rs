//! Addresses of servers and credentials: a kubeconfig, or a pod's service account.

mod certificate;
mod exec;
mod files;
mod parts;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;
use http::uri::Authority;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use serde_json::json;

pub(crate) use self::certificate::Certificate;
use self::files::Files;
use self::parts::{Fault, Parts};
use crate::error::Error;

/// The folder of a pod's service account.
pub(crate) const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Sources of addresses and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A kubeconfig file.
    Kubeconfig(PathBuf),
    /// The service account of the agent's pod, and the address of the pod's environment.
    ServiceAccount { server: String, folder: PathBuf },
    /// Only addresses, no credentials.
    Nowhere,
}

/// The servers' addresses with credentials, read from files.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) config: kube::Config,
    /// The addresses, in the order in which they are tried.
    pub(crate) servers: Vec<Uri>,
    pub(crate) names: Arc<Names>,
    /// The files that were read.
    pub(crate) files: Vec<PathBuf>,
    /// A hash of the contents of the files, to detect changes.
    pub(crate) content: u64,
    /// The time at which the credentials expire, if known.
    pub(crate) expires: Option<Timestamp>,
}

/// The locations of the credentials, for messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// The location of the credentials as a whole.
    pub(crate) credentials: String,
    /// The key of the user.
    pub(crate) user: String,
    /// The key of the cluster; `None` for a service account.
    pub(crate) cluster: Option<String>,
    /// The CA's certificates.
    pub(crate) authority: String,
    /// The client's certificate, if there is one.
    pub(crate) certificate: Option<Certificate>,
}

impl Place {
    /// Reads addresses and credentials. `urls` replace the address in the file. Blocks.
    pub(crate) fn access(&self, urls: &[String]) -> Result<Access, Error> {
        let mut files = Files::default();
        let mut kubeconfig = match self {
            Place::Kubeconfig(file) => read(file, &mut files)?,
            Place::ServiceAccount { server, folder } => account(server, folder),
            Place::Nowhere => account(urls.first().map_or("", String::as_str), Path::new("")),
        };
        let servers = urls
            .iter()
            .map(|url| uri(url).map_err(|reason| self.setting(url, reason)))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(url) = urls.first() {
            // A kubeconfig without an address is valid if the option has addresses.
            let clusters = kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut());
            clusters.for_each(|cluster| {
                cluster.server = Some(cluster.server.take().unwrap_or_else(|| url.clone()))
            });
        }
        let Parts { user, cluster, authority, certificate, expires } =
            parts::check(&mut kubeconfig, &mut files).map_err(|fault| match fault {
                Fault::Key(key, reason) => self.file(&key, reason),
                Fault::Server(key, server, reason) => match self {
                    Place::ServiceAccount { .. } => self.setting(&server, reason),
                    _ => self.file(&key, format!("{server:?} is wrong: {reason}")),
                },
                Fault::File(error) => error,
            })?;
        let has_keys = matches!(self, Place::Kubeconfig(_));
        let (key, authority) = match authority {
            Some(file) if has_keys => {
                let key = format!("certificate-authority: {}", file.display());
                (key.clone(), format!("{} at {cluster}.{key}", self.name()))
            }
            Some(file) => (format!("certificate-authority: {}", file.display()), file.display().to_string()),
            None if has_keys => {
                let key = "certificate-authority-data".to_owned();
                let machine = "or, if it is not there, of this machine";
                (key.clone(), format!("{} at {cluster}.{key} ({machine})", self.name()))
            }
            None => ("certificate-authority-data".to_owned(), "this machine".to_owned()),
        };
        // `now_or_never`: the future only reads files, so it never waits.
        let options = KubeConfigOptions::default();
        let reading = kube::Config::from_custom_kubeconfig(kubeconfig, &options);
        let config = futures::executor::block_on(reading).map_err(|error| match error {
            KubeconfigError::LoadCertificateAuthority(_) | KubeconfigError::ParseCertificates(_) => {
                self.file(&key, format!("{NO_CERTIFICATES}: {}", root_of(&error)))
            }
            _ => self.file("kubeconfig", root_of(&error)),
        })?;
        if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            return Err(self.file(&key, NO_CERTIFICATES.to_owned()));
        }
        if config.proxy_url.is_some() {
            let reason = "proxies are not supported; unset it".to_owned();
            return Err(self.file("environment variable HTTPS_PROXY", reason));
        }
        let servers = if servers.is_empty() { vec![config.cluster_url.clone()] } else { servers };
        let content = files.content();
        let cluster = has_keys.then(|| format!("{cluster} in {}", self.name()));
        let names = Names { credentials: self.name(), user, cluster, authority, certificate };
        Ok(Access { config, servers, names: Arc::new(names), files: files.names, content, expires })
    }

    /// Returns its name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Place::Kubeconfig(file) => file.display().to_string(),
            Place::ServiceAccount { folder, .. } => folder.join("token").display().to_string(),
            Place::Nowhere => format!("{URLS} (none)"),
        }
    }

    /// Returns the error of an invalid value at a key of the file.
    pub(crate) fn file(&self, key: &str, reason: String) -> Error {
        let file = match self {
            Place::Kubeconfig(file) => file.clone(),
            Place::ServiceAccount { folder, .. } => folder.clone(),
            Place::Nowhere => PathBuf::new(),
        };
        Error::File { file, key: key.to_owned(), reason }
    }

    /// Returns the error of an invalid address that is in no file.
    fn setting(&self, value: &str, reason: String) -> Error {
        let setting = match self {
            Place::ServiceAccount { server, .. } if server == value => SERVICE,
            _ => URLS,
        };
        Error::Setting { setting, value: value.to_owned(), reason }
    }
}

const NO_CERTIFICATES: &str = "holds no certificates in PEM";

/// The source of the servers' addresses.
const URLS: &str = "option k8s-api-server-urls";

/// The service account's folder in a pod.
const SERVICE: &str = "environment variables KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT";

fn read(file: &Path, files: &mut Files) -> Result<Kubeconfig, Error> {
    // Read first, so that a later change of the file is detected as one.
    files.read(
        file,
        "option k8s-kubeconfig-path must name a kubeconfig; without the option, the service account of the agent's pod is \
         used",
    )?;
    Kubeconfig::read_from(file).map_err(|error| {
        // Only the first line, with location and reason: the others quote the file, which contains secrets.
        let reason = root_of(&error).lines().next().unwrap_or_default().to_owned();
        Error::File { file: file.to_owned(), key: "kubeconfig".to_owned(), reason }
    })
}

/// Returns the root cause of an error.
pub(crate) fn root_of(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}

/// Returns a service account as a kubeconfig. Without its files the kubeconfig is anonymous.
fn account(server: &str, folder: &Path) -> Kubeconfig {
    let anonymous = folder.as_os_str().is_empty();
    let (cluster, user) = match anonymous {
        true => (json!({"server": server}), json!({})),
        false => (
            json!({"server": server, "certificate-authority": folder.join("ca.crt")}),
            json!({"tokenFile": folder.join("token")}),
        ),
    };
    let kubeconfig = json!({
        "clusters": [{"name": "pod", "cluster": cluster}],
        "users": [{"name": "pod", "user": user}],
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        "current-context": "pod",
    });
    serde_json::from_value(kubeconfig).unwrap_or_default()
}

/// Returns the address of a pod's environment.
pub(crate) fn server_of_pod(host: &str, port: &str) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("https://[{host}]:{port}"),
        false => format!("https://{host}:{port}"),
    }
}

fn uri(url: &str) -> Result<Uri, String> {
    let uri: Uri = url.trim().parse().map_err(|error| format!("{error}; give https://ADDRESS:PORT"))?;
    // The authority has a valid port, or consists of the host only.
    let whole = |authority: &Authority| authority.port().is_some() || authority.as_str() == authority.host();
    match uri.scheme_str() {
        Some("https" | "http") if uri.authority().is_some_and(|a| !a.host().is_empty() && whole(a)) => {
            Ok(uri)
        }
        _ => Err("give https://ADDRESS:PORT".to_owned()),
    }
}
