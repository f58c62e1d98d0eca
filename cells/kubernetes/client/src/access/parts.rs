//! Validation of the parts of a kubeconfig that the current context uses: problems are reported with their key.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kube::config::{AuthInfo, Cluster, Kubeconfig};

use super::certificate::Certificate;
use super::exec;
use super::files::Files;
use super::uri;
use crate::error::Error;

/// The location of an invalid value, with the reason.
pub(super) enum Fault {
    /// At a key, with a valid example.
    Key(String, String),
    /// The server's address: key, value, and a valid example.
    Server(String, String, String),
    /// A file that the kubeconfig names.
    File(Error),
}

/// Derived values of a kubeconfig.
pub(super) struct Parts {
    /// The key of the user's entry.
    pub(super) user: String,
    /// The key of the cluster's entry.
    pub(super) cluster: String,
    /// The file of the CA's certificates.
    pub(super) authority: Option<PathBuf>,
    /// The client's certificate.
    pub(super) certificate: Option<Certificate>,
    /// The time at which the credentials of a command expire.
    pub(super) expires: Option<Timestamp>,
}

fn fault<T>(key: impl Into<String>, reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Key(key.into(), reason.into()))
}

/// Validates the parts in use, and replaces a token file by its content.
pub(super) fn check(kubeconfig: &mut Kubeconfig, files: &mut Files) -> Result<Parts, Fault> {
    if let Some(kind) = kubeconfig.kind.as_deref().filter(|kind| *kind != "Config") {
        return fault("kind", format!("{kind:?} is wrong: give a kubeconfig, whose kind is Config"));
    }
    let names = named(kubeconfig.contexts.iter().map(|context| &context.name));
    let current = kubeconfig.current_context.clone().unwrap_or_default();
    if current.is_empty() {
        return fault("current-context", format!("is missing; give one of the contexts: {names}"));
    }
    let context = kubeconfig.contexts.iter().find(|context| context.name == current);
    let Some(context) = context else {
        return fault("current-context", format!("there is no context {current:?}; give one of: {names}"));
    };
    let key = format!("contexts[{current}].context");
    let Some(context) = context.context.clone() else {
        return fault(key, "is missing; give cluster and user");
    };

    let names = named(kubeconfig.clusters.iter().map(|cluster| &cluster.name));
    let Some(cluster) = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster) else {
        let reason = format!("there is no cluster {:?}; give one of: {names}", context.cluster);
        return fault(format!("{key}.cluster"), reason);
    };
    let cluster_key = format!("clusters[{}].cluster", context.cluster);
    let authority = check_cluster(cluster.cluster.as_ref(), &cluster_key, files)?;

    let names = named(kubeconfig.auth_infos.iter().map(|user| &user.name));
    // Without a user the client is anonymous.
    let Some(name) = context.user.filter(|name| !name.is_empty()) else {
        let (user, cluster) = (format!("{key}.user"), cluster_key);
        return Ok(Parts { user, cluster, authority, certificate: None, expires: None });
    };
    let Some(user) = kubeconfig.auth_infos.iter_mut().find(|user| user.name == name) else {
        return fault(format!("{key}.user"), format!("there is no user {name:?}; give one of: {names}"));
    };
    let mut key = format!("users[{name}].user");
    let (mut certificate, mut expires) = (None, None);
    if let Some(user) = &mut user.auth_info {
        let command = user.exec.as_ref().and_then(|exec| exec.command.clone());
        expires = ask_command(user, cluster.cluster.as_ref(), &key, files)?;
        certificate = check_user(user, &key, files)?;
        if let Some(command) = command {
            key = format!("{key}.exec.command: {command:?}");
        }
    }
    Ok(Parts { user: key, cluster: cluster_key, authority, certificate, expires })
}

/// Returns the file of the CA's certificates.
fn check_cluster(cluster: Option<&Cluster>, key: &str, files: &mut Files) -> Result<Option<PathBuf>, Fault> {
    let server = cluster.and_then(|cluster| cluster.server.as_deref()).unwrap_or_default();
    if server.is_empty() {
        return fault(
            format!("{key}.server"),
            "is missing; give the address of the API server, for instance https://10.0.0.1:6443",
        );
    }
    uri(server).map_err(|reason| Fault::Server(format!("{key}.server"), server.to_owned(), reason))?;
    let Some(cluster) = cluster else { return Ok(None) };
    if cluster.proxy_url.as_ref().is_some_and(|url| !url.is_empty()) {
        return fault(format!("{key}.proxy-url"), "proxies are not supported; remove it");
    }
    let file = cluster.certificate_authority.as_ref().map(PathBuf::from);
    let Some(file) = file.filter(|_| cluster.certificate_authority_data.is_none()) else { return Ok(None) };
    files.read(&file, "it must hold the certificates of the cluster's CA in PEM").map_err(Fault::File)?;
    Ok(Some(file))
}

