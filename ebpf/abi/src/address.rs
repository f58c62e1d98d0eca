//! Addresses in map fields: the bytes of the packet, read as words in host byte order.

use core::net::{Ipv4Addr, Ipv6Addr};

/// The `family` of an IPv4 entry in cilium_lxc, cilium_ipcache_v2 and cilium_node_map_v2.
pub const FAMILY_V4: u8 = 1;
/// The `family` of an IPv6 entry.
pub const FAMILY_V6: u8 = 2;

/// Returns an IPv4 address as a word with the memory layout of network byte order.
#[inline(always)]
pub const fn ipv4_word(ip: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(ip.octets())
}

/// Returns the address that [`ipv4_word`] has converted to `word`.
#[inline(always)]
pub const fn ipv4_from_word(word: u32) -> Ipv4Addr {
    let [a, b, c, d] = word.to_ne_bytes();
    Ipv4Addr::new(a, b, c, d)
}

/// Returns an IPv6 address as four words with the memory layout of network byte order.
#[inline(always)]
pub const fn ipv6_words(ip: Ipv6Addr) -> [u32; 4] {
    let o = ip.octets();
    [
        u32::from_ne_bytes([o[0], o[1], o[2], o[3]]),
        u32::from_ne_bytes([o[4], o[5], o[6], o[7]]),
        u32::from_ne_bytes([o[8], o[9], o[10], o[11]]),
        u32::from_ne_bytes([o[12], o[13], o[14], o[15]]),
    ]
}

/// Returns the address that [`ipv6_words`] has converted to `words`.
#[inline(always)]
pub fn ipv6_from_words(words: [u32; 4]) -> Ipv6Addr {
    let mut octets = [0u8; 16];
    for (four, word) in octets.chunks_exact_mut(4).zip(words) {
        four.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(octets)
}

/// Returns a MAC address in the format of Cilium's maps: six bytes in wire order, two zero bytes.
#[inline(always)]
pub const fn mac_word(mac: [u8; 6]) -> u64 {
    u64::from_ne_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
}

/// Returns the MAC address in the first six bytes of `word`.
#[inline(always)]
pub const fn mac_from_word(word: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = word.to_ne_bytes();
    [a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lie_in_memory_as_on_the_wire() {
        let v4 = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(ipv4_word(v4).to_ne_bytes(), [192, 0, 2, 1]);
        assert_eq!(ipv4_from_word(ipv4_word(v4)), v4);
        let v6: Ipv6Addr = "2001:db8::1:2".parse().unwrap();
        assert_eq!(ipv6_words(v6)[0].to_ne_bytes(), [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(ipv6_from_words(ipv6_words(v6)), v6);
        let mac = [2, 0, 0, 0xaa, 0xbb, 0xcc];
        assert_eq!(mac_from_word(mac_word(mac)), mac);
    }
}
