//! The user of the process at the other end of a connection on this node, by netlink (`linux/inet_diag.h`).

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink::{Body, Connection, Protocol, Request};

/// The type of requests (`linux/sock_diag.h`).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `TCP_ESTABLISHED`
const ESTABLISHED: u8 = 1;
const ANY_STATE: u32 = !0;
/// A cookie that matches any socket.
const NO_COOKIE: [u8; 8] = [0xFF; 8];
/// The bytes of `struct inet_diag_msg`, and where it has state, user and inode.
const MESSAGE_LEN: usize = 72;
const STATE: usize = 1;
const USER: usize = 64;
const INODE: usize = 68;

/// Returns the user of the process with the socket from `peer` to `local`; `None` if no process has such a socket: it
/// is closed, or its process has not accepted it yet. Blocks for microseconds.
pub(crate) fn user_of(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
    let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let selection = [family, libc::IPPROTO_TCP as u8, 0, 0];
    let ports = [peer.port().to_be_bytes(), local.port().to_be_bytes()].concat();
    let interface = [0; 4];
    let id = [&ports[..], &padded(peer.ip()), &padded(local.ip()), &interface, &NO_COOKIE].concat();
    let body = Body::new(&[&selection[..], &ANY_STATE.to_ne_bytes(), &id].concat());
    let request = Request { kind: SOCK_DIAG_BY_FAMILY, body };
    let mut connection = Connection::open(Protocol::SockDiag)?;
    match connection.get(&request, |answer| Ok(answer.body.first_chunk().map(owner))) {
        Ok(found) => Ok(found.flatten().flatten()),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Returns the user of a socket that a process has. The kernel reports root as the user of all others.
fn owner(message: &[u8; MESSAGE_LEN]) -> Option<u32> {
    let word = |at: usize| message[at..].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let has_process = word(INODE) != Some(0);
    (message[STATE] == ESTABLISHED && has_process).then(|| word(USER)).flatten()
}

fn padded(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_a_socket_of_a_process_has_a_user() {
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (from, to) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert_eq!(user_of(from, to).unwrap(), Some(own), "the client's socket");
            assert_eq!(user_of(to, from).unwrap(), None, "not accepted");
            let accepted = listener.accept().unwrap().0;
            assert_eq!(user_of(to, from).unwrap(), Some(own));
            drop(client);
            assert_eq!(user_of(from, to).unwrap(), None, "closed");
            drop(accepted);
            assert_eq!(user_of(SocketAddr::new(from.ip(), 1), to).unwrap(), None);
        }
    }
}
