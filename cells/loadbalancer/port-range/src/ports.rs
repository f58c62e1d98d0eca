//! Sets of ports, in the kernel's notation of lists.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

const WORDS: usize = 1024;

/// A set of ports.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Ports(Box<[u64; WORDS]>);

/// A text that is not a list of ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a port or a range of ports")]
pub struct InvalidPorts(String);

impl Ports {
    pub(crate) fn none() -> Ports {
        Ports(Box::new([0; WORDS]))
    }

    pub(crate) fn range(range: RangeInclusive<u16>) -> Ports {
        let mut ports = Ports::none();
        ports.insert(range);
        ports
    }

    fn insert(&mut self, range: RangeInclusive<u16>) {
        for port in range {
            self.0[usize::from(port / 64)] |= 1 << (port % 64);
        }
    }

    fn contains(&self, port: u16) -> bool {
        self.0[usize::from(port / 64)] & (1 << (port % 64)) != 0
    }

    fn combined(&self, other: &Ports, with: impl Fn(u64, u64) -> u64) -> Ports {
        let mut ports = self.clone();
        for (word, other) in ports.0.iter_mut().zip(other.0.iter()) {
            *word = with(*word, *other);
        }
        ports
    }

    pub(crate) fn with(&self, other: &Ports) -> Ports {
        self.combined(other, |one, other| one | other)
    }

    pub(crate) fn without(&self, other: &Ports) -> Ports {
        self.combined(other, |one, other| one & !other)
    }

    pub(crate) fn common(&self, other: &Ports) -> Ports {
        self.combined(other, |one, other| one & other)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Parses the first and the last port of `ip_local_port_range`.
    pub(crate) fn bounds(text: &str) -> Result<(u16, u16), InvalidPorts> {
        let ports: Option<Vec<u16>> = text.split_whitespace().map(|port| port.parse().ok()).collect();
        match ports.as_deref() {
            Some(&[first, last]) if first <= last => Ok((first, last)),
            _ => Err(InvalidPorts(text.trim().to_owned())),
        }
    }
}

/// Parses ports and ranges, separated by commas, as the kernel prints them.
impl FromStr for Ports {
    type Err = InvalidPorts;

    fn from_str(text: &str) -> Result<Ports, InvalidPorts> {
        let mut ports = Ports::none();
        for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse(), last.parse()) {
                (Ok(first), Ok(last)) if first <= last => ports.insert(first..=last),
                _ => return Err(InvalidPorts(part.to_owned())),
            }
        }
        Ok(ports)
    }
}

/// Writes ranges in order, as the kernel does.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut port, mut separator) = (0_u32, "");
        while let Ok(first) = u16::try_from(port) {
            port += 1;
            if !self.contains(first) {
                continue;
            }
            let mut last = first;
            while u16::try_from(port).is_ok_and(|next| self.contains(next)) {
                last = port as u16;
                port += 1;
            }
            write!(f, "{separator}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(text: &str) -> Ports {
        text.parse().unwrap()
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, normal) in [
            ("", ""),
            ("\n", ""),
            ("8472", "8472"),
            ("1-3,2-5,6\n", "1-6"),
            ("65535", "65535"),
            ("0,65534-65535,63-64", "0,63-64,65534-65535"),
            ("0-65535", "0-65535"),
        ] {
            assert_eq!(ports(text).to_string(), normal, "{text}");
        }
        for text in ["x", "3-1", "1-", "65536", "1-2-3", "-1"] {
            assert_eq!(text.parse::<Ports>(), Err(InvalidPorts(text.to_owned())));
        }
        assert_eq!(Ports::bounds("32768\t60999\n"), Ok((32_768, 60_999)));
        for text in ["", "1", "2 1", "1 2 3", "a b"] {
            assert!(Ports::bounds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sets_are_combined() {
        let (one, other) = (ports("1-10"), ports("5-20"));
        assert_eq!(one.with(&other), ports("1-20"));
        assert_eq!(one.without(&other), ports("1-4"));
        assert_eq!(one.common(&other), ports("5-10"));
        assert!(one.without(&one).is_empty() && !one.is_empty());
    }
}
