//! Any bytes give text or an error, and none of it controls a terminal.

use monitor_events::gob::{self, Payload};
use monitor_events::packet::{First, Frame, Tunnel};
use monitor_events::{Filter, Format, Printer};
use proptest::prelude::*;

/// Events of all kinds: the type, a version, then anything.
fn event() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop_oneof![1_u8..8, 128_u8..132, any::<u8>()];
    (kinds, 0_u8..5, any::<u8>(), proptest::collection::vec(any::<u8>(), 0..300)).prop_map(
        |(kind, version, flags, mut rest)| {
            rest.insert(0, kind);
            for (offset, value) in [(14, version), (27, flags), (36, flags)] {
                if let Some(byte) = rest.get_mut(offset) {
                    *byte = value;
                }
            }
            // Headers that parsers go on from: Ethernet, IPv4 or IPv6, any transport.
            for start in [36, 40, 48, 56] {
                let ip = start + 14;
                if rest.len() > ip + 10 && flags & 0x40 != 0 {
                    let is_v6 = flags & 0x80 != 0;
                    (rest[ip - 2], rest[ip - 1]) = if is_v6 { (0x86, 0xdd) } else { (8, 0) };
                    rest[ip] = if is_v6 { 0x60 } else { 0x45 };
                }
            }
            rest
        },
    )
}

proptest! {
    #[test]
    fn any_event_is_printed_without_control_characters(data in event(), cpu in 0_i64..4) {
        for format in [Format::Brief, Format::Verbose, Format::Debug, Format::Json] {
            for hex in [false, true] {
                let printer = Printer { format, hex, numeric: hex, ..Printer::default() };
                if let Some(text) = printer.event(&data, cpu, &Filter::default()) {
                    prop_assert!(text.ends_with('\n'));
                    prop_assert!(text.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn headers_are_parts_of_the_packet_in_their_order(data in event(), on_ip in any::<bool>(), is_vxlan in any::<bool>()) {
        let first = if on_ip { First::Ip } else { First::Ethernet };
        let tunnel = if is_vxlan { Tunnel::Vxlan } else { Tunnel::Geneve };
        for start in [36, 40, 48, 56] {
            let bytes = data.get(start + if on_ip { 14 } else { 0 }..).unwrap_or_default();
            let frame = Frame::parse(first, Some(tunnel), bytes);
            let outer = frame.outer.iter().flat_map(|(_, _, headers)| &headers.layers);
            let mut position = bytes.as_ptr_range().start;
            for layer in outer.chain(&frame.headers.layers) {
                let range = layer.header.as_ptr_range();
                prop_assert!(range.start >= position && range.end <= bytes.as_ptr_range().end, "{frame:?}");
                position = range.end;
                prop_assert!(layer.text().chars().all(|c| c == '\t' || !c.is_control()));
            }
            prop_assert!(frame.summary().chars().all(|c| !c.is_control()));
        }
    }

    #[test]
    fn any_stream_is_read_or_refused(data in proptest::collection::vec(any::<u8>(), 0..400), with_type in any::<bool>()) {
        let mut reader = gob::Reader::default();
        if with_type {
            reader.push(gob::PREAMBLE);
        }
        reader.push(&data);
        while let Ok(Some(value)) = reader.next_value() {
            let _payload = Payload::from(value);
        }
    }

    #[test]
    fn values_survive_the_stream(data in proptest::collection::vec(any::<u8>(), 0..400), cpu in any::<u32>(), lost in any::<u64>()) {
        let mut reader = gob::Reader::default();
        reader.push(gob::PREAMBLE);
        let (head, tail) = data.split_at(data.len() / 2);
        reader.push(&gob::sample(cpu, head, tail));
        reader.push(&gob::lost(cpu, lost));
        let first = Payload::from(reader.next_value().unwrap().unwrap());
        prop_assert_eq!(first, Payload { data, cpu: cpu.into(), lost: 0, kind: gob::SAMPLE });
        let second = Payload::from(reader.next_value().unwrap().unwrap());
        prop_assert_eq!(second, Payload { data: Vec::new(), cpu: cpu.into(), lost, kind: gob::LOST });
    }
}
