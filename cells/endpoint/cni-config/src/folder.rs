//! The folder of CNI configurations: writes the own one, searches others, renames them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use state_file::StateFile;

use crate::chain::Chain;
use crate::config::{ChainingMode, CniConfig};
use crate::error::Error;
use crate::template::{Network, render};

/// Extensions that container runtimes read.
const READ_BY_RUNTIMES: [&str; 3] = ["conflist", "conf", "json"];
/// Extension of renamed configurations; Cilium's clean-up renames these back.
const BACKUP: &str = "cilium_bak";
/// The name of configurations of older versions, which would come before a `.conflist`.
const PREVIOUS_NAME: &str = "05-cilium.conf";
/// Maximum size of a configuration in bytes.
const LIMIT: u64 = 1 << 20;
/// Mode of a folder that is created; that of Cilium.
const FOLDER_MODE: u32 = 0o755;

/// The own configuration and its folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    folder: PathBuf,
    config: CniConfig,
    debug: bool,
}

/// The changes of one visit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) is_written: bool,
    pub(crate) renamed: Vec<String>,
}

impl Folder {
    /// Returns the folder of `write-cni-conf-when-ready`.
    pub(crate) fn new(config: &CniConfig, debug: bool) -> Result<Folder, Error> {
        let path = PathBuf::from(&config.write_cni_conf_when_ready);
        let folder =
            path.parent().filter(|folder| !folder.as_os_str().is_empty() && path.file_name().is_some());
        let folder =
            folder.ok_or_else(|| Error::NoFolder { path: config.write_cni_conf_when_ready.clone() })?;
        Ok(Folder { folder: folder.to_owned(), path, config: config.clone(), debug })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes file and folder as desired. Idempotent.
    pub(crate) fn apply(&self) -> Result<Changes, Error> {
        let content = self.content()?;
        let file = StateFile::new(&self.path).mode(0o600).folder_mode(FOLDER_MODE).limit(LIMIT).flushed();
        // A damaged file, such as a link, is replaced, too.
        let is_written = !matches!(file.read(), Ok(Some(old)) if old == content);
        if is_written {
            file.write(&content)?;
        }
        let mut changes = Changes { is_written, ..Changes::default() };
        let others = self.others(&READ_BY_RUNTIMES)?;
        for other in others.into_iter().filter(|path| self.is_renamed(path)) {
            let mut backup = other.clone().into_os_string();
            backup.push(".");
            backup.push(BACKUP);
            // One that cannot be renamed keeps no pod from its network: the own configuration is in place.
            match fs::rename(&other, &backup) {
                Ok(()) => changes.renamed.push(other.display().to_string()),
                Err(error) => {
                    tracing::warn!(path = %other.display(), %error, "Unable to rename a CNI configuration of another plugin");
                }
            }
        }
        Ok(changes)
    }

    /// Whether another configuration is renamed: one of Cilium's older versions, or any if the own one is exclusive.
    fn is_renamed(&self, path: &Path) -> bool {
        self.config.cni_exclusive || path.file_name() == Some(OsStr::new(PREVIOUS_NAME))
    }

    /// Returns the desired content of the file.
    fn content(&self) -> Result<Vec<u8>, Error> {
        if !self.config.read_cni_conf.is_empty() {
            return custom(Path::new(&self.config.read_cni_conf));
        }
        let (chaining, target) = self.config.chaining();
        let network = Network { chaining, debug: self.debug, log_file: &self.config.cni_log_file };
        match target {
            Some(target) if chaining != ChainingMode::Flannel && chaining != ChainingMode::Portmap => {
                Ok(self.target(target)?.with(&network.chained_entry()).into_bytes())
            }
            _ => Ok(render(&network)?.into_bytes()),
        }
    }

    /// Returns the network of a name from another file; the first one for `*`.
    fn target(&self, name: &str) -> Result<Chain, Error> {
        let files = self.others(&["conflist", "conf", "json", BACKUP])?;
        let read = |path: &PathBuf| StateFile::new(path).limit(LIMIT).read_text().ok().flatten();
        let networks = files.iter().filter_map(|path| Chain::parse(&read(path)?));
        let mut matching = networks.filter(|chain| !chain.is_own() && (name == "*" || chain.name == name));
        matching
            .next()
            .ok_or_else(|| Error::NoNetwork { target: name.to_owned(), folder: self.folder.clone() })
    }

    /// Returns the other files of the folder with these extensions, by name.
    fn others(&self, extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read the folder", &self.folder)(error)),
        };
        let has_extension = |path: &PathBuf| {
            path.extension().and_then(OsStr::to_str).is_some_and(|it| extensions.contains(&it))
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| *path != self.path && has_extension(path) && !path.is_dir());
        paths.sort();
        Ok(paths)
    }
}

/// Returns the content of `read-cni-conf`, which must be a network configuration.
fn custom(path: &Path) -> Result<Vec<u8>, Error> {
    let refuse = |reason: String| Error::Custom { path: path.to_owned(), reason };
    // Not by `StateFile`: a mounted ConfigMap is a link.
    let content = fs::read(path).map_err(|error| refuse(format!("cannot be read: {error}")))?;
    let valid = std::str::from_utf8(&content).ok().and_then(Chain::parse);
    match valid {
        Some(_) => Ok(content),
        None => {
            Err(refuse("is no CNI configuration: a JSON object with name and plugins is expected".to_owned()))
        }
    }
}