/// Replaces a command by the credentials that it prints; returns the time at which they expire.
fn ask_command(
    user: &mut AuthInfo,
    cluster: Option<&Cluster>,
    key: &str,
    files: &mut Files,
) -> Result<Option<Timestamp>, Fault> {
    let Some(exec) = user.exec.take() else { return Ok(None) };
    let command = exec.command.clone().unwrap_or_default();
    let given = exec::run(&exec, cluster, exec::LIMIT)
        .map_err(|reason| Fault::Key(format!("{key}.exec.command: {command:?}"), reason))?;
    let data =
        [given.token.as_deref(), given.client_certificate_data.as_deref(), given.client_key_data.as_deref()];
    data.into_iter().flatten().for_each(|data| files.note(data.as_bytes()));
    if let Some(token) = given.token {
        user.token = Some(token.trim().to_owned().into());
    }
    if let (Some(certificate), Some(private)) = (given.client_certificate_data, given.client_key_data) {
        (user.client_certificate, user.client_key) = (None, None);
        user.client_certificate_data = Some(BASE64_STANDARD.encode(certificate));
        user.client_key_data = Some(BASE64_STANDARD.encode(private).into());
    }
    Ok(given.expires)
}

/// Returns the client's certificate.
fn check_user(user: &mut AuthInfo, key: &str, files: &mut Files) -> Result<Option<Certificate>, Fault> {
    if user.auth_provider.is_some() {
        return fault(
            format!("{key}.auth-provider"),
            "is not supported; give a token, a client certificate or exec instead",
        );
    }
    let pairs = [
        (&user.client_certificate, user.client_certificate_data.is_some(), "client-certificate"),
        (&user.client_key, user.client_key_data.is_some(), "client-key"),
    ];
    let has = pairs.map(|(file, data, _)| file.is_some() || data);
    if let Some((_, (.., name))) = has.iter().zip(pairs).find(|(has, _)| !**has)
        && has.contains(&true)
    {
        return fault(format!("{key}.{name}"), "is missing; a certificate and its key go together");
    }
    let mut certificate = None;
    for (file, _, name) in pairs.into_iter().filter(|(_, data, _)| !data) {
        let remedy = "it must hold the client's certificate, or its key, in PEM";
        let Some(file) = file else { continue };
        let content = files.read(Path::new(file), remedy).map_err(Fault::File)?;
        if name == "client-certificate" {
            certificate = Some(Certificate::of_pem(format!("{key}.{name}: {file}"), &content));
        }
    }
    if let Some(data) = &user.client_certificate_data {
        certificate = Some(Certificate::of_data(format!("{key}.client-certificate-data"), data));
    }
    if user.token.is_some() {
        // `SecretString` exposes its content only when serialized.
        let written = serde_json::to_value(&*user).unwrap_or_default();
        let token = written["token"].as_str().unwrap_or_default();
        check_token(token).map_err(|reason| Fault::Key(format!("{key}.token"), reason.to_owned()))?;
        return Ok(certificate);
    }
    if let Some(file) = user.token_file.take().map(PathBuf::from) {
        let remedy = "it must hold the token of the agent's service account, and nothing else";
        let content = files.read(&file, remedy).map_err(Fault::File)?;
        let token = String::from_utf8_lossy(&content).trim().to_owned();
        check_token(&token)
            .map_err(|reason| Fault::File(Error::Read { file, reason: reason.to_owned(), remedy }))?;
        user.token = Some(token.into());
    }
    Ok(certificate)
}

/// Checks that a token is a valid header value. The error must not quote it, since it is a secret.
fn check_token(token: &str) -> Result<(), &'static str> {
    match token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true if token.is_empty() => Err("it is empty"),
        true => Ok(()),
        false => Err("it is not one word of printable ASCII, which tokens are"),
    }
}

fn named<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    if names.is_empty() { "(there are none: is this a kubeconfig?)".to_owned() } else { names.join(", ") }
}
