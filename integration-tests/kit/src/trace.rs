//! A process that is traced to count its writes at the system call, and killed after a chosen one.

mod calls;
mod sys;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use calls::Write;
use sys::{SyscallInfo, Waited, pid_t};

/// A process that is traced with all its threads and children, from its first instruction on. The program is the
/// unmodified binary.
///
/// A write is a system call that changes state which outlives the process: BPF map entries, pins, attachments and
/// links, modifying netlink requests, contents, names and modes of files, mounts. It counts once it has succeeded.
/// Counted writes are serialized, so that a process killed after the k-th one has completed exactly k, independent of
/// its threads. Children are killed as well.
#[derive(Debug)]
pub struct Traced {
    /// Its standard input, output and error, as far as the command asked for pipes.
    pub pipes: (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>),
    pid: pid_t,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether writes are counted.
    armed: bool,
    /// Maximum number of writes of the process.
    limit: u64,
    done: Vec<Write>,
    killed: bool,
    status: Option<ExitStatus>,
    /// Whether its children have ended as well.
    over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traced {
    /// Starts the command; its writes are not counted before [`arm`](Self::arm).
    pub fn start(command: Command) -> io::Result<Traced> {
        Traced::started(command, State::default())
    }

    /// Starts the command, to be killed after its `limit`-th write.
    pub fn start_armed(command: Command, limit: u64) -> io::Result<Traced> {
        Traced::started(command, State { armed: true, limit, ..State::default() })
    }

    fn started(mut command: Command, state: State) -> io::Result<Traced> {
        // Check the program first: a child that fails to execute it could not report that, as its write would be held.
        let program = Path::new(command.get_program());
        if program.is_absolute() && !program.is_file() {
            return Err(io::Error::new(io::ErrorKind::NotFound, program.display().to_string()));
        }
        let shared = Arc::new(Shared { state: Mutex::new(state), ended: Condvar::new() });
        let (send, receive) = mpsc::channel();
        sys::start_traced(&mut command, &calls::watched());
        let of_thread = shared.clone();
        // A process is traced by the thread that starts it.
        let thread = thread::Builder::new().name("tracer".to_owned()).spawn(move || {
            let child = command.spawn();
            let main = child.as_ref().ok().map(|child| child.id() as pid_t);
            let _ = send.send(child);
            if let Some(main) = main {
                let (threads, held) = (BTreeSet::new(), VecDeque::new());
                Tracer { main, shared: of_thread, threads, busy: None, held }.run();
            }
        })?;
        let mut child = receive.recv().map_err(io::Error::other)??;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        Ok(Traced { pipes, pid: child.id() as pid_t, shared, thread: Some(thread) })
    }

    /// Returns its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid as u32
    }

    /// Counts writes from now on, and kills the process after the `limit`-th.
    pub fn arm(&self, limit: u64) {
        let mut state = self.shared.state();
        (state.armed, state.limit) = (true, limit);
        state.done.clear();
    }

    /// Stops counting; [`is_killed`](Self::is_killed) is final after this.
    pub fn disarm(&self) {
        self.shared.state().armed = false;
    }

    /// Returns the counted writes.
    #[must_use]
    pub fn writes(&self) -> Vec<Write> {
        self.shared.state().done.clone()
    }

