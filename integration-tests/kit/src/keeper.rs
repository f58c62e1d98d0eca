//! A thread that keeps a network namespace and the processes in it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc::{self, Sender};
use std::thread::{Builder, JoinHandle};

use crate::{NetNs, Process, sys};

type Work = Box<dyn FnOnce() + Send>;

/// A network namespace with nothing but loopback, and a thread inside of it. Processes that it starts are killed with
/// it: when the value is dropped, or when the test's own process ends, however that happens.
///
/// The thread has the mount namespace of the test's process, also when a thread in a [`Sandbox`](crate::Sandbox) makes
/// it.
#[derive(Debug)]
pub struct Keeper {
    ns: NetNs,
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Creates the namespace.
    pub fn new() -> io::Result<Self> {
        let (work, jobs) = mpsc::channel::<Work>();
        let (made, ns) = mpsc::channel();
        let thread = Builder::new().name("keeper".to_owned()).spawn(move || {
            let _ = made.send(enter());
            while let Ok(job) = jobs.recv() {
                job();
            }
        })?;
        let ns = ns.recv().map_err(io::Error::other)??;
        ns.ip("link set lo up")?;
        Ok(Self { ns, work: Some(work), thread: Some(thread) })
    }

    /// Returns the namespace.
    #[must_use]
    pub fn netns(&self) -> &NetNs {
        &self.ns
    }

    /// Runs `work` on the thread. Threads that it starts are in the namespace as well, and may outlive the keeper.
    ///
    /// # Panics
    /// If `work` panics, or did so in an earlier call.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (give, take) = mpsc::channel();
        let job = Box::new(move || {
            let _ = give.send(work());
        });
        let _ = self.work.as_ref().map(|queue| queue.send(job));
        take.recv().expect("the keeper's thread lives as long as no work panics")
    }

    /// Starts a process in the namespace.
    pub fn start(&self, mut command: Command) -> io::Result<Process> {
        sys::end_with_thread(&mut command);
        self.run(move || Process::start(&mut command))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Moves the calling thread into a new network namespace, and out of the mount namespace of a sandbox.
fn enter() -> io::Result<NetNs> {
    let mounts = File::open("/proc/self/ns/mnt")?;
    sys::unshare(libc::CLONE_FS | libc::CLONE_NEWNET)?;
    sys::setns(mounts.as_fd(), libc::CLONE_NEWNS)?;
    NetNs::of_thread()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Duration;

    use super::*;
    use crate::require_root;

    #[test]
    fn processes_are_inside_and_end_with_the_keeper() {
        require_root!();
        let keeper = Keeper::new().unwrap();
        let outside = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        assert_ne!(keeper.run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap()), outside);
        let mut sleep = Command::new("sleep");
        sleep.arg("60");
        let mut process = keeper.start(sleep).unwrap();
        let path = format!("/proc/{}/ns/net", process.id());
        assert_eq!(
            std::fs::read_link(path).unwrap(),
            keeper.run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap())
        );
        assert!(keeper.netns().ip("-o link show").unwrap().lines().all(|line| line.contains(" lo: ")));
        drop(keeper);
        assert_eq!(process.wait(Duration::from_secs(5)).unwrap().signal(), Some(libc::SIGKILL));
    }
}
