//! The secrets: read and written, with temporary errors retried.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use k8s_types::core::Secret;
use k8s_types::{Api, ApiError, Key, Kind};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::authority::{self, Authority, Signed};
use crate::config::{CertgenConfig, Certificate};
use crate::error::Error;

/// The pause before a request is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Makes all certificates.
pub(crate) async fn write_all(
    api: Arc<dyn Api>,
    config: &CertgenConfig,
    certificates: &[Certificate],
) -> Result<(), Error> {
    let server = Server { api, limit: config.timeout, end: Instant::now() + config.timeout };
    let now = Timestamp::now();
    let authority = server.authority(config, now).await?;
    // All are signed before the first is written.
    let mut signed = Vec::new();
    for certificate in certificates {
        let secret = format!("{}/{}", certificate.namespace, certificate.name);
        let made = authority.sign(certificate, now);
        signed.push((certificate, made.map_err(|source| Error::Certificate { secret, source })?));
    }
    for (certificate, made) in signed {
        server.put(certificate, &authority, &made).await?;
        let (namespace, name) = (&certificate.namespace, &certificate.name);
        tracing::info!(namespace, name, "The certificate is written");
    }
    Ok(())
}

struct Server {
    api: Arc<dyn Api>,
    limit: Duration,
    end: Instant,
}

impl Server {
    /// Returns the authority of the secret; else makes one and stores it.
    async fn authority(&self, config: &CertgenConfig, now: Timestamp) -> Result<Authority, Error> {
        let (namespace, name) = (&config.ca_secret_namespace, &config.ca_secret_name);
        let secret = format!("{namespace}/{name}");
        let key = Key::new(namespace, name);
        if config.ca_reuse_secret
            && let Some(authority) = self.stored_authority(&key, &secret, now).await?
        {
            return Ok(authority);
        }
        if !config.ca_generate {
            return Err(Error::NoAuthority { secret });
        }
        let made = authority::new(&config.ca_common_name, config.ca_validity_duration, now);
        let made =
            made.map_err(|error| Error::Certificate { secret: secret.clone(), source: error.into() })?;
        let object =
            object(namespace, name, "Opaque", &[("ca.crt", &made.certificate), ("ca.key", &made.key)]);
        match self.request(&secret, || self.api.create(Kind::Secret, object.clone())).await? {
            Ok(_) => tracing::info!(namespace, name, "A new authority is created"),
            // Another Job was faster: certificates are signed by one authority.
            Err(ApiError::AlreadyExists(_)) if config.ca_reuse_secret => {
                let stored = self.stored_authority(&key, &secret, now).await?;
                return stored.ok_or(Error::NoAuthority { secret });
            }
            Err(ApiError::AlreadyExists(_)) => {
                let updated = self.request(&secret, || self.api.update(Kind::Secret, object.clone())).await?;
                updated.map_err(|source| Error::Request { secret: secret.clone(), source })?;
            }
            Err(source) => return Err(Error::Request { secret, source }),
        }
        let read = Authority::read(made.certificate.as_bytes(), made.key.as_bytes(), now);
        read.map_err(|reason| Error::Authority { secret, reason })
    }

    async fn stored_authority(
        &self,
        key: &Key,
        secret: &str,
        now: Timestamp,
    ) -> Result<Option<Authority>, Error> {
        let json = match self.request(secret, || self.api.get(Kind::Secret, key)).await? {
            Ok(json) => json,
            Err(ApiError::NotFound(_)) => return Ok(None),
            Err(source) => return Err(Error::Request { secret: secret.to_owned(), source }),
        };
        let wrong = |reason: String| Error::Authority { secret: secret.to_owned(), reason };
        let object: Secret = serde_json::from_slice(&json).map_err(|error| wrong(error.to_string()))?;
        let data = |name: &str| {
            let text = object.data.get(name).ok_or_else(|| wrong(format!("{name}: is missing")))?;
            STANDARD.decode(text.as_str()).map_err(|error| wrong(format!("{name}: {error}")))
        };
        Authority::read(&data("ca.crt")?, &data("ca.key")?, now).map(Some).map_err(wrong)
    }

    /// Creates or replaces the secret of a certificate. Its rights are to create secrets, and to update this one.
    async fn put(
        &self,
        certificate: &Certificate,
        authority: &Authority,
        made: &Signed,
    ) -> Result<(), Error> {
        let secret = format!("{}/{}", certificate.namespace, certificate.name);
        let data =
            [("ca.crt", &authority.certificate), ("tls.crt", &made.certificate), ("tls.key", &made.key)];
        let object = object(&certificate.namespace, &certificate.name, "kubernetes.io/tls", &data);
        let update = || self.api.update(Kind::Secret, object.clone());
        let mut written = self.request(&secret, update).await?;
        if let Err(ApiError::NotFound(_)) = written {
            written = self.request(&secret, || self.api.create(Kind::Secret, object.clone())).await?;
        }
        if let Err(ApiError::AlreadyExists(_)) = written {
            written = self.request(&secret, update).await?;
        }
        written.map(drop).map_err(|source| Error::Request { secret, source })
    }

    /// Sends a request until its answer is no temporary error.
    async fn request<F>(&self, secret: &str, send: impl Fn() -> F) -> Result<Result<Bytes, ApiError>, Error>
    where
        F: Future<Output = Result<Bytes, ApiError>>,
    {
        let mut last = format!("secret {secret}: no answer");
        loop {
            let timeout = |last: String| Error::Timeout { seconds: self.limit.as_secs(), last };
            match tokio::time::timeout_at(self.end, send()).await {
                Ok(Err(error)) if error.is_temporary() => {
                    last = format!("secret {secret}: {error}");
                    tracing::info!(%error, secret, "The request is repeated");
                    if Instant::now() + RETRY_INTERVAL > self.end {
                        return Err(timeout(last));
                    }
                    sleep(RETRY_INTERVAL).await;
                }
                Ok(answer) => return Ok(answer),
                Err(_) => return Err(timeout(last)),
            }
        }
    }
}

/// Returns a secret as JSON.
fn object(namespace: &str, name: &str, kind: &str, data: &[(&str, &String)]) -> Bytes {
    let data: serde_json::Map<String, Value> =
        data.iter().map(|(key, text)| ((*key).to_owned(), json!(STANDARD.encode(text)))).collect();
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "type": kind, "data": data,
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "cilium"}},
    });
    object.to_string().into()
}
