//! Cookies of network namespaces, as programs see them.
#![expect(unsafe_code, reason = "getsockopt(2) takes a pointer")]

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

/// Returns the cookie of the calling thread's network namespace (`bpf_get_netns_cookie`); `None` before Linux 5.14.
pub fn netns_cookie() -> Option<u64> {
    let socket = UnixDatagram::unbound().ok()?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // JUSTIFICATION: no safe wrapper in the dependencies.
    // SAFETY: the option is a 64-bit integer, and both pointers are to live locals of the given length.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    (answer == 0).then_some(cookie)
}
