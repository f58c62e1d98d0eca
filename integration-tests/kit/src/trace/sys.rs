//! ptrace(2), seccomp(2) and other system calls of the tracer.
#![expect(unsafe_code, reason = "tracing a process has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) use libc::pid_t;

/// The system call that a stopped thread is about to make or has made, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyscallInfo {
    /// Held by the filter before a call: its number and arguments.
    Before(i64, [u64; 6]),
    /// After a call: its result, negative for an error.
    After(i64),
    /// Neither.
    Other,
}

/// The result of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// A thread has stopped: the signal, and the event in the upper bits.
    Stopped(pid_t, i32),
    /// A thread has ended, with its wait status.
    Ended(pid_t, i32),
    /// No thread is left.
    Nobody,
}

const OPTIONS: i32 = libc::PTRACE_O_TRACESECCOMP
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_EXITKILL;

/// Makes the process of `command` start stopped, traced by the starting thread, and held at each of these calls.
pub(crate) fn start_traced(command: &mut Command, calls: &[i64]) {
    let instruction = |code: u32, jump: usize, value: u32| libc::sock_filter {
        code: code as u16,
        jt: jump as u8,
        jf: 0,
        k: value,
    };
    let mut filter = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        let jump = calls.len() - at;
        filter.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jump, *call as u32));
    }
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_TRACE));
    assert!(calls.len() < 250, "jumps of a filter are short");
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // JUSTIFICATION: std can neither trace nor filter a child.
        // SAFETY: the program outlives the call, which copies it; the other call takes no pointers.
        let failed = unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        };
        if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // JUSTIFICATION: the filter must be installed before the program is executed.
    // SAFETY: the closure makes async-signal-safe system calls and allocates nothing.
    unsafe {
        command.pre_exec(install);
    }
}

/// Extends tracing to all threads and children of a traced process.
pub(crate) fn follow(pid: pid_t) -> io::Result<()> {
    // JUSTIFICATION: std cannot trace.
    // SAFETY: the options are a number; no memory is touched.
    check(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, OPTIONS) })
}

/// Resumes a stopped thread with a signal (0 for none), to the end of its call if `to_exit`. A thread that has been
/// killed meanwhile is no error.
pub(crate) fn resume(tid: pid_t, signal: i32, to_exit: bool) {
    let request = if to_exit { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
    // JUSTIFICATION: std cannot trace.
    // SAFETY: the signal is a number; no memory is touched.
    unsafe { libc::ptrace(request, tid, 0, signal) };
}

/// Returns the system call at which a thread has stopped.
pub(crate) fn syscall_info(tid: pid_t) -> SyscallInfo {
    // linux/ptrace.h, struct ptrace_syscall_info: op at 0, the union at 24.
    let mut info = [0u64; 11];
    // JUSTIFICATION: std cannot trace.
    // SAFETY: the kernel writes at most the given length into the array.
    let length =
        unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size_of_val(&info), info.as_mut_ptr()) };
    if length <= 0 {
        return SyscallInfo::Other;
    }
    match info[0] as u8 {
        libc::PTRACE_SYSCALL_INFO_SECCOMP => {
            SyscallInfo::Before(info[3] as i64, [info[4], info[5], info[6], info[7], info[8], info[9]])
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => SyscallInfo::After(info[3] as i64),
        _ => SyscallInfo::Other,
    }
}

/// Waits for the next event of threads that the calling thread traces.
pub(crate) fn wait() -> io::Result<Waited> {
    loop {
        let mut status = 0;
        // JUSTIFICATION: std cannot wait for traced threads.
        // SAFETY: the pointer is that of a local variable.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if tid < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::ECHILD) => return Ok(Waited::Nobody),
                _ => return Err(error),
            }
        }
        return Ok(match libc::WIFSTOPPED(status) {
            true => Waited::Stopped(tid, status >> 8),
            false => Waited::Ended(tid, status),
        });
    }
}

/// Returns family and protocol of a traced process's socket; `None` if the descriptor is not a socket.
pub(crate) fn socket_kind(tid: pid_t, fd: u64) -> Option<(i32, i32)> {
    let socket = descriptor(tid, fd)?;
    let option = |name| {
        let mut value: libc::c_int = 0;
        let mut length = size_of_val(&value) as libc::socklen_t;
        // JUSTIFICATION: std has no SO_DOMAIN.
        // SAFETY: the pointers are those of local variables, the length is the value's.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                name,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        (result == 0).then_some(value)
    };
    Some((option(libc::SO_DOMAIN)?, option(libc::SO_PROTOCOL)?))
}

/// Returns the name of the BPF map of a traced process's descriptor.
pub(crate) fn map_name(tid: pid_t, fd: u64) -> Option<String> {
    const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
    let map = descriptor(tid, fd)?;
    // linux/bpf.h, struct bpf_map_info: the name is at 24, 16 bytes.
    let mut info = [0u8; 128];
    let attributes = [map.as_raw_fd() as u64 | (size_of_val(&info) as u64) << 32, info.as_mut_ptr() as u64];
    // JUSTIFICATION: std has no bpf(2).
    // SAFETY: the kernel writes at most the given length to `info`, which outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, attributes.as_ptr(), size_of_val(&attributes))
    };
    let name = info[24..40].split(|byte| *byte == 0).next()?;
    (result == 0).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Duplicates a descriptor of a traced process.
fn descriptor(tid: pid_t, fd: u64) -> Option<OwnedFd> {
    // JUSTIFICATION: std has no pidfd of a thread's process.
    // SAFETY: takes no pointers; the descriptors are new and owned from here on.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, group(tid)?, 0);
        if process < 0 {
            return None;
        }
        let process = OwnedFd::from_raw_fd(process as i32);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        (copy >= 0).then(|| OwnedFd::from_raw_fd(copy as i32))
    }
}

/// Returns the process of a thread.
fn group(tid: pid_t) -> Option<pid_t> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Kills the process of a thread; one that is gone is no error.
pub(crate) fn kill(tid: pid_t) {
    // JUSTIFICATION: std can only kill a child that it knows.
    // SAFETY: takes no pointers.
    unsafe { libc::kill(tid, libc::SIGKILL) };
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
