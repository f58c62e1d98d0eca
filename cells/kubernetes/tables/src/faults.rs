//! Invalid objects of a source: each is reported once.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hive::health::summarize;
use prometheus_client::metrics::gauge::Gauge;
use statedb::KeyBuf;

use k8s_types::Kind;

use crate::events::InvalidObject;
use crate::numbers::Numbers;

/// The maximum number of objects in health; the log has all.
const MAX_SHOWN: usize = 5;

/// The maximum length of an object's report, in characters.
const MAX_TEXT: usize = 1000;

/// The invalid objects of one kind in one source.
pub(crate) struct Faults {
    kind: Kind,
    source: String,
    /// The reports by object; for objects without a valid name only the last one.
    now: BTreeMap<Option<KeyBuf>, String>,
    /// The same for an incomplete list.
    listing: Option<BTreeMap<Option<KeyBuf>, String>>,
    gauge: Gauge,
}

impl Faults {
    pub(crate) fn new(kind: Kind, source: &str, numbers: &Numbers) -> Faults {
        let gauge = numbers.invalid(kind, source);
        Faults { kind, source: source.to_owned(), now: BTreeMap::new(), listing: None, gauge }
    }

    /// Whether a list has begun and is not complete.
    pub(crate) fn is_listing(&self) -> bool {
        self.listing.is_some()
    }

    /// Starts a list.
    pub(crate) fn restart(&mut self) {
        self.listing = Some(BTreeMap::new());
    }

    /// Completes a list: removes objects that it did not contain.
    pub(crate) fn listed(&mut self) {
        if let Some(listed) = self.listing.take() {
            self.now = listed;
            self.count();
        }
    }

    /// Records and logs an invalid object.
    pub(crate) fn invalid(&mut self, key: Option<KeyBuf>, invalid: &InvalidObject) {
        let text = self.text(invalid);
        if self.now.get(&key) != Some(&text) {
            tracing::warn!(
                source = self.source,
                error = text,
                "Object refused; what was in force of it before stays. Correct it where it comes from"
            );
        }
        match &mut self.listing {
            Some(listing) => _ = listing.insert(key, text),
            None => {
                self.now.insert(key, text);
                self.count();
            }
        }
    }

    /// Removes an object that is valid or deleted.
    pub(crate) fn valid(&mut self, key: &KeyBuf) {
        if self.now.is_empty() && self.listing.as_ref().is_none_or(BTreeMap::is_empty) {
            return;
        }
        let key = Some(key.clone());
        if let Some(listing) = &mut self.listing {
            listing.remove(&key);
        } else if let Some(text) = self.now.remove(&key) {
            tracing::info!(source = self.source, before = text, "Object is right again, or gone");
            self.count();
        }
    }

    /// Returns the text for health.
    pub(crate) fn summary(&self) -> Option<String> {
        let summary = summarize(self.now.values(), MAX_SHOWN, "; ");
        Some(format!("{summary}. What was in force of them before stays")).filter(|_| !self.now.is_empty())
    }

    fn text(&self, invalid: &InvalidObject) -> String {
        let mut text = self.kind.name().to_owned();
        if let Some(key) = &invalid.key {
            _ = write!(text, " {key}");
        }
        if !invalid.origin.is_empty() {
            _ = write!(text, " ({})", invalid.origin);
        }
        _ = write!(text, ": {}", invalid.refusal);
        if let Some((end, _)) = text.char_indices().nth(MAX_TEXT) {
            text.truncate(end);
            text.push_str("...");
        }
        text
    }

    fn count(&self) {
        self.gauge.set(i64::try_from(self.now.len()).unwrap_or(i64::MAX));
    }
}

/// Resets the gauge when the source ends.
impl Drop for Faults {
    fn drop(&mut self) {
        self.now.clear();
        self.count();
    }
}
