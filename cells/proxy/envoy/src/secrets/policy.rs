//! The secrets that rules of policies name.

use std::collections::BTreeSet;
use std::sync::Arc;

use policy_engine::SecretRef;
use tokio::sync::watch;

use super::files::SecretFiles;
use super::secret::Secret;
use super::store::{Lookup, Scope, Store};
use crate::config::EnvoyConfig;

/// Where secrets of rules are.
#[derive(Debug, Clone)]
enum Location {
    /// In a namespace, as copies by the names `NAMESPACE-NAME`, which the operator makes.
    Copies(Arc<str>),
    /// In a namespace, which rules have to name.
    Namespace(Arc<str>),
    /// In the namespaces that rules name.
    Any,
}

/// Looks up the secrets of rules.
#[derive(Debug, Clone)]
pub(crate) struct PolicySecrets {
    store: Store,
    files: SecretFiles,
    location: Location,
    full_tls_context: bool,
}

/// A secret of a rule.
pub(crate) struct Found {
    pub(crate) secret: Arc<Secret>,
    /// Its resource of SDS.
    pub(crate) sds: Option<String>,
}

/// The reason why there is no secret.
pub(crate) enum Absence {
    /// It may exist: its source has not been listed.
    Unknown,
    /// It cannot be used.
    Fault(String),
}

impl PolicySecrets {
    pub(crate) fn new(store: Store, files: SecretFiles, config: &EnvoyConfig) -> PolicySecrets {
        let namespace: Arc<str> = config.policy_secrets_namespace.as_str().into();
        let location = match (config.enable_policy_secrets_sync, namespace.is_empty()) {
            (true, false) => Location::Copies(namespace),
            _ if config.policy_secrets_only_from_secrets_namespace => Location::Namespace(namespace),
            _ => Location::Any,
        };
        PolicySecrets { store, files, location, full_tls_context: config.use_full_tls_context }
    }

    /// Whether TLS that is terminated gets the authorities of secrets as well.
    pub(crate) fn full_tls_context(&self) -> bool {
        self.full_tls_context
    }

    /// Returns the namespace that has the secrets of all rules, if there is one.
    pub(crate) fn namespace(&self) -> Option<&str> {
        match &self.location {
            Location::Copies(namespace) | Location::Namespace(namespace) => Some(&**namespace),
            Location::Any => None,
        }
        .filter(|namespace| !namespace.is_empty())
    }

    /// Returns receivers that change with secrets: of the cluster, and in files.
    pub(crate) fn subscribe(&self) -> [watch::Receiver<()>; 2] {
        [self.store.subscribe(), self.files.subscribe()]
    }

    /// Follows the secrets that rules name, and no others.
    pub(crate) fn set_references(&self, references: BTreeSet<SecretRef>) {
        self.files.set_references(&references);
        if let Location::Any = self.location {
            let scope = |secret: SecretRef| Scope {
                namespace: secret.namespace.into(),
                name: Some(secret.name.into()),
            };
            self.store.set_references(references.into_iter().map(scope).collect());
        }
    }

    /// Returns the secret that a rule names.
    pub(crate) fn find(&self, reference: &SecretRef) -> Result<Found, Absence> {
        let SecretRef { namespace, name: from } = reference;
        match self.files.get(reference) {
            Lookup::Found(secret) => return Ok(Found { secret, sds: None }),
            Lookup::Missing => {}
            Lookup::Unknown => return Err(Absence::Unknown),
        }
        match &self.location {
            Location::Namespace(own) if **own != **namespace => Err(Absence::Fault(format!(
                "secrets are read from the namespace {own:?} only: name one there, or unset \
                     policy-secrets-only-from-secrets-namespace"
            ))),
            Location::Namespace(_) | Location::Any => match self.store.get(namespace, from) {
                Lookup::Found(secret) => Ok(Found { secret, sds: None }),
                Lookup::Missing => Err(Absence::Fault("does not exist: create it".to_owned())),
                Lookup::Unknown => Err(Absence::Unknown),
            },
            Location::Copies(own) => {
                let copy = format!("{namespace}-{from}");
                let mut is_of_another = false;
                let mut names = vec![&copy];
                // A secret that is there needs no copy.
                names.extend((**own == **namespace).then_some(from));
                for name in names {
                    match self.store.get(own, name) {
                        Lookup::Found(secret)
                            if *name == copy && secret.is_copy_of_another(namespace, from) =>
                        {
                            is_of_another = true;
                        }
                        Lookup::Found(secret) => {
                            return Ok(Found { secret, sds: Some(format!("{own}/{name}")) });
                        }
                        Lookup::Missing => {}
                        Lookup::Unknown => return Err(Absence::Unknown),
                    }
                }
                Err(Absence::Fault(match is_of_another {
                    true => {
                        format!("has no copy: {own}/{copy} is that of another secret; rename one of them")
                    }
                    false => format!("has no copy {own}/{copy}, which the operator makes: create the secret"),
                }))
            }
        }
    }
}
