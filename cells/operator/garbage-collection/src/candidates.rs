//! Objects that may be collected once they have been candidates for some time.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_types::{Key, SmolStr};
use tokio::time::Instant;

/// Candidates, each with its uid and the time since which it is one without a break.
#[derive(Debug, Default)]
pub(crate) struct Candidates(BTreeMap<Key, (SmolStr, Instant)>);

impl Candidates {
    /// Replaces the candidates by these; returns those that have been candidates for `age`.
    pub(crate) fn update(
        &mut self,
        found: impl IntoIterator<Item = (Key, SmolStr)>,
        now: Instant,
        age: Duration,
    ) -> Vec<(Key, SmolStr)> {
        let mut before = std::mem::take(&mut self.0);
        let mut due = Vec::new();
        for (key, uid) in found {
            let since =
                before.remove(&key).filter(|(known, _)| *known == uid).map_or(now, |(_, since)| since);
            if now.saturating_duration_since(since) >= age {
                due.push((key.clone(), uid.clone()));
            }
            self.0.insert(key, (uid, since));
        }
        due
    }

    /// Returns the number of candidates.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_candidate_without_a_break_is_due() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut candidates = Candidates::default();
        let mut due = |seconds, found: &[(&str, &str)]| {
            let found = found.iter().map(|(name, uid)| (Key::new("", *name), SmolStr::from(*uid)));
            let due = candidates.update(found.collect::<Vec<_>>(), at(seconds), Duration::from_secs(60));
            due.into_iter().map(|(key, uid)| format!("{key} {uid}")).collect::<Vec<_>>()
        };
        assert_eq!(due(0, &[("a", "1"), ("b", "1"), ("c", "1")]), [""; 0]);
        assert_eq!(due(59, &[("a", "1"), ("c", "2")]), [""; 0]);
        assert_eq!(
            due(60, &[("a", "1"), ("b", "1"), ("c", "2")]),
            ["a 1"],
            "b had a break, c is another one"
        );
        assert_eq!(due(119, &[("a", "1"), ("b", "1"), ("c", "2")]), ["a 1", "c 2"]);
        assert_eq!(candidates.len(), 3);
    }
}
