//! The container's network namespace: opened by its path, entered for as long as a closure runs.

use crate::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// An open network namespace.
#[derive(Debug)]
pub(crate) struct NetNs {
    file: File,
    path: PathBuf,
}

impl NetNs {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        match File::open(path) {
            Ok(file) => Ok(Self { file, path: path.to_owned() }),
            Err(source) => Err(Error::Netns { action: "opening", path: path.to_owned(), source }),
        }
    }

    /// A namespace whose path is gone is no error for a DEL: its links went with it.
    pub(crate) fn open_if_there(path: &Path) -> Result<Option<Self>, Error> {
        match Self::open(path) {
            Ok(netns) => Ok(Some(netns)),
            Err(Error::Netns { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Runs `work` inside the namespace and comes back, whatever `work` says. The process has one thread.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let failed = |source| Error::Netns { action: "entering", path: self.path.clone(), source };
        let home = File::open("/proc/self/ns/net").map_err(failed)?;
        join(self.file.as_fd()).map_err(failed)?;
        let result = work();
        join(home.as_fd()).map_err(failed)?;
        result
    }
}

/// Puts the calling thread into the network namespace behind `namespace`.
#[expect(unsafe_code, reason = "setns(2) has no wrapper in std")]
pub(crate) fn join(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // JUSTIFICATION: links, addresses, routes and sysctls of a pod can be reached from within its namespace only.
    // SAFETY: setns takes a file descriptor, which the borrow keeps open, and an integer; it touches no memory.
    let code = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The cookie of the namespace that the thread is in, 0 where the kernel (before 5.14) has none.
#[expect(unsafe_code, reason = "getsockopt(2) has no wrapper in std")]
pub(crate) fn cookie() -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let Ok(socket) = UnixDatagram::unbound() else { return 0 };
    let mut cookie: u64 = 0;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // JUSTIFICATION: the cookie names the pod's namespace to the socket programs of the datapath.
    // SAFETY: the pointers are to locals that outlive the call, and `length` is the size of the first.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if code == 0 { cookie } else { 0 }
}
