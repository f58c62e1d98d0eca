//! Rings on tokio.
#![expect(unsafe_code, reason = "tokio registers descriptors by unsafe functions")]

use std::io;
use std::os::fd::OwnedFd;
use std::task::Poll;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::pacing::POLL_INTERVAL;
use super::record::Record;
use super::rings::Rings;
use crate::error::Result;

/// Rings that a task waits for.
#[derive(Debug)]
pub struct Reader {
    // The descriptors are deregistered before the rings are closed.
    descriptors: Vec<AsyncFd<OwnedFd>>,
    rings: Rings,
}

impl Reader {
    /// Registers the rings with the current runtime.
    ///
    /// # Panics
    /// Outside of a runtime with I/O.
    pub fn new(rings: Rings) -> io::Result<Self> {
        let register = |descriptor: std::os::fd::BorrowedFd<'_>| {
            let descriptor = descriptor.try_clone_to_owned()?;
            // JUSTIFICATION: the safe functions are deprecated.
            // SAFETY: an OwnedFd returns the same open descriptor until it is dropped.
            let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
            descriptor.map_err(io::Error::from)
        };
        let descriptors = rings.descriptors().map(register).collect::<io::Result<_>>()?;
        Ok(Self { descriptors, rings })
    }

    /// Returns the number of rings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rings.len()
    }

    /// Whether there are no rings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Waits until the rings are to be read: the kernel wakes the reader, or it is time to poll. A timer runs
    /// only while a ring is polled. Without a ring it waits forever. Cancel safe.
    pub async fn readable(&self) -> io::Result<()> {
        if !self.rings.are_polled() {
            return self.woken().await;
        }
        tokio::select! {
            woken = self.woken() => woken,
            () = tokio::time::sleep(POLL_INTERVAL) => Ok(()),
        }
    }

    /// Reads the rings as [`Rings::read`].
    pub fn read(&mut self, visit: impl FnMut(u32, Record<'_>)) -> Result<()> {
        self.rings.read(visit)
    }

    /// Waits for a wake-up of any ring.
    async fn woken(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            let mut woken = false;
            for descriptor in &self.descriptors {
                if let Poll::Ready(guard) = descriptor.poll_read_ready(cx) {
                    // Cleared before the rings are read: records that come later wake the task again.
                    guard?.clear_ready();
                    woken = true;
                }
            }
            if woken { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }
}
