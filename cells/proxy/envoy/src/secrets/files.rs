//! Secrets of rules that are files of the node: `NAMESPACE/NAME/KEY` in a folder, which come before those of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use parking_lot::Mutex;
use policy_engine::SecretRef;
use tokio::sync::watch;
use tokio::time::sleep;

use super::secret::Secret;
use super::store::Lookup;

/// How often files are read again: a certificate is renewed long before it ends.
const INTERVAL: Duration = Duration::from_secs(5);
/// The number of files of a secret, and the size of each in bytes, as a Secret of Kubernetes may have at most.
const MAX_FILES: usize = 64;
const MAX_SIZE: u64 = 1 << 20;

/// The secrets that rules name, as last read; `None` for those without files.
type Known = BTreeMap<SecretRef, Option<Arc<Secret>>>;

/// A secret that a rule names with what its folder has: `None` without files.
type Read = (SecretRef, io::Result<Option<Arc<Secret>>>);

#[derive(Default)]
struct State {
    /// Whether the folder is there; without it nothing is read.
    is_there: bool,
    known: Known,
}

/// The secrets in a folder. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SecretFiles {
    root: Arc<Path>,
    state: Arc<Mutex<State>>,
    references: Arc<watch::Sender<BTreeSet<SecretRef>>>,
    changed: Arc<watch::Sender<()>>,
}

/// Without the secrets.
impl std::fmt::Debug for SecretFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SecretFiles").field(&self.root).finish()
    }
}

impl SecretFiles {
    /// Returns the secrets in a folder. Blocks for a look whether it is there.
    pub(crate) fn new(root: PathBuf) -> SecretFiles {
        let state = State { is_there: root.is_dir(), known: Known::new() };
        SecretFiles {
            root: root.into(),
            state: Arc::new(Mutex::new(state)),
            references: Arc::default(),
            changed: Arc::default(),
        }
    }

    /// Returns a secret; [`Lookup::Unknown`] until it has been read.
    pub(crate) fn get(&self, reference: &SecretRef) -> Lookup {
        let state = self.state.lock();
        match (state.is_there, state.known.get(reference)) {
            (false, _) | (true, Some(None)) => Lookup::Missing,
            (true, Some(Some(secret))) => Lookup::Found(secret.clone()),
            (true, None) => Lookup::Unknown,
        }
    }

    /// Replaces the secrets that are read.
    pub(crate) fn set_references(&self, references: &BTreeSet<SecretRef>) {
        self.references.send_if_modified(|current| {
            let has_changed = current != references;
            if has_changed {
                current.clone_from(references);
            }
            has_changed
        });
    }

    /// Returns a receiver that changes with secrets.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Reads the files of references when these change, and at an interval, until the job is cancelled.
    pub(crate) async fn follow(self, cx: JobCx) -> anyhow::Result<()> {
        let mut references = self.references.subscribe();
        loop {
            let wanted = references.borrow_and_update().clone();
            let root = self.root.clone();
            let (is_there, read) = hive::blocking(move || read_all(&root, &wanted)).await;
            let mut faults = Vec::new();
            let mut known = Known::new();
            for (reference, secret) in read {
                let SecretRef { namespace, name } = &reference;
                // One that cannot be read is absent: that of the cluster may be another one on purpose.
                let secret = secret.unwrap_or_else(|error| {
                    faults.push(format!("{}/{namespace}/{name}: {error}", self.root.display()));
                    None
                });
                known.insert(reference, secret);
            }
            self.report(&faults, &cx);
            let has_changed = {
                let mut state = self.state.lock();
                let has_changed = state.is_there != is_there || state.known != known;
                *state = State { is_there, known };
                has_changed
            };
            if has_changed {
                self.changed.send_replace(());
            }
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                // The sender is that of this value.
                _ = references.changed() => {}
                () = sleep(INTERVAL) => {}
            }
        }
    }

    fn report(&self, faults: &[String], cx: &JobCx) {
        if faults.is_empty() {
            return cx.health.ok(format_args!("Files in {}", self.root.display()));
        }
        let message = "Files of secrets cannot be read, those of the cluster are used";
        let faults = faults.join("; ");
        if cx.health.degraded_anew(message, &faults) {
            tracing::warn!(error = %faults, "{message}");
        }
    }
}

