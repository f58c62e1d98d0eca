//! Formats of strings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::names;

macro_rules! formats {
    ($($(#[$meta:meta])* $format:ident $name:literal;)*) => {
        /// The format of a string or a number.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Format {
            /// Anything.
            #[default]
            Any,
            $($(#[$meta])* $format,)*
        }

        impl Format {
            /// Returns the format with a name, if it exists.
            pub(super) fn named(name: &str) -> Option<Format> {
                match name {
                    "" => Some(Format::Any),
                    $($name => Some(Format::$format),)*
                    _ => None,
                }
            }

            /// Returns its name.
            fn name(self) -> &'static str {
                match self {
                    Format::Any => "",
                    $(Format::$format => $name,)*
                }
            }
        }
    };
}

formats! {
    /// 32 bits.
    Int32 "int32";
    /// 64 bits.
    Int64 "int64";
    /// 8 bits unsigned; a server has only `number`.
    Uint8 "uint8";
    /// 16 bits unsigned; a server has only `number`.
    Uint16 "uint16";
    /// 63 bits unsigned; a server has only the signed format.
    Uint63 "uint63";
    /// A time (RFC 3339).
    DateTime "date-time";
    /// A network address with a prefix length.
    Cidr "cidr";
    /// An IPv4 address.
    Ipv4 "ipv4";
    /// An IPv6 address.
    Ipv6 "ipv6";
    /// An address.
    Ip "ip";
    /// An address, or `None`.
    ClusterIp "cluster-ip";
    /// A host name; the API server does not check it.
    Hostname "idn-hostname";
    /// A label of a DNS name.
    DnsLabel "dns-label";
    /// A DNS name.
    DnsSubdomain "dns-subdomain";
    /// A name of a service.
    ServiceName "service-name";
    /// A name of a container's port.
    PortName "port-name";
    /// A key of a label.
    QualifiedName "qualified-name";
    /// A key of an annotation.
    AnnotationName "annotation-name";
    /// A value of a label.
    LabelValue "label-value";
    /// A key of a ConfigMap or a Secret.
    ConfigKey "config-key";
}

impl Format {
    /// Checks a text; the error describes valid ones.
    pub(crate) fn check(self, text: &str) -> Result<(), &'static str> {
        let is = |good: bool, right| if good { Ok(()) } else { Err(right) };
        match self {
            Format::Any
            | Format::Int32
            | Format::Int64
            | Format::Uint8
            | Format::Uint16
            | Format::Uint63
            | Format::Hostname => Ok(()),
            Format::DateTime => is(time(text), "a time, as 2006-01-02T15:04:05Z"),
            Format::Cidr => is(cidr(text), "a network with its length, as 10.0.0.0/8 or fd00::/8"),
            Format::Ipv4 => is(text.parse::<Ipv4Addr>().is_ok(), "an IPv4 address"),
            Format::Ipv6 => is(text.parse::<Ipv6Addr>().is_ok(), "an IPv6 address"),
            Format::Ip => is(text.parse::<IpAddr>().is_ok(), "an IPv4 or IPv6 address"),
            Format::ClusterIp => {
                is(text == "None" || text.parse::<IpAddr>().is_ok(), "an IPv4 or IPv6 address, or None")
            }
            Format::DnsLabel => names::dns_label(text),
            Format::DnsSubdomain => names::dns_subdomain(text),
            Format::ServiceName => names::service_name(text),
            Format::PortName => names::port_name(text),
            Format::QualifiedName => names::qualified_name(text),
            Format::AnnotationName => names::qualified_name(&text.to_ascii_lowercase()),
            Format::LabelValue => names::label_value(text),
            Format::ConfigKey => is(
                (1..=253).contains(&text.len())
                    && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c)),
                "1 to 253 letters, digits, '-', '_' and '.'",
            ),
        }
    }

    /// Returns the range of allowed numbers.
    pub(crate) fn range(self) -> (i64, i64) {
        match self {
            Format::Int32 => (i32::MIN.into(), i32::MAX.into()),
            Format::Uint8 => (0, u8::MAX.into()),
            Format::Uint16 => (0, u16::MAX.into()),
            Format::Uint63 => (0, i64::MAX),
            _ => (i64::MIN, i64::MAX),
        }
    }

    /// Returns its name in a definition; none if API servers do not support it.
    pub(super) fn standard(self) -> Option<&'static str> {
        use Format::{Cidr, DateTime, Hostname, Int32, Int64, Ipv4, Ipv6, Uint63};
        match self {
            Uint63 => Some("int64"),
            Int32 | Int64 | DateTime | Cidr | Ipv4 | Ipv6 | Hostname => Some(self.name()),
            _ => None,
        }
    }
}

fn cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let plain = length.len() <= 3
        && length.bytes().all(|c| c.is_ascii_digit())
        && !(length.len() > 1 && length.starts_with('0'));
    let most = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    plain && length.parse::<u8>().is_ok_and(|length| length <= most)
}

/// Whether a text is a time such as `2006-01-02T15:04:05.999Z`, or with `+01:00`. Leap years are not checked.
fn time(text: &str) -> bool {
    let number = |text: &str, from: u8, to: u8| {
        text.len() == 2
            && text.bytes().all(|c| c.is_ascii_digit())
            && text.parse::<u8>().is_ok_and(|number| (from..=to).contains(&number))
    };
    let Some((day, time)) = text.split_once(['T', 't']) else { return false };
    let [year, month, date] = day.split('-').collect::<Vec<_>>()[..] else { return false };
    let Some(end) = time.find(['Z', 'z', '+', '-']) else { return false };
    let (clock, zone) = time.split_at(end);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = clock.split(':').collect::<Vec<_>>()[..] else { return false };
    let zone = match zone.split_at(1) {
        ("Z" | "z", "") => true,
        ("+" | "-", offset) => offset
            .split_once(':')
            .is_some_and(|(hours, minutes)| number(hours, 0, 23) && number(minutes, 0, 59)),
        _ => false,
    };
    year.len() == 4
        && year.bytes().all(|c| c.is_ascii_digit())
        && number(month, 1, 12)
        && number(date, 1, 31)
        && number(hour, 0, 23)
        && number(minute, 0, 59)
        && number(second, 0, 60)
        && !fraction.is_empty()
        && fraction.bytes().all(|c| c.is_ascii_digit())
        && zone
}
