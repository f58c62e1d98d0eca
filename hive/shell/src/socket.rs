//! The socket, accessible only to root and the agent's own user from its creation on.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tokio::net::UnixListener;

/// A listening socket. It is removed when dropped, unless another agent has replaced it.
pub(crate) struct Socket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Socket {
    /// Listens on a path. A stale socket, which no process serves, is replaced.
    pub(crate) fn bind(path: &Path) -> anyhow::Result<Self> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot look at {}", path.display())),
            Ok(found) if !found.file_type().is_socket() => {
                bail!(
                    "{} exists and is not a socket: remove it or choose another --shell-sock-path",
                    path.display()
                )
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                bail!("another agent serves {}: give this one its own --shell-sock-path", path.display())
            }
            Ok(_) => {}
        }
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        // The mode is set under a temporary name before the rename, so the socket is never reachable with a wider mode.
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let draft = PathBuf::from(draft);
        let _left_by_a_kill = fs::remove_file(&draft);
        let listener =
            UnixListener::bind(&draft).with_context(|| format!("cannot listen on {}", draft.display()))?;
        let placed = fs::set_permissions(&draft, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&draft, path));
        if let Err(error) = placed {
            let _unused = fs::remove_file(&draft);
            return Err(error).with_context(|| format!("cannot listen on {}", path.display()));
        }
        Ok(Self { listener, path: path.to_owned(), inode: fs::symlink_metadata(path)?.ino() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

/// Whether a user may run commands.
pub(crate) fn may(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}
