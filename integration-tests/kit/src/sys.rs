//! System calls that the standard library does not wrap.
#![expect(unsafe_code, reason = "namespaces and mounts have no safe wrapper in std")]

use std::ffi::CString;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Moves the calling thread into new namespaces of the kinds in `flags`.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // JUSTIFICATION: std cannot change the namespaces of a thread.
    // SAFETY: takes no pointers; affects the calling thread only.
    check(unsafe { libc::unshare(flags) })
}

/// Moves the calling thread into the namespace behind `fd`.
pub(crate) fn setns(fd: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // JUSTIFICATION: std cannot change the namespaces of a thread.
    // SAFETY: `fd` is open for the duration of the call; no pointers.
    check(unsafe { libc::setns(fd.as_raw_fd(), kind) })
}

/// Makes the process of `command` start inside the network namespace `fd`,
/// which must stay open until the process has been started.
pub(crate) fn start_in_netns(command: &mut Command, fd: BorrowedFd<'_>) {
    let raw = fd.as_raw_fd();
    // JUSTIFICATION: a child must be in its namespace before it executes.
    // SAFETY: the closure makes one async-signal-safe system call and allocates nothing.
    unsafe {
        command.pre_exec(move || check(libc::setns(raw, libc::CLONE_NEWNET)));
    }
}

/// Makes the kernel kill the process of `command` when the thread that starts it ends.
pub(crate) fn end_with_thread(command: &mut Command) {
    // JUSTIFICATION: only the child can ask for that, before it executes.
    // SAFETY: the closure makes one async-signal-safe system call without pointers and allocates nothing.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)));
    }
}

/// mount(2); empty `source` and `kind` stand for none.
pub(crate) fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong) -> io::Result<()> {
    mount_with(source, target, kind, flags, "")
}

/// As [`mount`], with options of the file system.
pub(crate) fn mount_with(
    source: &str,
    target: &Path,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> io::Result<()> {
    let source = CString::new(source).map_err(io::Error::other)?;
    let kind = CString::new(kind).map_err(io::Error::other)?;
    let options = CString::new(options).map_err(io::Error::other)?;
    let path = c_string(target)?;
    // JUSTIFICATION: std has no mount.
    // SAFETY: the four strings outlive the call, and file systems expect text as data.
    check(unsafe {
        libc::mount(source.as_ptr(), path.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    })
    .map_err(|e| io::Error::new(e.kind(), format!("mount {} ({flags:#x}): {e}", target.display())))
}

/// Makes a folder of a procfs read-only.
pub(crate) fn read_only(path: &Path) -> io::Result<()> {
    mount(&path.to_string_lossy(), path, "", libc::MS_BIND)?;
    let flags = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
    let again = flags | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount("", path, "", again)
}

/// Makes a mounted folder the root of the calling process's mount namespace, and its working folder; the previous root is
/// unmounted.
pub(crate) fn pivot_root(root: &Path) -> io::Result<()> {
    let previous = std::fs::File::open("/")?;
    std::env::set_current_dir(root)?;
    let here = c".".as_ptr();
    // JUSTIFICATION: std and libc have no wrapper.
    // SAFETY: both arguments are strings with a final zero that live through the call.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, here, here) } as libc::c_int)?;
    // JUSTIFICATION: the previous root is mounted over the new one and has no path.
    // SAFETY: takes no pointers; the descriptor is open.
    check(unsafe { libc::fchdir(previous.as_raw_fd()) })?;
    // Others keep what is unmounted here.
    mount("", Path::new("."), "", libc::MS_REC | libc::MS_SLAVE)?;
    unmount(Path::new("."))?;
    std::env::set_current_dir("/")
}

/// Takes all capabilities but these from the calling thread and from programs that it executes.
pub(crate) fn keep_capabilities(kept: &[u8]) -> io::Result<()> {
    /// `_LINUX_CAPABILITY_VERSION_3` of capget(2), with two words a set.
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    #[repr(C)]
    struct Words {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    for number in (0..64u8).filter(|number| !kept.contains(number)) {
        // Fails beyond the last capability that the kernel knows.
        // JUSTIFICATION: std knows no capabilities.
        // SAFETY: takes no pointers.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) } != 0 {
            break;
        }
    }
    // The surroundings of a test may lack some of them themselves.
    // JUSTIFICATION: std knows no capabilities.
    // SAFETY: takes no pointers.
    let is_held =
        |number: u8| unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(number)) } == 1;
    let word = |index: u8| {
        let of_word = kept.iter().filter(|number| **number / 32 == index && is_held(**number));
        let bits = of_word.fold(0u32, |bits, number| bits | 1 << (number % 32));
        Words { effective: bits, permitted: bits, inheritable: 0 }
    };
    let header = Header { version: 0x2008_0522, pid: 0 };
    let words = [word(0), word(1)];
    // JUSTIFICATION: std knows no capabilities.
    // SAFETY: the header is of version 3, which reads two words; both live through the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) } as libc::c_int)
}

