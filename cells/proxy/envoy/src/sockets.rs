//! The folder of the sockets that Envoy and the agent share.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

/// Envoy, which need not be root, makes sockets of its own in the folder.
const FOLDER_MODE: u32 = 0o777;
const SOCKET_MODE: u32 = 0o660;

/// Makes the folder of a socket. Blocks.
pub(crate) fn make_folder(socket: &Path) -> io::Result<()> {
    let Some(folder) = socket.parent() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))
}

/// Gives a socket to the group of proxies: Envoy may run as another user. Blocks.
pub(crate) fn give_to_group(socket: &Path, gid: u32) -> io::Result<()> {
    match chown(socket, None, Some(gid)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => tracing::warn!(
            socket = %socket.display(), gid,
            "The socket cannot be given to the group of proxies: an Envoy that is not root cannot connect; add CAP_CHOWN"
        ),
        other => other?,
    }
    fs::set_permissions(socket, Permissions::from_mode(SOCKET_MODE))
}
