//! The job of a folder: waits for the kernel's events, refresh requests and deadlines, and passes them to the folder.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use futures::future::OptionFuture;
use hive::JobCx;
use inotify::Inotify;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Folder;
use super::watch::Watch;
use crate::sources::RefreshRequests;

/// The retry interval for watching the folder after a failure.
const WATCH_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Follows a folder until the job ends. The first scan completes the source.
///
/// If the kernel cannot report changes, for example without a free inotify instance, the folder is scanned every
/// second. A refresh request is answered after a scan that began later.
pub(crate) async fn follow(folder: Folder, mut requests: RefreshRequests, cx: JobCx) -> anyhow::Result<()> {
    let mut folder = Box::new(folder);
    loop {
        let ended;
        (folder, ended) = watched(folder, &mut requests, &cx).await?;
        let Err(error) = ended else { return Ok(()) };
        (folder, _) = blocking(folder, move |folder| folder.scan_unwatched(&error)).await;
        tokio::select! {
            () = tokio::time::sleep(WATCH_RETRY_INTERVAL) => {}
            () = cx.cancelled() => return Ok(()),
        }
    }
}

type Ended = (Box<Folder>, io::Result<()>);

/// Follows a folder until the job ends or the kernel cannot report changes.
async fn watched(
    mut folder: Box<Folder>,
    requests: &mut RefreshRequests,
    cx: &JobCx,
) -> anyhow::Result<Ended> {
    let (inotify, events) = match open() {
        Ok(opened) => opened,
        Err(error) => return Ok((folder, Err(error))),
    };
    let mut done;
    let mut working = cx.working();
    (folder, done) = blocking(folder, move |folder| folder.start(inotify)).await;
    loop {
        if done.is_err() {
            return Ok((folder, done));
        }
        let mut pending = Vec::new();
        if folder.watch.as_ref().is_none_or(Watch::is_idle) {
            drop(working);
            tokio::select! {
                // Cleared before the scan, so that later events make it ready again.
                ready = events.readable() => ready?.clear_ready(),
                Some(request) = requests.recv() => pending.push(request),
                Some(()) = OptionFuture::from(folder.next_deadline().map(tokio::time::sleep_until)) => {}
                () = cx.cancelled() => return Ok((folder, Ok(()))),
            }
            working = cx.working();
        }
        working.step();
        while let Ok(request) = requests.try_recv() {
            pending.push(request);
        }
        let scan = !pending.is_empty();
        (folder, done) = blocking(folder, move |folder| folder.handle(scan)).await;
        for request in pending {
            // Fails if the requester no longer waits.
            let _ = request.send(());
        }
    }
}

/// Returns an inotify instance, and a duplicate of its descriptor to poll for events.
#[expect(
    deprecated,
    reason = "sound with OwnedFd, whose descriptor stays the same; its successor is an unsafe function"
)]
fn open() -> io::Result<(Inotify, AsyncFd<OwnedFd>)> {
    let inotify = Inotify::init()?;
    let descriptor = inotify.as_fd().try_clone_to_owned()?;
    Ok((inotify, AsyncFd::with_interest(descriptor, Interest::READABLE)?))
}

/// Runs a step of the folder, which reads files, on a blocking thread.
async fn blocking(
    mut folder: Box<Folder>,
    work: impl FnOnce(&mut Folder) -> io::Result<()> + Send + 'static,
) -> Ended {
    let work = move || {
        let done = work(&mut folder);
        (folder, done)
    };
    hive::blocking(work).await
}
