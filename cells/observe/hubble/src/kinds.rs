//! The kinds of events that are kept.

use datapath_abi::event;
use monitor_events::gob::{LOST, Payload};
use monitor_events::{ACCESS_LOG, AGENT};

/// The words of `hubble-monitor-events`, each with the types of its messages. As in Cilium `agent` includes records of
/// proxies.
const KINDS: [(&str, &[u8]); 8] = [
    ("agent", &[AGENT, ACCESS_LOG]),
    ("capture", &[event::DEBUG_CAPTURE]),
    ("debug", &[event::DEBUG]),
    ("drop", &[event::DROP]),
    ("l7", &[ACCESS_LOG]),
    ("policy-verdict", &[event::POLICY_VERDICT]),
    ("trace", &[event::TRACE]),
    ("trace-sock", &[event::TRACE_SOCK]),
];

/// The types of messages that are kept; `None` for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds(Option<Vec<u8>>);

impl Kinds {
    /// Returns the kinds of an option. As in Cilium all are kept if one is unknown, which is returned.
    pub(crate) fn of(words: &[String]) -> Result<Self, String> {
        let mut types = Vec::new();
        // The chart joins its lists by blanks.
        for word in words.iter().flat_map(|words| words.split_whitespace()) {
            let found = KINDS.iter().find(|(name, _)| *name == word);
            types.extend_from_slice(found.ok_or_else(|| word.to_owned())?.1);
        }
        Ok(Self((!types.is_empty()).then_some(types)))
    }

    /// Whether a message is kept; reports of losses are.
    pub(crate) fn keep(&self, payload: &Payload) -> bool {
        let is_kept = |types: &Vec<u8>| payload.data.first().is_some_and(|kind| types.contains(kind));
        payload.kind == LOST || self.0.as_ref().is_none_or(is_kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_other_kinds_are_not_kept() {
        let kept = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let kinds = Kinds::of(&words).unwrap();
            let message = |kind: u8| Payload { data: vec![kind], kind: 9, ..Payload::default() };
            assert!(kinds.keep(&Payload { kind: LOST, ..Payload::default() }));
            [1, 2, 3, 4, 5, 7, 129, 130]
                .into_iter()
                .filter(|kind| kinds.keep(&message(*kind)))
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(&[]), [1, 2, 3, 4, 5, 7, 129, 130]);
        assert_eq!(kept(&["drop", "trace-sock l7"]), [1, 7, 129]);
        assert_eq!(kept(&["agent"]), [129, 130]);
        assert_eq!(kept(&["capture", "debug", "policy-verdict", "trace"]), [2, 3, 4, 5]);
        assert_eq!(Kinds::of(&["drop".to_owned(), "drops".to_owned()]), Err("drops".to_owned()));
    }
}