/// Keeps programs that the calling process executes from getting more privileges.
pub(crate) fn no_new_privileges() -> io::Result<()> {
    // JUSTIFICATION: std has no wrapper.
    // SAFETY: takes no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// umount2(2) with MNT_DETACH.
pub(crate) fn unmount(target: &Path) -> io::Result<()> {
    let path = c_string(target)?;
    // JUSTIFICATION: std has no umount.
    // SAFETY: the string outlives the call.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) })
}

/// Returns the effective user id of the process.
pub(crate) fn effective_uid() -> u32 {
    // JUSTIFICATION: std has no user ids.
    // SAFETY: takes and keeps no pointers, cannot fail.
    unsafe { libc::geteuid() }
}

/// Sends `signal` to the process `pid`.
pub(crate) fn kill(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // JUSTIFICATION: std can only send SIGKILL.
    // SAFETY: takes no pointers.
    check(unsafe { libc::kill(pid, signal) })
}

/// Sets the receive buffer of a socket beyond the machine's limit.
pub fn receive_buffer(socket: &impl AsRawFd, bytes: libc::c_int) -> io::Result<()> {
    // JUSTIFICATION: std has no SO_RCVBUFFORCE.
    // SAFETY: pointer and length describe one c_int that lives through the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    })
}

/// Enables the kernel's timestamps of arriving packets, for [`receive_stamped`].
pub(crate) fn stamp_arrivals(socket: &impl AsRawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // JUSTIFICATION: std has no SO_TIMESTAMPNS.
    // SAFETY: pointer and length describe one c_int that lives through the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    })
}

/// Receives a packet. Returns its length, and the kernel's timestamp of its arrival.
pub(crate) fn receive_stamped(socket: &impl AsRawFd, buffer: &mut [u8]) -> io::Result<(usize, Duration)> {
    /// A buffer for one control message, with the required alignment.
    #[repr(C, align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // JUSTIFICATION: std receives no control messages.
    // SAFETY: all zero is a valid msghdr; its pointers are set to memory of the lengths given, which lives through the
    // calls; control messages are read only where CMSG_FIRSTHDR finds one, without need for alignment.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control.0).cast();
        message.msg_controllen = control.0.len();
        let length = libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0);
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_TIMESTAMPNS {
            return Err(io::Error::other("a packet without a time of arrival"));
        }
        let at = libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned();
        Ok((length as usize, Duration::new(at.tv_sec as u64, at.tv_nsec as u32)))
    }
}

/// Opens a raw socket for IPv6 packets with their headers (`IPPROTO_RAW`), in the calling thread's namespace.
pub(crate) fn raw_ipv6() -> io::Result<OwnedFd> {
    // JUSTIFICATION: std has no raw sockets.
    // SAFETY: takes no pointers; the descriptor is new and owned by nothing else.
    unsafe {
        let fd = libc::socket(libc::AF_INET6, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Sends an IPv6 packet with its header by the route to `destination`.
pub(crate) fn send_ipv6(socket: &impl AsRawFd, packet: &[u8], destination: Ipv6Addr) -> io::Result<()> {
    // JUSTIFICATION: std has no raw sockets.
    // SAFETY: all zero is a valid sockaddr_in6; pointers and lengths describe values that live through the call.
    let sent = unsafe {
        let mut address: libc::sockaddr_in6 = std::mem::zeroed();
        address.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        address.sin6_addr.s6_addr = destination.octets();
        libc::sendto(
            socket.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the kernel write checksums itself before packets leave by a device of the calling thread's namespace.
pub(crate) fn disable_checksum_offload(device: &str) -> io::Result<()> {
    /// `ETHTOOL_STXCSUM` and `struct ethtool_value` (linux/ethtool.h).
    const SET_TX_CHECKSUM: u32 = 0x17;
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let mut value = [SET_TX_CHECKSUM, 0];
    // JUSTIFICATION: zeroes are a valid request, of which the used fields follow.
    // SAFETY: the type has only integers, arrays and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // JUSTIFICATION: std has no requests to devices.
    // SAFETY: the request, and the value that it points at, outlive the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) })
}
