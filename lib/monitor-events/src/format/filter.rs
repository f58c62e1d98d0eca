//! Which events are printed.

use crate::decode::Event;

/// A kind of event, by the words of `--type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of --type")]
pub enum Kind {
    Agent,
    Capture,
    Debug,
    Drop,
    L7,
    PolicyVerdict,
    Trace,
    TraceSock,
}

impl Kind {
    /// All kinds with their words.
    pub const ALL: [(&'static str, Kind); 8] = [
        ("agent", Kind::Agent),
        ("capture", Kind::Capture),
        ("debug", Kind::Debug),
        ("drop", Kind::Drop),
        ("l7", Kind::L7),
        ("policy-verdict", Kind::PolicyVerdict),
        ("trace", Kind::Trace),
        ("trace-sock", Kind::TraceSock),
    ];
}

/// A choice of events; an empty list chooses all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Kinds of events.
    pub kinds: Vec<Kind>,
    /// Ids of source endpoints.
    pub from: Vec<u16>,
    /// Ids of destination endpoints.
    pub to: Vec<u16>,
    /// Ids of endpoints at either end.
    pub related: Vec<u16>,
}

impl Filter {
    /// True if the event is chosen.
    #[must_use]
    pub fn matches(&self, event: &Event<'_>) -> bool {
        let (kind, source, destination) = match event {
            Event::Drop(drop) => (Kind::Drop, drop.source, drop.dst_id as u16),
            Event::Trace(trace) => (Kind::Trace, trace.source, trace.dst_id),
            // Cilium compares the remote identity where others have a destination endpoint.
            Event::Verdict(verdict) => (Kind::PolicyVerdict, verdict.source, verdict.remote_label as u16),
            Event::Debug(debug) => (Kind::Debug, debug.source, 0),
            Event::Capture(capture) => (Kind::Capture, capture.source, 0),
            Event::Agent(_) => (Kind::Agent, 0, 0),
            Event::Record(record) => (Kind::L7, record.source.id as u16, record.destination.id as u16),
            Event::Socket(_) => return self.has(Kind::TraceSock),
            Event::Unknown(_) => return true,
        };
        let one_of = |ids: &[u16], wanted: &[u16]| ids.is_empty() || wanted.iter().any(|id| ids.contains(id));
        self.has(kind)
            && one_of(&self.from, &[source])
            && one_of(&self.to, &[destination])
            && one_of(&self.related, &[source, destination])
    }

    fn has(&self, kind: Kind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }
}
