//! Verdicts and rows recorded from Cilium's policy engine. They are stored outside of the repository, in
//! `shared/oracle/policy` of a parent folder, or in the folder that `POLICY_ORACLE` names.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Returns the folder with the recordings; `None` on a machine that has only the checkout.
pub(crate) fn folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("POLICY_ORACLE") {
        return Some(folder.into());
    }
    let parents = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    parents.map(|parent| parent.join("shared/oracle/policy")).find(|folder| folder.is_dir())
}

/// Returns the cases of a file, one a line; `gzip` unpacks compressed ones.
pub(crate) fn cases(folder: &Path, file: &str) -> Vec<Value> {
    let path = folder.join(file);
    let text = match file.ends_with(".gz") {
        true => {
            let output = Command::new("gzip").arg("-dc").arg(&path).output().unwrap();
            assert!(output.status.success(), "gzip -dc {}", path.display());
            output.stdout
        }
        false => std::fs::read(&path).unwrap(),
    };
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}
