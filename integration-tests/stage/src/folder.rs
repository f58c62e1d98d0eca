//! The stage's files, which go even if the test is killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Waits for the end of its input, the end of the process on the other side, then removes the folder. Servers that
/// are being killed may still write to it.
const REMOVE: &str = r#"read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$0" && exit; sleep 0.2; done"#;

/// A folder that a process of its own removes once this value is dropped, or this process has ended.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    remover: Child,
}

impl Folder {
    pub(crate) fn new() -> Result<Self> {
        let path = tempfile::Builder::new().prefix("apiary-stage-").tempdir()?.keep();
        let remover = Command::new("/bin/sh")
            .args(["-c", REMOVE])
            .arg(&path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("/bin/sh")?;
        Ok(Self { path, remover })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Closes its input first.
        let _ = self.remover.wait();
    }
}
