//! The unix socket of a server: its permissions, and the exclusion of a second agent.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::error::Error;

/// The group that may connect besides root, if it exists.
const GROUP: &str = "cilium";

/// A listening socket. Its file is removed on drop, unless another agent has replaced it.
#[derive(Debug)]
pub struct Socket {
    pub(crate) listener: UnixListener,
    _file: SocketFile,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Socket {
    /// Listens on `path`, which `option` sets, with mode 0660. A stale socket, which no process serves, is removed
    /// first. Blocks: it changes files.
    ///
    /// # Errors
    /// Another process serves the socket, or the file cannot be made.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(path: &Path, option: &'static str) -> Result<Self, Error> {
        let fail = |action| move |source| Error::Socket { action, path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(fail("create the folder of"))?;
        // Serializes check and bind of two agents that start at the same time; released when `lock` is dropped.
        let lock = File::open(folder).map_err(fail("open the folder of"))?;
        lock.lock().map_err(fail("lock the folder of"))?;
        remove_old(path, option)?;
        let listener = UnixListener::bind(path).map_err(fail("listen on"))?;
        let inode = fs::symlink_metadata(path).map_err(fail("read"))?.ino();
        let file = SocketFile { path: path.to_owned(), inode };
        if let Some(gid) = group(&fs::read_to_string("/etc/group").unwrap_or_default(), GROUP) {
            match chown(path, None, Some(gid)) {
                // Without CAP_CHOWN: not fatal, as root can still connect.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => tracing::warn!(
                    socket = %path.display(),
                    "The socket cannot be given to the group {GROUP}, whose members cannot connect: add CAP_CHOWN"
                ),
                other => other.map_err(fail("change the group of"))?,
            }
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(fail("change the mode of"))?;
        Ok(Self { listener, _file: file })
    }

    /// Returns the listener.
    #[must_use]
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_old(path: &Path, option: &'static str) -> Result<(), Error> {
    let fail = |action| move |source| Error::Socket { action, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail("read")(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::NotASocket { path: path.to_owned(), option });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::InUse(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(fail("remove the old"))
        }
        Err(error) => Err(fail("determine the process that serves")(error)),
    }
}

/// Returns the id of a group from the text of `/etc/group`.
fn group(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_old_socket_is_replaced_and_a_served_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/cilium.sock");
        let first = Socket::bind(&path, "socket-path").unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
        let error = Socket::bind(&path, "socket-path").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "another agent serves {}: stop it, or give this one its own --socket-path and --state-dir",
                path.display()
            )
        );
        drop(first);
        assert!(!path.exists(), "a stop removes the socket");

        // The socket of a killed agent.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let second = Socket::bind(&path, "socket-path").unwrap();
        fs::remove_file(&path).unwrap();
        let _third = Socket::bind(&path, "socket-path").unwrap();
        drop(second);
        assert!(path.exists(), "the socket of another agent stays");
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cilium.sock");
        fs::write(&path, "precious").unwrap();
        let error = Socket::bind(&path, "socket-path").unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "{} exists and is not a socket: remove it or choose another --socket-path",
                path.display()
            )
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_group_is_found_by_its_whole_name() {
        let groups = "root:x:0:\ncilium-x:x:7:\ncilium:x:1042:me,you\n";
        assert_eq!(group(groups, "cilium"), Some(1042));
        assert_eq!(group("root:x:0:\n", "cilium"), None);
        assert_eq!(group("cilium:x:many:\n", "cilium"), None);
    }
}