/// Reads the secrets. Returns whether the folder is there as well. Blocks.
fn read_all(root: &Path, wanted: &BTreeSet<SecretRef>) -> (bool, Vec<Read>) {
    if !root.is_dir() {
        return (false, Vec::new());
    }
    let read =
        |reference: &SecretRef| (reference.clone(), read_one(root, reference).map(|one| one.map(Arc::new)));
    (true, wanted.iter().map(read).collect())
}

/// Reads the files of a secret, by their names; `None` if it has none. Blocks.
fn read_one(root: &Path, SecretRef { namespace, name }: &SecretRef) -> io::Result<Option<Secret>> {
    // Policies have the names: none may lead out of the folder.
    if ![namespace, name].into_iter().all(|part| is_name(part)) {
        return Ok(None);
    }
    let entries = match fs::read_dir(root.join(namespace).join(name)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut items = BTreeMap::new();
    for entry in entries {
        let path = entry?.path();
        let key = path.file_name().and_then(|key| key.to_str()).unwrap_or_default().to_owned();
        // Volumes of Kubernetes have links to files beside hidden folders.
        if key.starts_with('.') || !path.is_file() {
            continue;
        }
        if items.len() == MAX_FILES {
            return Err(io::Error::other(format!("has more than {MAX_FILES} files")));
        }
        let mut bytes = Vec::new();
        File::open(&path)?.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_SIZE {
            return Err(io::Error::other(format!("{key} has more than {MAX_SIZE} bytes")));
        }
        items.insert(key, bytes);
    }
    Ok((!items.is_empty()).then(|| Secret::of_items(items)))
}

/// Whether a text is a name of Kubernetes, which is a name of a folder as well.
fn is_name(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(is_known)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn reference(namespace: &str, name: &str) -> SecretRef {
        SecretRef { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_secret_is_the_files_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("certs");
        let read = |namespace: &str, name: &str| read_one(&root, &reference(namespace, name));
        assert!(read("shop", "tls").unwrap().is_none());
        // As Kubernetes mounts a Secret: links to the files of a hidden folder.
        let data = root.join("shop/tls/..2026");
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("tls.crt"), "certificate").unwrap();
        symlink("..2026", root.join("shop/tls/..data")).unwrap();
        symlink("..data/tls.crt", root.join("shop/tls/tls.crt")).unwrap();
        let secret = read("shop", "tls").unwrap().unwrap();
        assert_eq!(secret.get("tls.crt"), Some(&b"certificate"[..]));
        assert_eq!(secret.single(), Some(&b"certificate"[..]), "nothing hidden");
        fs::create_dir(root.join("shop/empty")).unwrap();
        assert!(read("shop", "empty").unwrap().is_none());
        fs::create_dir(root.join("shop/large")).unwrap();
        fs::write(root.join("shop/large/key"), vec![0; 1 + MAX_SIZE as usize]).unwrap();
        assert!(read("shop", "large").err().unwrap().to_string().contains("key has more than"));
    }

    #[test]
    fn names_of_policies_do_not_lead_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("certs");
        fs::create_dir_all(root.join("shop")).unwrap();
        fs::create_dir(folder.path().join("private")).unwrap();
        fs::write(folder.path().join("private/key"), "secret").unwrap();
        for (namespace, name) in
            [("..", "private"), ("shop", "../../private"), (".", "shop"), ("", "shop"), ("/", "etc")]
        {
            assert!(read_one(&root, &reference(namespace, name)).unwrap().is_none(), "{namespace}/{name}");
        }
    }
}
