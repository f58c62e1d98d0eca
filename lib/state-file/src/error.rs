//! Errors of state files, with their remedies.

use std::io;
use std::path::{Path, PathBuf};

/// An error of reading or writing a state file. Its text names the file, the operation, the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action} {}: {source}{}", path.display(), remedy(source, path))]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The path it was applied to.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The path exists, but is not a readable file of the expected form.
    #[error("{} is damaged: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// The file was written by a newer agent.
    #[error(
        "{} has version {found}, this agent knows version {known}: start an agent that knows it, such as the one that \
         wrote it; to give up what it holds ({holds}) instead, move it away", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest known version.
        known: u32,
        /// The data that would be lost without the file.
        holds: &'static str,
    },
}

impl Error {
    /// Returns a closure for `map_err` that adds the failed operation and its path.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }

    pub(crate) fn damaged(path: &Path, problem: impl ToString) -> Error {
        Error::Damaged { path: path.to_owned(), problem: problem.to_string() }
    }

    /// Whether a later retry can succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Io { .. })
    }

    /// Returns the path of the affected file or folder.
    pub fn path(&self) -> &Path {
        match self {
            Error::Io { path, .. } | Error::Damaged { path, .. } | Error::Newer { path, .. } => path,
        }
    }
}

/// Returns the remedy as the end of an error text; empty where the cause already implies it.
fn remedy(error: &io::Error, path: &Path) -> String {
    let folder = path.parent().unwrap_or(path).display();
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => format!("; make room on the file system of {folder}"),
        Some(libc::EROFS) => format!("; mount the file system of {folder} writable, or set state-dir"),
        Some(libc::EACCES | libc::EPERM) => format!("; let the agent's user read and write {folder}"),
        Some(libc::EMFILE) => "; raise the agent's limit of open files (LimitNOFILE, ulimit -n)".to_owned(),
        Some(libc::ENFILE) => "; raise the machine's limit of open files (sysctl fs.file-max)".to_owned(),
        Some(libc::EISDIR | libc::ENOTEMPTY) => "; remove the folder that is in the file's place".to_owned(),
        Some(libc::ENOTDIR) => format!("; remove what is in the place of the folder {folder}"),
        Some(libc::EIO) => "; look at the disk's state in the kernel log".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_that_an_operator_can_fix_names_its_remedy() {
        let text = |code| Error::io("write", "/run/s/a.json")(io::Error::from_raw_os_error(code)).to_string();
        assert_eq!(
            text(libc::ENOSPC),
            "cannot write /run/s/a.json: No space left on device (os error 28); make room on the file system of /run/s"
        );
        for (code, remedy) in [
            (libc::EROFS, "mount the file system of /run/s writable"),
            (libc::EACCES, "let the agent's user read and write /run/s"),
            (libc::EMFILE, "LimitNOFILE"),
            (libc::EISDIR, "remove the folder"),
            (libc::EDQUOT, "make room"),
        ] {
            assert!(text(code).contains(remedy), "{}", text(code));
        }
    }
}
