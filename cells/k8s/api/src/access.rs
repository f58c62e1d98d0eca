//! Where the servers are and who asks them: a kubeconfig, or what a pod is given.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use http::Uri;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use serde_json::json;

use crate::error::Error;

/// What a pod's service account has.
pub(crate) const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Where to look for servers and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A kubeconfig file.
    Kubeconfig(PathBuf),
    /// The service account of the pod that the agent runs in, and the address that the pod is given.
    ServiceAccount { server: String, folder: PathBuf },
    /// Only addresses, no credentials.
    Nowhere,
}

/// How to reach an API server.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) config: kube::Config,
    /// Addresses, in the order in which they are tried.
    pub(crate) servers: Vec<Uri>,
    /// Where the credentials are from, for messages.
    pub(crate) credentials: String,
    /// Where the CA's certificates are from, for messages.
    pub(crate) authority: String,
    /// The files that all this was read from.
    pub(crate) files: Vec<PathBuf>,
    /// Differs when the content of a file does.
    pub(crate) content: u64,
}

impl Place {
    /// Reads it. `urls`: addresses that stand in for the one there. Blocks.
    pub(crate) fn access(&self, urls: &[String]) -> Result<Access, Error> {
        let mut kubeconfig = match self {
            Place::Kubeconfig(file) => read(file)?,
            Place::ServiceAccount { server, folder } => account(server, folder),
            Place::Nowhere => account(urls.first().map_or("", String::as_str), Path::new("")),
        };
        if let Some(url) = urls.first() {
            // A kubeconfig without an address is one with these.
            let clusters = kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut());
            clusters.for_each(|cluster| {
                cluster.server = Some(cluster.server.take().unwrap_or_else(|| url.clone()))
            });
        }
        let (files, authority) = self.prepare(&mut kubeconfig)?;
        let content = content(&files);
        let options = KubeConfigOptions::default();
        let reading = kube::Config::from_custom_kubeconfig(kubeconfig.clone(), &options);
        // It awaits nothing: what it reads are files.
        let config = futures::executor::block_on(reading).map_err(|error| self.wrong(&kubeconfig, &error))?;
        if config.proxy_url.is_some() {
            return Err(
                self.file("clusters[].cluster.proxy-url", "proxies are not supported; remove it".to_owned())
            );
        }
        let servers = match urls {
            [] => vec![self.checked("clusters[].cluster.server", &config.cluster_url.to_string())?],
            urls => urls
                .iter()
                .map(|url| uri(url).map_err(|reason| option(url, reason)))
                .collect::<Result<_, _>>()?,
        };
        Ok(Access { config, servers, credentials: self.name(), authority, files, content })
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Place::Kubeconfig(file) => file.display().to_string(),
            Place::ServiceAccount { folder, .. } => folder.join("token").display().to_string(),
            Place::Nowhere => "option k8s-api-server-urls (none)".to_owned(),
        }
    }

    /// Replaces a file with a token by what is in it, and gives the files that matter and the one of the CA.
    fn prepare(&self, kubeconfig: &mut Kubeconfig) -> Result<(Vec<PathBuf>, String), Error> {
        let mut files = match self {
            Place::Kubeconfig(file) => vec![file.clone()],
            _ => Vec::new(),
        };
        let mut authority = format!("{} (or, if it names none, this machine)", self.name());
        let context = kubeconfig
            .contexts
            .iter()
            .find(|context| Some(&context.name) == kubeconfig.current_context.as_ref());
        let context = context.and_then(|context| context.context.clone()).unwrap_or_default();
        for cluster in kubeconfig.clusters.iter().filter(|cluster| cluster.name == context.cluster) {
            let cluster = cluster.cluster.clone().unwrap_or_default();
            if let Some(file) =
                cluster.certificate_authority.filter(|_| cluster.certificate_authority_data.is_none())
            {
                authority.clone_from(&file);
                files.push(file.into());
            }
        }
        for user in kubeconfig.auth_infos.iter_mut().filter(|user| Some(&user.name) == context.user.as_ref())
        {
            let Some(user) = &mut user.auth_info else { continue };
            files.extend(
                [&user.client_certificate, &user.client_key].into_iter().flatten().map(PathBuf::from),
            );
            if let Some(file) = user.token_file.take().filter(|_| user.token.is_none()).map(PathBuf::from) {
                let token = std::fs::read_to_string(&file).map_err(|error| Error::Read {
                    file: file.clone(),
                    reason: error.to_string(),
                    remedy: "it must hold the token of the agent's service account",
                })?;
                user.token = Some(token.trim().to_owned().into());
                files.push(file);
            }
        }
        Ok((files, authority))
    }

    fn checked(&self, key: &str, url: &str) -> Result<Uri, Error> {
        uri(url).map_err(|reason| self.file(key, format!("{url:?} is wrong: {reason}")))
    }

    fn file(&self, key: &str, reason: String) -> Error {
        let file = match self {
            Place::Kubeconfig(file) => file.clone(),
            Place::ServiceAccount { folder, .. } => folder.clone(),
            Place::Nowhere => PathBuf::new(),
        };
        Error::File { file, key: key.to_owned(), reason }
    }

    fn wrong(&self, kubeconfig: &Kubeconfig, error: &KubeconfigError) -> Error {
        let current = kubeconfig.current_context.as_deref().unwrap_or_default();
        match error {
            KubeconfigError::CurrentContextNotSet => {
                let names = named(kubeconfig.contexts.iter().map(|context| &context.name));
                self.file("current-context", format!("is missing; give one of the contexts: {names}"))
            }
            KubeconfigError::LoadContext(name) => {
                let names = named(kubeconfig.contexts.iter().map(|context| &context.name));
                self.file("current-context", format!("there is no context {name:?}; give one of: {names}"))
            }
            KubeconfigError::LoadClusterOfContext(name) => {
                let names = named(kubeconfig.clusters.iter().map(|cluster| &cluster.name));
                let key = format!("contexts[{current}].context.cluster");
                self.file(&key, format!("there is no cluster {name:?}; give one of: {names}"))
            }
            KubeconfigError::MissingClusterUrl => self.file(
                "clusters[].cluster.server",
                "is missing; give the address of the API server, for instance https://10.0.0.1:6443"
                    .to_owned(),
            ),
            KubeconfigError::LoadCertificateAuthority(error) => {
                self.file("certificate-authority", error.to_string())
            }
            KubeconfigError::ParseCertificates(error) => {
                self.file("certificate-authority", format!("holds no certificates in PEM: {error}"))
            }
            KubeconfigError::LoadClientCertificate(error) => {
                self.file("client-certificate", error.to_string())
            }
            KubeconfigError::LoadClientKey(error) => self.file("client-key", error.to_string()),
            other => self.file("kubeconfig", other.to_string()),
        }
    }
}

