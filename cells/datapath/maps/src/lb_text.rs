//! Entries of the load balancer's maps as text, as Cilium's key and value types print them.

use std::net::{IpAddr, SocketAddr};

use datapath_abi::{
    LbAffinity, LbAffinityKey, LbAffinityMatch, LbBackend, LbReverseNat, LbService, LbServiceKey,
    LbSourceRange, Pod, ipv4_from_word, ipv6_from_words,
};

/// An address as a map holds it.
trait Address: Copy {
    fn ip(self) -> IpAddr;
}

impl Address for u32 {
    fn ip(self) -> IpAddr {
        ipv4_from_word(self).into()
    }
}

impl Address for [u32; 4] {
    fn ip(self) -> IpAddr {
        ipv6_from_words(self).into()
    }
}

/// Formats key and value; `None` for maps that are not of load balancing.
pub(crate) fn row(name: &str, key: &[u8], value: &[u8]) -> Option<(String, String)> {
    match name {
        "cilium_lb_affinity_match" => {
            let key = LbAffinityMatch::from_bytes(key)?;
            Some((format!("{} {}", key.backend_id, u16::from_be(key.rev_nat_id)), String::new()))
        }
        "cilium_lb4_affinity" => {
            let client = LbAffinityKey::<[u32; 2]>::from_bytes(key)?;
            let ([word, _], cookie) = (client.client, u64::from_bytes(key)?);
            Some((affinity(word.ip(), cookie, client.rev_nat_id, client.netns_cookie), last_used(value)?))
        }
        "cilium_lb6_affinity" => {
            let client = LbAffinityKey::<[u32; 4]>::from_bytes(key)?;
            let cookie = u64::from_bytes(key)?;
            let text = affinity(client.client.ip(), cookie, client.rev_nat_id, client.netns_cookie);
            Some((text, last_used(value)?))
        }
        _ => match name.split_at_checked("cilium_lb4_".len())? {
            ("cilium_lb4_", kind) => of_family::<u32>(kind, key, value),
            ("cilium_lb6_", kind) => of_family::<[u32; 4]>(kind, key, value),
            _ => None,
        },
    }
}

fn of_family<A: Address>(kind: &str, key: &[u8], value: &[u8]) -> Option<(String, String)>
where
    LbServiceKey<A>: Pod,
    LbBackend<A>: Pod,
    LbReverseNat<A>: Pod,
    LbSourceRange<A>: Pod,
{
    Some(match kind {
        "services_v2" => {
            let (key, value) = (LbServiceKey::<A>::from_bytes(key)?, LbService::from_bytes(value)?);
            let scope = if key.scope == 0 { "" } else { "/i" };
            let frontend = format!("{}/{}{scope}", place(key.address, key.dport), protocol(key.proto));
            let LbService { backend_id, count, qcount, flags, flags2, .. } = value;
            let id = u16::from_be(value.rev_nat_index);
            (
                format!("{frontend} ({})", key.backend_slot),
                format!("{backend_id} {count}[{qcount}] ({id}) [0x{flags:x} 0x{flags2:x}]"),
            )
        }
        "backends_v3" => {
            let backend = LbBackend::<A>::from_bytes(value)?;
            let place = place(backend.address, backend.port);
            (u32::from_bytes(key)?.to_string(), format!("{}://{place}", protocol(backend.proto)))
        }
        "reverse_nat" => {
            let frontend = LbReverseNat::<A>::from_bytes(value)?;
            (u16::from_be(u16::from_bytes(key)?).to_string(), place(frontend.address, frontend.port))
        }
        "source_range" => {
            let key = LbSourceRange::<A>::from_bytes(key)?;
            let (ip, bits) = (key.address.ip(), key.prefixlen.saturating_sub(SOURCE_RANGE_STATIC_BITS));
            (format!("{ip}/{bits} ({})", u16::from_be(key.rev_nat_id)), String::new())
        }
        _ => return None,
    })
}

/// Bits of the service id and its padding, which precede the prefix in each key.
const SOURCE_RANGE_STATIC_BITS: u32 = 32;

fn place(address: impl Address, port: u16) -> String {
    SocketAddr::new(address.ip(), u16::from_be(port)).to_string()
}

fn affinity(client: IpAddr, cookie: u64, service: u16, is_cookie: u8) -> String {
    let client = if is_cookie == 0 { client.to_string() } else { format!("cookie:{cookie}") };
    format!("{client} {}", u16::from_be(service))
}

fn last_used(value: &[u8]) -> Option<String> {
    let LbAffinity { last_used, backend_id, .. } = LbAffinity::from_bytes(value)?;
    Some(format!("{backend_id} {last_used}"))
}

fn protocol(number: u8) -> String {
    match number {
        0 => "ANY".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        132 => "SCTP".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_services_read_as_cilium_prints_them() {
        let key = LbServiceKey {
            address: u32::from_ne_bytes([10, 96, 0, 1]),
            dport: 443_u16.to_be(),
            backend_slot: 2,
            proto: 6,
            scope: 1,
            ..LbServiceKey::default()
        };
        let value = LbService {
            backend_id: 7,
            count: 3,
            rev_nat_index: 9_u16.to_be(),
            flags: 0x60,
            flags2: 1,
            qcount: 1,
        };
        let (key, value) = row("cilium_lb4_services_v2", key.as_bytes(), value.as_bytes()).unwrap();
        assert_eq!((key.as_str(), value.as_str()), ("10.96.0.1:443/TCP/i (2)", "7 3[1] (9) [0x60 0x1]"));
        let backend = LbBackend {
            address: [0, 0, 0, 1_u32.to_be()],
            port: 80_u16.to_be(),
            proto: 17,
            ..LbBackend::default()
        };
        let (key, value) = row("cilium_lb6_backends_v3", 5_u32.as_bytes(), backend.as_bytes()).unwrap();
        assert_eq!((key.as_str(), value.as_str()), ("5", "UDP://[::1]:80"));
        let range = LbSourceRange {
            prefixlen: 56,
            rev_nat_id: 9_u16.to_be(),
            address: u32::from_ne_bytes([192, 0, 2, 0]),
            ..LbSourceRange::default()
        };
        let (key, _) = row("cilium_lb4_source_range", range.as_bytes(), &[0]).unwrap();
        assert_eq!(key, "192.0.2.0/24 (9)");
        let pair = LbAffinityMatch { backend_id: 5, rev_nat_id: 9_u16.to_be(), pad: 0 };
        assert_eq!(row("cilium_lb_affinity_match", pair.as_bytes(), &[0]).unwrap().0, "5 9");
        assert_eq!(row("cilium_lb4_maglev", &[0; 2], &[0; 4]), None);
    }
}
