//! Programs that scripts of the repository build or fetch.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of the programs that a script of `tools` has brought; `None` if it has not: that takes minutes, and
/// `make test FULL=1` does it.
///
/// # Panics
/// When there is no such script.
#[must_use]
pub fn brought_by(script: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tools").join(script);
    let output = Command::new(script).arg("there").output().unwrap();
    let folder = String::from_utf8(output.stdout).unwrap();
    output.status.success().then(|| folder.trim_end().into())
}
