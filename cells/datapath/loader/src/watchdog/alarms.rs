//! When to look after the datapath before it is time: another process has unmounted a file system, or removed a filter
//! or a rule.
//!
//! The kernel reports all three, so a loss lasts milliseconds and nothing is spent while nothing happens. What it does
//! not tell of (a pin or a tcx link that was removed) waits for the next look. A source that cannot be opened is none.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use crate::guard::nftables::{self, NETLINK_NETFILTER};
use crate::watchdog::job::SETTLE;

/// `RTNLGRP_TC` of `linux/rtnetlink.h`.
const GROUP_TC: u32 = 4;
/// `NFNLGRP_NFTABLES` of `linux/netfilter/nfnetlink.h`.
pub(crate) const GROUP_NFTABLES: u32 = 7;
const DELETED_QDISC: u16 = 37;
const DELETED_FILTER: u16 = 45;
const ENOBUFS: i32 = 105;
const PACKET: usize = 32 << 10;

/// Subscriptions to the kernel's notifications, in the network and mount namespace of its creation.
pub(crate) struct Alarms {
    mounts: Option<AsyncFd<File>>,
    filters: Option<TokioSocket>,
    rules: Option<TokioSocket>,
    buffer: [Vec<u8>; 2],
    /// A pin that is there as long as the bpf file system is.
    pin: PathBuf,
}

impl Alarms {
    /// Subscribes; `pin` is there as long as the bpf file system is.
    pub(crate) fn new(pin: PathBuf) -> Alarms {
        let unavailable = |what: &str, error: io::Error| {
            tracing::info!(what, %error, "The kernel does not tell of changes, they are found at the next look");
        };
        Alarms {
            mounts: mounts().map_err(|error| unavailable("mounts", error)).ok(),
            filters: socket(NETLINK_ROUTE, GROUP_TC).map_err(|error| unavailable("tc filters", error)).ok(),
            rules: socket(NETLINK_NETFILTER, GROUP_NFTABLES)
                .map_err(|error| unavailable("rules of nftables", error))
                .ok(),
            buffer: Default::default(),
            pin,
        }
    }

    /// Waits until something was removed that may be ours.
    pub(crate) async fn next(&mut self) {
        let [first, second] = &mut self.buffer;
        tokio::select! {
            () = unmounted(&mut self.mounts, &self.pin) => {}
            () = told(&mut self.filters, first, |packet| {
                nftables::messages(packet).any(|(kind, _)| [DELETED_QDISC, DELETED_FILTER].contains(&kind))
            }) => {}
            () = told(&mut self.rules, second, nftables::tells_of_deletion) => {}
        }
    }
}

/// The mounts of this thread's namespace: the kernel reports changes as of something urgent to read.
#[expect(
    deprecated,
    reason = "sound with File, whose descriptor stays the same; its successor is an unsafe function"
)]
fn mounts() -> io::Result<AsyncFd<File>> {
    AsyncFd::with_interest(File::open("/proc/thread-self/mountinfo")?, Interest::PRIORITY)
}

fn socket(protocol: isize, group: u32) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(protocol)?;
    socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
    socket.socket_mut().add_membership(group)?;
    Ok(socket)
}

async fn unmounted(mounts: &mut Option<AsyncFd<File>>, pin: &std::path::Path) {
    while let Some(fd) = mounts {
        match fd.ready(Interest::PRIORITY).await {
            // The kernel reports it a moment before the path leads elsewhere. Cleared after the wait: what is told
            // meanwhile, or to somebody who stops waiting, is reported again.
            Ok(mut ready) => {
                sleep(SETTLE).await;
                ready.clear_ready();
            }
            Err(_) => *mounts = None,
        }
        // Pods that come and go change mounts as well.
        if !pin.exists() {
            return;
        }
    }
    std::future::pending().await
}

async fn told(socket: &mut Option<TokioSocket>, buffer: &mut Vec<u8>, ours: impl Fn(&[u8]) -> bool) {
    while let Some(open) = socket {
        buffer.clear();
        buffer.reserve(PACKET);
        match open.recv(buffer).await {
            Ok(()) if ours(buffer) => return,
            Ok(()) => {}
            // Messages were lost, perhaps this one.
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => *socket = None,
        }
    }
    std::future::pending().await
}
