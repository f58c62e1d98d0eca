//! Ports that sockets of the node have open.

use std::collections::BTreeSet;

const FILES: [&str; 4] = ["/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6"];

/// Returns the local ports of all sockets in this network namespace. A file that cannot be read (a kernel without IPv6)
/// has none.
pub(crate) fn open_ports() -> BTreeSet<u16> {
    let files = FILES.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    files.flat_map(|text| ports(&text)).collect()
}

/// Returns the local ports in a file of sockets (`proc_net_tcp.txt` of the kernel): `sl local_address rem_address ...`,
/// addresses as `0100007F:2710`.
fn ports(text: &str) -> Vec<u16> {
    let local = |line: &str| {
        let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    text.lines().skip(1).filter_map(local).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_both_families_are_found() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                    0: 0100007F:2710 00000000:0000 0A 00000000:00000000\n   \
                    1: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 0A\n";
        assert_eq!(ports(text), [10_000, 53]);
    }

    #[test]
    fn a_bound_socket_is_found() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(open_ports().contains(&socket.local_addr().unwrap().port()));
    }
}