    /// Whether it has been killed after its last permitted write.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.shared.state().killed
    }

    /// Returns its status once it has ended.
    #[must_use]
    pub fn status(&self) -> Option<ExitStatus> {
        self.shared.state().status
    }

    /// Waits for its end, at most `limit`.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let state = self.shared.state();
        let waited = self.shared.ended.wait_timeout_while(state, limit, |state| state.status.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.status
    }

    /// Waits for the end of its children as well, at most `limit`. Returns its own status.
    #[must_use]
    pub fn wait_for_all(&self, limit: Duration) -> Option<ExitStatus> {
        let state = self.shared.state();
        let waited = self.shared.ended.wait_timeout_while(state, limit, |state| !state.over);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.status.filter(|_| state.over)
    }

    /// Kills it (SIGKILL), with its children, and waits for its end.
    pub fn kill(&mut self) {
        // Until it is reaped its process id is not reused.
        if self.status().is_none() {
            sys::kill(self.pid);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The thread that follows a process.
struct Tracer {
    main: pid_t,
    shared: Arc<Shared>,
    /// Threads that are traced.
    threads: BTreeSet<pid_t>,
    /// The thread with a counted write in progress, and the write.
    busy: Option<(pid_t, Write)>,
    /// Threads held until it completes, with their next writes.
    held: VecDeque<(pid_t, Write)>,
}

impl Tracer {
    fn run(mut self) {
        loop {
            match sys::wait() {
                Ok(Waited::Stopped(tid, signal)) => self.stopped(tid, signal),
                Ok(Waited::Ended(tid, status)) => self.ended(tid, status),
                Ok(Waited::Nobody) | Err(_) => break,
            }
        }
        self.shared.state().over = true;
        self.shared.ended.notify_all();
    }

    fn stopped(&mut self, tid: pid_t, signal: i32) {
        const SECCOMP: i32 = libc::SIGTRAP | libc::PTRACE_EVENT_SECCOMP << 8;
        const EXIT: i32 = libc::SIGTRAP | 0x80;
        let is_new = self.threads.insert(tid);
        let at_exit = self.busy.as_ref().is_some_and(|(busy, _)| *busy == tid);
        match signal {
            // The first instruction of the program: it does not run before the tracer follows all threads.
            libc::SIGTRAP if is_new && tid == self.main => {
                if sys::follow(tid).is_err() {
                    sys::kill(tid);
                }
                sys::resume(tid, 0, false);
            }
            SECCOMP => self.before(tid),
            EXIT if at_exit => self.after(tid),
            // A new thread or child begins with a stop by ptrace, which is not a signal to it.
            libc::SIGSTOP if is_new => sys::resume(tid, 0, false),
            signal if signal >> 8 != 0 || signal == EXIT => sys::resume(tid, 0, at_exit),
            signal => sys::resume(tid, signal, at_exit),
        }
    }

    fn before(&mut self, tid: pid_t) {
        if !self.shared.state().armed {
            return sys::resume(tid, 0, false);
        }
        let SyscallInfo::Before(call, arguments) = sys::syscall_info(tid) else {
            return sys::resume(tid, 0, false);
        };
        match (calls::write(tid, call, &arguments), &self.busy) {
            (None, _) => sys::resume(tid, 0, false),
            (Some(write), None) => {
                self.busy = Some((tid, write));
                sys::resume(tid, 0, true);
            }
            (Some(write), Some(_)) => self.held.push_back((tid, write)),
        }
    }

    fn after(&mut self, tid: pid_t) {
        let Some((_, write)) = self.busy.take() else { return };
        let done = matches!(sys::syscall_info(tid), SyscallInfo::After(result) if result >= 0);
        let mut state = self.shared.state();
        if done && state.armed {
            state.done.push(write);
            if state.done.len() as u64 == state.limit {
                state.killed = true;
                drop(state);
                // No thread is resumed, so that held calls of other threads are not executed.
                return self.threads.iter().for_each(|tid| sys::kill(*tid));
            }
        }
        drop(state);
        sys::resume(tid, 0, false);
        self.next();
    }

    fn next(&mut self) {
        if self.busy.is_none()
            && !self.shared.state().killed
            && let Some((tid, write)) = self.held.pop_front()
        {
            self.busy = Some((tid, write));
            sys::resume(tid, 0, true);
        }
    }

    fn ended(&mut self, tid: pid_t, status: i32) {
        self.threads.remove(&tid);
        self.held.retain(|(held, _)| *held != tid);
        if self.busy.as_ref().is_some_and(|(busy, _)| *busy == tid) {
            self.busy = None;
            self.next();
        }
        if tid == self.main {
            self.shared.state().status = Some(ExitStatus::from_raw(status));
            self.shared.ended.notify_all();
            // If it was killed, kill its children as well.
            if libc::WIFSIGNALED(status) {
                self.threads.iter().for_each(|tid| sys::kill(*tid));
            }
        }
    }
}
