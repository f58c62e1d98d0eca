//! The version of a server.

use std::fmt;

use serde::Deserialize;

/// The response of `GET /version`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Version {
    major: String,
    minor: String,
    git_version: String,
    platform: String,
}

/// Formats the version as in Cilium's status: `1.34 (v1.34.4) [linux/amd64]`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} ({}) [{}]", self.major, self.minor, self.git_version, self.platform)
    }
}
