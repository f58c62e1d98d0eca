//! Versions of schemas, as the label has them.

/// A version `major.minor.patch`, to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    numbers: [u64; 3],
    /// A pre-release is older than its release.
    is_release: bool,
}

impl Version {
    /// Parses a version as Cilium does: a `v` in front, and a missing minor or patch number are accepted.
    pub(crate) fn parse(text: &str) -> Option<Version> {
        let text = text.trim().trim_start_matches('v');
        let text = text.split('+').next().unwrap_or_default();
        let (numbers, pre) = text.split_once('-').map_or((text, None), |(numbers, pre)| (numbers, Some(pre)));
        let mut version = Version { numbers: [0; 3], is_release: pre.is_none() };
        let parts: Vec<&str> = numbers.split('.').collect();
        if parts.len() > version.numbers.len() {
            return None;
        }
        for (number, part) in version.numbers.iter_mut().zip(parts) {
            *number = part.parse().ok()?;
        }
        Some(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        let parsed = |text: &str| Version::parse(text).unwrap();
        for (older, newer) in
            [("1.9.0", "1.33.9"), ("v1.33.8", "1.33.9"), ("1.33.9-rc.1", "1.33.9"), ("1", "1.0.1")]
        {
            assert!(parsed(older) < parsed(newer), "{older} {newer}");
        }
        assert_eq!(parsed("v1.33"), parsed("1.33.0"));
        for wrong in ["", "one", "1.2.3.4", "1..2"] {
            assert_eq!(Version::parse(wrong), None, "{wrong}");
        }
    }
}
