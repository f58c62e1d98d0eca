//! The job of a folder: waits for the kernel's events, questions and deadlines, and has the folder handle them.

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
use crate::sources::Questions;

/// How long to wait until the kernel is asked again to tell of changes.
const RETRY: Duration = Duration::from_secs(1);

/// Follows a folder until the job ends. The first reading completes the source.
///
/// When the kernel cannot report changes, as without a free inotify instance, the folder is looked at every second.
/// Whoever asks gets an answer when the folder was looked through after the question.
pub(crate) async fn follow(folder: Folder, mut questions: Questions, cx: JobCx) -> anyhow::Result<()> {
    let mut folder = Box::new(folder);
    loop {
        let ended;
        (folder, ended) = watched(folder, &mut questions, &cx).await?;
        let Err(error) = ended else { return Ok(()) };
        (folder, _) = blocking(folder, move |folder| folder.look_unwatched(&error)).await;
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = cx.cancelled() => return Ok(()),
        }
    }
}

type Ended = (Box<Folder>, io::Result<()>);

/// Until the job ends, or the kernel cannot report changes.
async fn watched(mut folder: Box<Folder>, questions: &mut Questions, cx: &JobCx) -> anyhow::Result<Ended> {
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
        let mut asked = Vec::new();
        if folder.watch.as_ref().is_none_or(Watch::is_idle) {
            drop(working);
            tokio::select! {
                // Before what there is is read: what comes later makes it ready again.
                ready = events.readable() => ready?.clear_ready(),
                Some(question) = questions.recv() => asked.push(question),
                Some(()) = OptionFuture::from(folder.next_deadline().map(tokio::time::sleep_until)) => {}
                () = cx.cancelled() => return Ok((folder, Ok(()))),
            }
            working = cx.working();
        }
        working.step();
        while let Ok(question) = questions.try_recv() {
            asked.push(question);
        }
        let look = !asked.is_empty();
        (folder, done) = blocking(folder, move |folder| folder.handle(look)).await;
        for question in asked {
            // Who has asked may have gone.
            let _ = question.send(());
        }
    }
}

/// An inotify instance, and its descriptor once more, which becomes readable when there are events.
#[expect(
    deprecated,
    reason = "sound with OwnedFd, whose descriptor stays the same; its successor is an unsafe function"
)]
fn open() -> io::Result<(Inotify, AsyncFd<OwnedFd>)> {
    let inotify = Inotify::init()?;
    let descriptor = inotify.as_fd().try_clone_to_owned()?;
    Ok((inotify, AsyncFd::with_interest(descriptor, Interest::READABLE)?))
}

/// Files are read off the runtime's threads.
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
