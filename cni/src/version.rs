//! Versions of the CNI specification.

use serde_json::json;

/// A supported version of the CNI specification, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CniVersion {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl CniVersion {
    pub(crate) const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Parses a version; by the specification, a configuration without one has the first.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::V0_1_0);
        }
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }
}

/// Returns all supported versions, for messages.
pub(crate) fn list() -> String {
    CniVersion::ALL.map(CniVersion::as_str).join(", ")
}

/// Returns the response to VERSION.
pub(crate) fn report() -> String {
    json!({
        "cniVersion": CniVersion::V1_1_0.as_str(),
        "supportedVersions": CniVersion::ALL.map(CniVersion::as_str),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_and_round_trip() {
        for version in CniVersion::ALL {
            assert_eq!(CniVersion::parse(version.as_str()), Some(version));
        }
        assert!(CniVersion::ALL.is_sorted());
        assert_eq!(CniVersion::parse(""), Some(CniVersion::V0_1_0));
        assert_eq!(CniVersion::parse("0.3"), None);
        assert_eq!(CniVersion::parse("2.0.0"), None);
    }

    #[test]
    fn report_names_every_version() {
        insta::assert_snapshot!(report(), @r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#);
    }
}
