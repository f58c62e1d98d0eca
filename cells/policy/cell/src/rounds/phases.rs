//! The order of a round's writes, and the decision when a round is due: state and functions without tables, kernel or
//! clock.
//!
//! Maps and ipcache cannot change in one step, so a round is a sequence of phases in which no packet gets a verdict
//! that neither the old nor the new rules have. While rules are in force, the maps get the rows of new prefixes by
//! these rules, which changes nothing as no packet carries their identities yet; then the ipcache gets the prefixes;
//! then the rules change, in the maps alone. At startup the rules that the maps follow are unknown, and packets carry
//! the identities of the previous run until the ipcache has the new ones: the maps get the new rows first and lose the
//! old ones last.

use std::time::Duration;

use hive::job::Backoff;

/// Delays between attempts of a round that has failed.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(50);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Whether rules have been in force since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Maps are as the previous run has left them.
    Startup,
    /// Maps follow the rules of the repository.
    Running,
}

/// The identities of prefixes that staged policies name for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewPrefixes {
    /// Staged policies name no new prefix.
    None,
    /// The identities are allocated.
    Allocated,
    /// The identities cannot be allocated; the policies stay staged.
    Unavailable,
}

/// A step of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Writes the rows of the committed rules.
    WriteMaps,
    /// Upserts new prefixes into the ipcache and waits until the kernel has them.
    PublishPrefixes,
    /// Commits policies and options, and writes their rows.
    CommitRules,
    /// As `CommitRules`, but rows of the previous run for other prefixes stay until `WriteMaps`.
    CommitRulesKeepPrefixes,
}

impl Mode {
    /// Returns the phases of a round, in their order.
    pub(crate) fn phases(self, prefixes: NewPrefixes) -> &'static [Phase] {
        use Phase::{CommitRules, CommitRulesKeepPrefixes, PublishPrefixes, WriteMaps};
        match (self, prefixes) {
            (_, NewPrefixes::None) => &[CommitRules],
            (Mode::Startup, NewPrefixes::Allocated) => &[CommitRulesKeepPrefixes, PublishPrefixes, WriteMaps],
            (Mode::Running, NewPrefixes::Allocated) => &[WriteMaps, PublishPrefixes, CommitRules],
            // No rules are in force yet, so there are no rows to write.
            (Mode::Startup, NewPrefixes::Unavailable) => &[],
            // Apply changed endpoints and options to the rules in force; staged policies wait for the prefixes.
            (Mode::Running, NewPrefixes::Unavailable) => &[CommitRules],
        }
    }
}

/// The decision when a round is due. `V`: the versions of the rows that rounds read.
#[derive(Debug)]
pub(crate) struct Schedule<V> {
    mode: Mode,
    /// The versions in the last round.
    seen: Option<V>,
    /// Whether maps are to be compared with the rules without a reported change.
    resync: bool,
    /// Whether a round is requested without a reported change.
    requested: bool,
    failed: bool,
    backoff: Backoff,
}

