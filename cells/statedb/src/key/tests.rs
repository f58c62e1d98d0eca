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
    fn the_successor_is_the_end_of_a_prefix(a: Vec<u8>, b: Vec<u8>) {
        let (mut ka, mut kb) = (KeyBuf::new(), KeyBuf::new());
        ka.push(&a);
        kb.push(&b);
        let inside = kb >= ka && ka.successor().is_none_or(|end| kb < end);
        prop_assert_eq!(b.starts_with(&a), inside);
    }
}

#[test]
fn text_gives_the_key_of_the_value() {
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
    assert_eq!(std::mem::size_of::<KeyBuf>(), 32);
}
