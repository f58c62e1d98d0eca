//! The container's network namespace: opened by its path, entered for the duration of a closure.

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

    /// Opens the namespace; `None` if its path does not exist, which is no error for a DEL: its links are gone, too.
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

    /// Runs `work` inside the namespace and returns to the original one even on an error. The process has a single
    /// thread.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let failed = |source| Error::Netns { action: "entering", path: self.path.clone(), source };
        let home = File::open("/proc/self/ns/net").map_err(failed)?;
        join(self.file.as_fd()).map_err(failed)?;
        let result = work();
        join(home.as_fd()).map_err(failed)?;
        result
    }
}

/// Moves the calling thread into a namespace of any kind; into a mount namespace only a process of one thread.
#[expect(unsafe_code, reason = "setns(2) has no wrapper in std")]
pub(crate) fn join(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // JUSTIFICATION: links, addresses, routes and sysctls of a pod can be reached from within its namespace only.
    // SAFETY: setns takes a file descriptor, which the borrow keeps open for the call, and an integer; it touches no
    // memory of the process.
    let code = unsafe { libc::setns(namespace.as_raw_fd(), 0) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the cookie of the thread's namespace, 0 on kernels before 5.14, which have none.
#[expect(unsafe_code, reason = "getsockopt(2) has no wrapper in std")]
pub(crate) fn cookie() -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let Ok(socket) = UnixDatagram::unbound() else { return 0 };
    let mut cookie: u64 = 0;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // JUSTIFICATION: std cannot read the cookie, by which the datapath's socket programs identify the pod's namespace.
    // SAFETY: both pointers are to locals that outlive the call, and `length` is the size of the first, so the kernel
    // writes within it.
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
