//! The network namespace of the health endpoint, and the sockets that work in it.

use std::fs::File;
use std::io;
use std::net::{Ipv6Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

use devices::{Netlink, NetlinkError};
use parking_lot::Mutex;
use rustix::thread::UnshareFlags;

/// A network namespace without a name, with a socket of rtnetlink and the responder's in it.
///
/// Sockets stay in their namespace whichever thread uses them, so nothing enters the namespace later, which would
/// need `CAP_SYS_ADMIN`. The namespace ends with its last descriptor, and its veth pair with it: a killed agent leaves
/// neither, and no other process can remove the namespace.
#[derive(Debug)]
pub struct EndpointNamespace {
    netns: File,
    pub(crate) netlink: Netlink,
}

impl EndpointNamespace {
    /// Makes the namespace and its sockets; the responder's, which is returned beside it, listens on `port` of all addresses
    /// that the namespace will have. Needs `CAP_SYS_ADMIN`; takes about a millisecond.
    pub fn create(port: u16) -> Result<(Self, TcpListener), NetlinkError> {
        // A thread that leaves its namespace never returns to it; it ends here.
        std::thread::scope(|scope| {
            scope.spawn(|| Self::in_new(port)).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn in_new(port: u16) -> Result<(Self, TcpListener), NetlinkError> {
        #[expect(deprecated, reason = "unsafe are only flags that give the thread descriptors of its own")]
        rustix::thread::unshare(UnshareFlags::NEWNET).map_err(io::Error::from)?;
        let netns = File::open("/proc/thread-self/ns/net")?;
        let listener = http_server::bind(Ipv6Addr::UNSPECIFIED.into(), port)?;
        Ok((Self { netns, netlink: Netlink::open()? }, listener))
    }
}

impl AsFd for EndpointNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netns.as_fd()
    }
}

/// The outcome of making the namespace.
type Outcome = Result<(EndpointNamespace, TcpListener), NetlinkError>;

/// The namespace that the agent makes before it drops its capabilities, until the cell takes it.
#[derive(Debug, Default)]
pub struct EndpointNamespaceSlot(Mutex<Option<Outcome>>);

impl EndpointNamespaceSlot {
    /// Stores the namespace, or why there is none.
    pub fn fill(&self, namespace: Outcome) {
        *self.0.lock() = Some(namespace);
    }

    /// Returns the namespace and its responder's socket once.
    pub(crate) fn take(&self) -> Option<Outcome> {
        self.0.lock().take()
    }
}
