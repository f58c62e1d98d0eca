//! Events of the kernel that trigger a comparison before the interval ends: a file system was unmounted, a filter or a
//! rule of nftables was removed.
//!
//! So such a loss is repaired within milliseconds, without polling. The kernel does not report removed pins and tcx
//! links: the next periodic comparison repairs these. A source that cannot be opened reports nothing.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use netlink::{Message, Protocol, Received, Subscription};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use crate::guard::nftables;
use crate::watchdog::schedule::DEBOUNCE;

/// Multicast groups of tc filters and of nf_tables.
const GROUP_TC: u32 = libc::RTNLGRP_TC;
pub(crate) const GROUP_NFTABLES: u32 = libc::NFNLGRP_NFTABLES as u32;

/// Subscriptions to the kernel's notifications, in the network and mount namespace of its creation.
pub(crate) struct Alarms {
    mounts: Option<AsyncFd<File>>,
    filters: Option<Subscription>,
    rules: Option<Subscription>,
    /// A pin that exists as long as the bpf file system is mounted.
    pin: PathBuf,
}

impl Alarms {
    /// Subscribes; `pin` exists as long as the bpf file system is mounted.
    pub(crate) fn new(pin: PathBuf) -> Alarms {
        let unavailable = |what: &str, error: io::Error| {
            tracing::info!(what, %error, "The kernel does not report changes, they are found by the next comparison");
        };
        Alarms {
            mounts: mounts().map_err(|error| unavailable("mounts", error)).ok(),
            filters: Subscription::open(Protocol::Route, &[GROUP_TC], None)
                .map_err(|error| unavailable("tc filters", error))
                .ok(),
            rules: Subscription::open(Protocol::Netfilter, &[GROUP_NFTABLES], None)
                .map_err(|error| unavailable("rules of nftables", error))
                .ok(),
            pin,
        }
    }

    /// Waits until an object was removed that may belong to the datapath. Cancel safe.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            () = unmounted(&mut self.mounts, &self.pin) => {}
            () = removed(&mut self.filters, is_filter_deletion) => {}
            () = removed(&mut self.rules, nftables::is_deletion) => {}
        }
    }
}

fn is_filter_deletion(notification: &Message<'_>) -> bool {
    matches!(notification.header.message_type, libc::RTM_DELQDISC | libc::RTM_DELTFILTER)
}

/// Opens the mounts of this thread's namespace: the kernel reports changes as urgent data (`POLLPRI`).
#[expect(
    deprecated,
    reason = "sound with File, whose descriptor stays the same; its successor is an unsafe function"
)]
fn mounts() -> io::Result<AsyncFd<File>> {
    AsyncFd::with_interest(File::open("/proc/thread-self/mountinfo")?, Interest::PRIORITY)
}

async fn unmounted(mounts: &mut Option<AsyncFd<File>>, pin: &std::path::Path) {
    while let Some(fd) = mounts {
        match fd.ready(Interest::PRIORITY).await {
            // The kernel reports an unmount a moment before the path changes. Readiness is cleared after the delay, so
            // that a change in between, or one with a cancelled waiter, is reported again.
            Ok(mut ready) => {
                sleep(DEBOUNCE).await;
                ready.clear_ready();
            }
            Err(_) => *mounts = None,
        }
        // Mounts change with every pod, so check that the pin is really gone.
        if !pin.exists() {
            return;
        }
    }
    std::future::pending().await
}

/// Waits until a notification is of a deletion, or was lost.
async fn removed(subscription: &mut Option<Subscription>, is_deletion: impl Fn(&Message<'_>) -> bool) {
    while let Some(open) = subscription {
        match open.receive().await {
            // An unparsable message may be a deletion: an unnecessary comparison costs only a millisecond.
            Ok(Received::Packet) if !open.messages().any(|m| m.as_ref().map_or(true, &is_deletion)) => {}
            Ok(Received::Packet | Received::Overflow) => return,
            Err(_) => *subscription = None,
        }
    }
    std::future::pending().await
}
