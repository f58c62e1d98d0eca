//! Addresses of IPv4 in those of IPv6, and types of ICMP.

use core::net::Ipv6Addr;
use datapath_abi::nat46x64::*;
use datapath_abi::{ipv4_word, ipv6_from_words, ipv6_words};

#[test]
fn addresses_are_those_of_rfc_6052() {
    let ipv4 = ipv4_word([192, 0, 2, 33].into());
    assert_eq!(ipv6_from_words(prefixed(ipv4)), "64:ff9b::192.0.2.33".parse::<Ipv6Addr>().unwrap());
    assert_eq!(ipv6_from_words(mapped(ipv4)), "::ffff:192.0.2.33".parse::<Ipv6Addr>().unwrap());
    for (address, is_embedding) in [
        ("64:ff9b::1.2.3.4", true),
        ("::ffff:1.2.3.4", true),
        ("64:ff9b:1::1.2.3.4", false),
        ("64:ff9b::1:1.2.3.4", false),
        ("::1.2.3.4", false),
        ("::1:ffff:1.2.3.4", false),
    ] {
        let words = ipv6_words(address.parse().unwrap());
        assert_eq!(embeds(words), is_embedding, "{address}");
        assert_eq!(embedded(words), ipv4_word([1, 2, 3, 4].into()));
        assert_eq!(is_mapped(words) || is_prefixed(words), is_embedding);
    }
}

#[test]
fn errors_have_counterparts_and_come_back() {
    // Of both: [IPv4, IPv6].
    for [four, six] in [
        [([8, 0], 0x1234_0001), ([128, 0], 0x1234_0001)],
        [([0, 0], 7), ([129, 0], 7)],
        [([3, 1], 0), ([1, 0], 0)],
        [([3, 10], 0), ([1, 1], 0)],
        [([3, 3], 0), ([1, 4], 0)],
        [([3, 2], 0), ([4, 1], 6)],
        [([3, 4], 1400), ([2, 0], 1420)],
        [([11, 0], 0), ([3, 0], 0)],
        [([11, 1], 0), ([3, 1], 0)],
    ] {
        assert_eq!(to_icmpv6(four).ok(), Some(six));
        assert_eq!(to_icmp(six).ok(), Some(four));
    }
    for code in [0, 5, 6, 7, 8, 11, 12] {
        assert_eq!(to_icmpv6(([3, code], 9)).ok(), Some(([1, 0], 0)), "{code}");
    }
    for code in [9, 13] {
        assert_eq!(to_icmpv6(([3, code], 9)).ok(), Some(([1, 1], 0)), "{code}");
    }
}

#[test]
fn lengths_that_routers_report_are_those_of_the_other_family() {
    let too_big = |mtu| to_icmpv6(([3, 4], mtu)).ok().unwrap().1;
    assert_eq!([0, 1480, 576, 0xdead_05dc].map(too_big), [1520, 1500, 1280, 1520]);
    let needed = |mtu| to_icmp(([2, 0], mtu)).ok().unwrap().1;
    assert_eq!([0, 1500, 1280, 9, 1 << 20].map(needed), [1480, 1480, 1260, 0, 65535]);
}

#[test]
fn messages_without_counterpart_are_refused_by_type_or_code() {
    for (kind, code, is_type) in [(13, 0, true), (5, 0, true), (3, 15, false)] {
        let refused = to_icmpv6(([kind, code], 0)).expect_err("no counterpart");
        assert_eq!(matches!(refused, Unknown::Type), is_type, "{kind}/{code}");
    }
    for (kind, code, is_type) in [(135, 0, true), (1, 5, false), (4, 2, false)] {
        let refused = to_icmp(([kind, code], 0)).expect_err("no counterpart");
        assert_eq!(matches!(refused, Unknown::Type), is_type, "{kind}/{code}");
    }
}
