//! Settings as files below `/proc/sys`: the target of the reconciler.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use reconciler::{OpCx, OpResult, Ops};
use statedb::Rows;

use crate::{Name, Setting};

/// The files of one mounted procfs.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    procfs: PathBuf,
}

impl Files {
    pub(crate) fn new(procfs: impl Into<PathBuf>) -> Self {
        Self { procfs: procfs.into() }
    }

    /// Reads the value in force, without white space at its end.
    pub(crate) fn read(&self, name: &Name) -> io::Result<String> {
        let text = fs::read_to_string(name.path(&self.procfs))?;
        Ok(text.trim_end().to_owned())
    }

    /// Writes a value unless it is in force already: a read-only file with the desired value is no error.
    pub(crate) fn write(&self, name: &Name, value: &str) -> Result<(), String> {
        if self.read(name).is_ok_and(|current| is_equal(&current, value)) {
            return Ok(());
        }
        let path = name.path(&self.procfs);
        let file = fs::OpenOptions::new().write(true).truncate(true).open(&path);
        file.and_then(|mut file| file.write_all(value.as_bytes())).map_err(|error| explain(&path, &error))
    }
}

/// Compares word by word: the kernel separates the values of a list by tabs.
fn is_equal(current: &str, value: &str) -> bool {
    current.split_whitespace().eq(value.split_whitespace())
}

fn explain(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => format!("{path} does not exist: the kernel has no such setting"),
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("{path} is read-only: set it on the host, or mount it writable")
        }
        io::ErrorKind::PermissionDenied => format!("{path}: not permitted, root is needed"),
        io::ErrorKind::InvalidInput => format!("{path}: the kernel refuses this value"),
        _ => format!("{path}: {error}"),
    }
}

/// Logs a failure, at a higher level if the setting is required or its absence has a consequence.
fn log_failure(setting: &Setting, reason: &str) {
    let Setting { name, value, warn, .. } = setting;
    if setting.optional && warn.is_empty() {
        tracing::debug!(%name, value, reason, "Kernel setting not written");
    } else {
        tracing::warn!(%name, value, reason, meaning = warn, "Kernel setting not written");
    }
}

impl Ops<Setting> for Files {
    fn update(&mut self, _: &OpCx<'_>, setting: &mut Setting) -> OpResult {
        let result = self.write(&setting.name, &setting.value);
        // The reconciler retries forever: log a failure once, not at each attempt.
        if let Err(reason) = &result
            && setting.status.error() != Some(reason)
        {
            log_failure(setting, reason);
        }
        Ok(result?)
    }

    /// Keeps the value: the kernel's default is not known, and other processes may rely on the value in force.
    fn delete(&mut self, _: &OpCx<'_>, _: &Setting) -> OpResult {
        Ok(())
    }

    fn prune(&mut self, _: &OpCx<'_>, _: Rows<'_, Setting>) -> OpResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_different_values_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path());
        let name: Name = "net.ipv4.tcp_rmem".parse().unwrap();
        let path = name.path(dir.path());
        let missing = files.write(&name, "1").unwrap_err();
        assert!(missing.ends_with("does not exist: the kernel has no such setting"), "{missing}");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "4096\t131072\t6291456\n").unwrap();
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        files.write(&name, "4096 131072 6291456").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        files.write(&name, "1 2 3").unwrap();
        assert_eq!(files.read(&name).unwrap(), "1 2 3");
    }
}