fn named<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    if names.is_empty() { "(there are none)".to_owned() } else { names.join(", ") }
}

fn read(file: &Path) -> Result<Kubeconfig, Error> {
    Kubeconfig::read_from(file).map_err(|error| match error {
        KubeconfigError::ReadConfig(error, file) => Error::Read {
            file,
            reason: error.to_string(),
            remedy: "option k8s-kubeconfig-path must name a kubeconfig; without the option, the service account of the \
                     agent's pod is used",
        },
        other => {
            // The first line has place and reason, the others show the file, which has secrets.
            let reason = other.to_string().lines().next().unwrap_or_default().to_owned();
            Error::File { file: file.to_owned(), key: "kubeconfig".to_owned(), reason }
        }
    })
}

/// What a pod is given, as a kubeconfig. Files that are not there are left out for an anonymous one.
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

/// The address that a pod is given by its environment.
pub(crate) fn server_of_pod(host: &str, port: &str) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("https://[{host}]:{port}"),
        false => format!("https://{host}:{port}"),
    }
}

fn uri(url: &str) -> Result<Uri, String> {
    let uri: Uri = url.trim().parse().map_err(|error| format!("{error}; give https://ADDRESS:PORT"))?;
    match uri.scheme_str() {
        Some("https" | "http") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        _ => Err("give https://ADDRESS:PORT".to_owned()),
    }
}

fn option(url: &str, reason: String) -> Error {
    Error::Option { option: "k8s-api-server-urls", value: url.to_owned(), reason }
}

fn content(files: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).ok().hash(&mut hasher);
    }
    hasher.finish()
}
