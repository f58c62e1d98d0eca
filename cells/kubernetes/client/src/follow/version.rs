//! Resource versions: the position of a watch.

use super::Follow;
use crate::request_error::{ErrorKind, RequestError};
use crate::scan::find;

impl Follow {
    /// Stores the version from the end of a list.
    pub(super) fn version_of(&mut self, object: &[u8]) {
        if let Some(version) = version(object) {
            self.version.clear();
            self.version.push_str(version);
        }
    }

    /// Advances to the version of an object of a watch. Versions only grow: if one goes back, the server has lost
    /// changes or belongs to another cluster, and all objects are listed again.
    pub(super) fn advance(&mut self, object: &[u8]) -> Result<(), RequestError> {
        let number = |text: &str| text.parse::<u64>().ok();
        if let Some(now) = version(object).and_then(number)
            && number(&self.version).is_some_and(|before| now < before)
        {
            let url = self.reading.as_ref().map(|reading| reading.lease.url.clone()).unwrap_or_default();
            let text = format!(
                "{url} goes back in time: version {now} of {} after {}. All are listed again; was etcd restored, or do \
                 servers of several clusters answer at this address?",
                self.target.name, self.version
            );
            return Err(RequestError::new(ErrorKind::Rewound, text));
        }
        self.version_of(object);
        Ok(())
    }
}

/// Returns `metadata.resourceVersion`.
pub(crate) fn version(object: &[u8]) -> Option<&str> {
    let version = find(object, "metadata").and_then(|metadata| find(metadata, "resourceVersion"))?;
    let version = std::str::from_utf8(version.strip_prefix(b"\"")?.strip_suffix(b"\"")?).ok()?;
    (!version.is_empty()).then_some(version)
}
