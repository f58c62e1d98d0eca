//! The state machine of a response that is being read, without I/O and clock: timeouts, and the classification of ends.

use std::time::Duration;

use tokio::time::Instant;

use crate::watch_timeouts::WatchTimeouts;

/// The number of bytes of an incomplete object that restart its timeout, since a slow network still makes progress.
const MIN_PROGRESS_BYTES: usize = 64 << 10;

/// The minimum duration of a watch. One that ends sooner was not answered by an API server.
const MIN_WATCH: Duration = Duration::from_secs(1);

/// The current part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The list of existing objects.
    List,
    /// A change.
    Event,
    /// No data is expected before the next change.
    Idle,
}

/// The form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A list, complete or one page.
    List,
    /// A watch that starts with the list of existing objects.
    StreamedList,
    /// A watch of changes.
    Watch,
}

/// The classification of a response's end or timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server has ended a watch at its timeout.
    Regular,
    /// The server does not support streaming lists: it handled the request as a plain watch.
    NotStreamed,
    /// The response ended within a list or an object.
    Truncated,
    /// A watch ended right after its start.
    Immediate,
    /// No complete object and too few bytes were received until the timeout.
    Slow { bytes: usize },
    /// No byte was received until the timeout.
    Silent,
}

/// The progress of a response.
#[derive(Debug)]
pub(super) struct Answer {
    form: Form,
    opened: Instant,
    /// The time at which the server ends it; the start for a list.
    until: Instant,
    has_data: bool,
    /// The size of the incomplete object, and the time waited for it.
    partial: (usize, Duration),
}

impl Answer {
    /// Creates the state of a response that starts now and that the server ends after `lifetime`.
    pub(super) fn new(form: Form, now: Instant, lifetime: Duration) -> Answer {
        Answer { form, opened: now, until: now + lifetime, has_data: false, partial: (0, Duration::ZERO) }
    }

    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// Records that an object is complete.
    pub(super) fn on_object(&mut self) {
        self.partial = (0, Duration::ZERO);
    }

    /// Records data that was received after a wait.
    pub(super) fn on_data(&mut self, phase: Phase, bytes: usize, wait: Duration) {
        self.has_data |= bytes > 0;
        if self.partial.0 + bytes >= MIN_PROGRESS_BYTES {
            self.partial = (0, Duration::ZERO);
        } else if phase != Phase::Idle {
            self.partial.0 += bytes;
            self.partial.1 += wait;
        }
    }

    /// Returns the timeout for data. A server that sends bookmarks, one per minute, is never silent for longer than a
    /// few of them take; of other servers only the end of the watch is known.
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

    /// Classifies the response's end. `is_between`: it ended after a complete object.
    pub(super) fn on_end(&self, phase: Phase, is_between: bool, now: Instant) -> End {
        match phase {
            _ if !is_between => End::Truncated,
            Phase::List if self.form == Form::StreamedList => End::NotStreamed,
            Phase::List => End::Truncated,
            Phase::Event | Phase::Idle if now.duration_since(self.opened) < MIN_WATCH => End::Immediate,
            Phase::Event | Phase::Idle => End::Regular,
        }
    }

    /// Classifies the timeout.
    pub(super) fn on_timeout(&self, phase: Phase) -> End {
        match self.partial.0 {
            // The server streams objects, but never sends the bookmark that ends the list.
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
    fn an_end_is_classified_by_the_phase() {
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
    fn few_bytes_do_not_restart_the_timeout_of_an_object_but_many_do() {
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
