use std::net::IpAddr;

use ipnetwork::IpNetwork;
use proptest::prelude::*;

use super::*;

fn ordered<K: IndexKey + Ord>(a: &K, b: &K) {
    let (ka, kb) = (KeyBuf::of(a), KeyBuf::of(b));
    assert_eq!(a.cmp(b), ka.cmp(&kb));
    assert!(a == b || !kb.as_bytes().starts_with(ka.as_bytes()), "prefix of another key: {ka:?} {kb:?}");
}

proptest! {
    #[test]
    fn encodings_sort_as_the_values(
        a: (i32, u64, bool), b: (i32, u64, bool),
        s in "[a\\x00\\x01\u{ff}]{0,6}", t in "[a\\x00\\x01\u{ff}]{0,6}",
        ip: IpAddr, iq: IpAddr,
    ) {
        ordered(&a, &b);
        ordered(&s, &t);
        ordered(&ip, &iq);
        ordered(&(s.clone(), a.0), &(t.clone(), b.0));
        ordered(&Some(a.0), &None);
        ordered(&s.as_bytes().to_vec().as_slice(), &t.as_bytes().to_vec().as_slice());
    }

    #[test]
    fn a_string_prefix_covers_exactly_its_strings(s in "[ab\\x00\\x01]{0,3}", t in "[ab\\x00\\x01]{0,5}") {
        let mut prefix = KeyBuf::new();
        PrefixOf::<str>::encode_prefix(s.as_str(), &mut prefix);
        prop_assert_eq!(t.starts_with(&s), KeyBuf::of(&t).as_bytes().starts_with(prefix.as_bytes()));
    }

    #[test]
    fn a_raw_bound_splits_values_as_their_bytes(
        number: u16, text in "[ab\\x00\u{ff}]{0,3}", flag: bool,
        bound in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..4),
            "[ab\\x00\u{ff}]{0,3}".prop_map(String::into_bytes),
            prop::sample::select(vec![b"F".to_vec(), b"T".to_vec(), b"G".to_vec(), vec![0xff, 0xff, 0]]),
        ],
    ) {
        fn reached<K: IndexKey + ?Sized>(value: &K, bound: &[u8]) -> bool {
            let mut key = KeyBuf::new();
            K::encode_raw_bound(bound, &mut key).unwrap() && KeyBuf::of(value) >= key
        }
        prop_assert_eq!(reached(&number, &bound), number.to_be_bytes().as_slice() >= bound.as_slice());
        prop_assert_eq!(reached(&text, &bound), text.as_bytes() >= bound.as_slice());
        let flag_bytes: &[u8] = if flag { b"T" } else { b"F" };
        prop_assert_eq!(reached(&flag, &bound), flag_bytes >= bound.as_slice());
    }
}

#[test]
fn raw_bytes_encode_as_the_value() {
    fn same<K: IndexKey>(raw: &[u8], value: K) {
        let mut key = KeyBuf::new();
        assert!(K::encode_raw(raw, &mut key).unwrap());
        assert_eq!(key, KeyBuf::of(&value), "{raw:?}");
    }
    same(&[1, 2], 0x102u16);
    same(&[0xff; 4], -1i32);
    same(b"T", true);
    same(b"a\0b", "a\0b");
    same(&[2, 0, 0, 0, 0, 7], [2, 0, 0, 0, 0, 7u8]);
    let mapped = |ip: &str| ip.parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped().octets();
    same(&mapped("10.0.0.1"), "10.0.0.1".parse::<IpAddr>().unwrap());
    same(&[&mapped("10.0.0.0")[..], &[8]].concat(), "10.0.0.0/8".parse::<IpNetwork>().unwrap());
    let none = |is: Result<bool, KeyParseError>| assert_eq!(is, Ok(false));
    none(u32::encode_raw(&[1, 2], &mut KeyBuf::new()));
    none(bool::encode_raw(b"x", &mut KeyBuf::new()));
    none(IpAddr::encode_raw(&[10, 0, 0, 1], &mut KeyBuf::new()));
    none(IpNetwork::encode_raw(&[&mapped("10.0.0.1")[..], &[8]].concat(), &mut KeyBuf::new()));
    let error = <(u16, bool)>::encode_raw(&[0, 1], &mut KeyBuf::new()).unwrap_err();
    assert_eq!(error.to_string(), "`0001` is not a key of an index that can be asked by bytes");
    assert_eq!(<(u16, bool)>::encode_raw_bound(&[], &mut KeyBuf::new()), Ok(true));
    assert!(IpAddr::encode_raw_bound(&[1], &mut KeyBuf::new()).is_err());
}

#[test]
fn text_encodes_as_the_value() {
    fn same<K: IndexKey>(text: &str, value: K) {
        let mut key = KeyBuf::new();
        K::encode_text(text, &mut key).unwrap();
        assert_eq!(key, KeyBuf::of(&value), "{text}");
    }
    same("-5", -5i32);
    same("fd00::1", "fd00::1".parse::<IpAddr>().unwrap());
    same("10.1.2.3/8", "10.0.0.0/8".parse::<IpNetwork>().unwrap());
    same("0a:00:ff:01:02:03", [0x0a, 0, 0xff, 1, 2, 3u8]);
    same("eth0,7", ("eth0", 7u16));
    same("", None::<u32>);
    let wrong = u16::encode_text("70000", &mut KeyBuf::new()).unwrap_err();
    assert_eq!(wrong.to_string(), "`70000` is not a number (u16)");
    assert!(<(u8, u8)>::encode_text("1,2,3", &mut KeyBuf::new()).is_err());
}

#[test]
fn long_keys_move_to_the_heap_unchanged() {
    let long = "x".repeat(70_000);
    assert_eq!(KeyBuf::of(long.as_str()).as_bytes().len(), long.len() + 2);
    assert_eq!(std::mem::size_of::<KeyBuf>(), 64);
}
