//! The progress of an answer that is being read, without connection and clock: which silence is too long, and the meaning
//! of an end.

use std::time::Duration;

use tokio::time::Instant;

use crate::watch_timeouts::WatchTimeouts;

/// Bytes without a whole object that restart the time for it: a slow network is not a dead one.
const MIN_PROGRESS_BYTES: usize = 64 << 10;

/// A watch that ends sooner was answered by something that is no API server.
const MIN_WATCH: Duration = Duration::from_secs(1);

/// The part of an answer that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The list of existing objects.
    List,
    /// A change.
    Event,
    /// Nothing: it waits for changes.
    Idle,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A list, in one answer or a page of it.
    List,
    /// A watch that begins with the list of existing objects.
    StreamedList,
    /// A watch of changes.
    Watch,
}

/// An answer's end, or the end of the wait for more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server has ended a watch, as it does every few minutes.
    Regular,
    /// The server does not stream lists: it took the request for one of a watch.
    NotStreamed,
    /// The answer ended within a list or an object.
    Truncated,
    /// A watch ended right after its begin.
    Immediate,
    /// Too few bytes came for too long, and no whole object.
    Slow { bytes: usize },
    /// No byte came for too long.
    Silent,
}

/// The progress of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    form: Form,
    opened: Instant,
    /// When the server ends it; at once for a list.
    until: Instant,
    has_data: bool,
    /// Bytes of the object under way, and how long they were waited for.
    partial: (usize, Duration),
}

impl Answer {
    /// An answer that begins now, and that the server ends after this time.
    pub(super) fn new(form: Form, now: Instant, lifetime: Duration) -> Answer {
        Answer { form, opened: now, until: now + lifetime, has_data: false, partial: (0, Duration::ZERO) }
    }

    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// A whole object has come.
    pub(super) fn on_object(&mut self) {
        self.partial = (0, Duration::ZERO);
    }

    /// Data have come after this wait.
    pub(super) fn on_data(&mut self, phase: Phase, bytes: usize, wait: Duration) {
        self.has_data |= bytes > 0;
        if self.partial.0 + bytes >= MIN_PROGRESS_BYTES {
            self.partial = (0, Duration::ZERO);
        } else if phase != Phase::Idle {
            self.partial.0 += bytes;
            self.partial.1 += wait;
        }
    }

    /// Returns how long to wait for data. A server that sends bookmarks, which come every minute, is never silent for longer
    /// than some of them take; of others only the end of the watch is certain.
    pub(super) fn timeout(
        &self,
        phase: Phase,
        now: Instant,
        has_bookmarks: bool,
        times: &WatchTimeouts,
    ) -> Duration {
        match phase {
            Phase::List | Phase::Event => times.list_silence.saturating_sub(self.partial.1),
            Phase::Idle if has_bookmarks => times.watch_silence,
            Phase::Idle => self.until.saturating_duration_since(now) + times.list_silence,
        }
    }

    /// Returns the meaning of the answer's end. `is_between`: it ended after a whole object.
    pub(super) fn on_end(&self, phase: Phase, is_between: bool, now: Instant) -> End {
        match phase {
            _ if !is_between => End::Truncated,
            Phase::List if self.form == Form::StreamedList => End::NotStreamed,
            Phase::List => End::Truncated,
            Phase::Event | Phase::Idle if now.duration_since(self.opened) < MIN_WATCH => End::Immediate,
            Phase::Event | Phase::Idle => End::Regular,
        }
    }

    /// Returns the meaning of the timeout.
    pub(super) fn on_timeout(&self, phase: Phase) -> End {
        match self.partial.0 {
            // It streams objects, but never marks the end of the list.
            _ if phase == Phase::List && self.has_data && self.form == Form::StreamedList => End::NotStreamed,
            0 => End::Silent,
            bytes => End::Slow { bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(400);

    fn answer(form: Form) -> (Answer, Instant, WatchTimeouts) {
        let now = Instant::now();
        (Answer::new(form, now, LIFETIME), now, WatchTimeouts::default())
    }

    #[test]
    fn an_end_is_judged_by_the_phase() {
        let seconds = Duration::from_secs;
        for (form, phase, is_between, after, end) in [
            (Form::Watch, Phase::Idle, true, seconds(400), End::Regular),
            (Form::StreamedList, Phase::Idle, true, seconds(400), End::Regular),
            (Form::Watch, Phase::Idle, true, Duration::from_millis(999), End::Immediate),
            (Form::Watch, Phase::Event, false, seconds(400), End::Truncated),
            (Form::StreamedList, Phase::List, true, seconds(0), End::NotStreamed),
            (Form::StreamedList, Phase::List, false, seconds(9), End::Truncated),
            (Form::List, Phase::List, true, seconds(9), End::Truncated),
        ] {
            let (answer, now, _) = answer(form);
            assert_eq!(answer.on_end(phase, is_between, now + after), end, "{form:?} {phase:?} {is_between}");
        }
    }

    #[test]
    fn an_idle_watch_may_be_silent_until_its_end_or_a_bookmark_is_due() {
        let (answer, now, times) = answer(Form::Watch);
        let timeout = |after, has_bookmarks| answer.timeout(Phase::Idle, now + after, has_bookmarks, &times);
        assert_eq!(timeout(Duration::ZERO, false), LIFETIME + times.list_silence);
        assert_eq!(timeout(LIFETIME * 2, false), times.list_silence);
        assert_eq!(timeout(LIFETIME * 2, true), times.watch_silence);
        assert_eq!(answer.on_timeout(Phase::Idle), End::Silent);
    }

    #[test]
    fn drops_do_not_restart_the_time_for_an_object_but_much_of_one_does() {
        let (mut answer, now, times) = answer(Form::List);
        let timeout = |answer: &Answer| answer.timeout(Phase::List, now, false, &times);
        assert_eq!((timeout(&answer), answer.on_timeout(Phase::List)), (times.list_silence, End::Silent));
        let wait = Duration::from_secs(4);
        for n in 1..=3 {
            answer.on_data(Phase::List, 10, wait);
            assert_eq!(timeout(&answer), times.list_silence - wait * n);
        }
        assert_eq!(answer.on_timeout(Phase::List), End::Slow { bytes: 30 });
        answer.on_data(Phase::List, 10, wait);
        assert_eq!(timeout(&answer), Duration::ZERO, "no more time than there was");
        answer.on_data(Phase::List, MIN_PROGRESS_BYTES, wait);
        assert_eq!((timeout(&answer), answer.on_timeout(Phase::List)), (times.list_silence, End::Silent));
        answer.on_data(Phase::Event, 10, wait);
        answer.on_object();
        assert_eq!(timeout(&answer), times.list_silence);
    }

    #[test]
    fn a_streamed_list_without_an_end_is_not_streamed() {
        let (mut answer, ..) = answer(Form::StreamedList);
        assert_eq!(answer.on_timeout(Phase::List), End::Silent);
        answer.on_data(Phase::List, 10, Duration::ZERO);
        assert_eq!(answer.on_timeout(Phase::List), End::NotStreamed);
        assert_eq!(answer.on_timeout(Phase::Event), End::Slow { bytes: 10 });
    }
}