impl<V: PartialEq> Schedule<V> {
    pub(crate) fn new() -> Schedule<V> {
        let backoff = Backoff::exponential(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        Schedule { mode: Mode::Startup, seen: None, resync: false, requested: false, failed: false, backoff }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Makes the next round compare maps with the rules.
    pub(crate) fn request_resync(&mut self) {
        self.resync = true;
    }

    /// Makes the next round due.
    pub(crate) fn request_round(&mut self) {
        self.requested = true;
    }

    /// Whether a round is due. The round's own writes wake the job, too, but do not change the versions.
    pub(crate) fn is_due(&mut self, has_changes: bool, versions: V) -> bool {
        let is_seen = self.seen.as_ref() == Some(&versions);
        let is_requested = std::mem::take(&mut self.requested) || self.resync;
        let is_due = has_changes || !is_seen || is_requested || self.failed || self.mode == Mode::Startup;
        if is_due {
            self.seen = Some(versions);
        }
        is_due
    }

    /// Begins a round. Returns whether it is a resync.
    pub(crate) fn begin(&mut self) -> bool {
        std::mem::take(&mut self.resync)
    }

    /// Records that rules are in force. Returns whether this is the first time.
    pub(crate) fn rules_in_force(&mut self) -> bool {
        std::mem::replace(&mut self.mode, Mode::Running) == Mode::Startup
    }

    /// Ends a round. Returns the delay until its retry, if it has failed.
    pub(crate) fn end(&mut self, failed: bool) -> Option<Duration> {
        self.failed = failed;
        if !failed {
            self.backoff.reset();
            return None;
        }
        self.backoff.next_wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(Mode, NewPrefixes); 6] = [
        (Mode::Startup, NewPrefixes::None),
        (Mode::Startup, NewPrefixes::Allocated),
        (Mode::Startup, NewPrefixes::Unavailable),
        (Mode::Running, NewPrefixes::None),
        (Mode::Running, NewPrefixes::Allocated),
        (Mode::Running, NewPrefixes::Unavailable),
    ];

    fn commits(phase: &Phase) -> bool {
        matches!(phase, Phase::CommitRules | Phase::CommitRulesKeepPrefixes)
    }

    #[test]
    fn maps_have_rows_of_prefixes_before_packets_carry_them() {
        for (mode, prefixes) in ALL {
            let phases = mode.phases(prefixes);
            let publishes = phases.iter().position(|phase| *phase == Phase::PublishPrefixes);
            assert_eq!(publishes.is_some(), prefixes == NewPrefixes::Allocated, "{mode:?} {prefixes:?}");
            if let Some(at) = publishes {
                assert!(at > 0 && at + 1 < phases.len(), "{mode:?}: written before and after");
            }
        }
    }

    #[test]
    fn rules_are_committed_once_and_while_prefixes_are_known_to_the_kernel_or_the_maps() {
        for (mode, prefixes) in ALL {
            let commits = mode.phases(prefixes).iter().filter(|phase| commits(phase)).count();
            let expected = usize::from((mode, prefixes) != (Mode::Startup, NewPrefixes::Unavailable));
            assert_eq!(commits, expected, "{mode:?} {prefixes:?}");
        }
        let order = |mode: Mode| mode.phases(NewPrefixes::Allocated).iter().position(commits);
        assert_eq!((order(Mode::Startup), order(Mode::Running)), (Some(0), Some(2)));
    }

    #[test]
    fn rounds_follow_changes_and_not_their_own_writes() {
        let mut schedule = Schedule::new();
        assert!(schedule.is_due(false, 1), "before rules are in force");
        assert!(schedule.rules_in_force());
        assert_eq!(schedule.end(false), None);
        assert!(!schedule.is_due(false, 1));
        assert!(schedule.is_due(true, 1), "an object has changed");
        assert!(schedule.is_due(false, 2), "an endpoint has changed");
        assert!(!schedule.is_due(false, 2));
        schedule.request_resync();
        assert!(schedule.is_due(false, 2));
        assert!(schedule.begin());
        assert!(!schedule.begin(), "one round is enough");
        assert!(!schedule.rules_in_force(), "for the first time before");
    }

    #[test]
    fn a_failed_round_is_retried_with_backoff() {
        let mut schedule = Schedule::new();
        schedule.rules_in_force();
        assert!(schedule.is_due(false, 1));
        // The jitter of delays is a tenth.
        let is_about = |wait: Option<Duration>, expected: Duration| {
            wait.is_some_and(|wait| wait > expected * 8 / 10 && wait < expected * 12 / 10)
        };
        assert!(is_about(schedule.end(true), MIN_RETRY_INTERVAL));
        assert!(schedule.is_due(false, 1));
        assert!(is_about(schedule.end(true), 2 * MIN_RETRY_INTERVAL));
        assert_eq!(schedule.end(false), None);
        assert!(!schedule.is_due(false, 1));
        assert!(is_about(schedule.end(true), MIN_RETRY_INTERVAL), "from the beginning");
    }
}
