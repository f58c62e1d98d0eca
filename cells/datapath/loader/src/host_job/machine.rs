//! The schedule of observing, applying and comparing the host's side of the datapath: a state machine without clock,
//! tasks or kernel.
//!
//! The shell (`run.rs`) passes events to [`HostMachine::handle`], performs the actions of [`HostMachine::poll_action`]
//! one after the other and in their order, and sleeps until [`HostMachine::next_timeout`]. Each command (observe,
//! apply, retire, compare) is answered by one event; until then the machine issues no other command.
//!
//! ```text
//!         Changed, timeout          Observed, differs             Applied
//!  idle -------------------> observing ----------------> applying -------> retiring --+
//!   ^ \                         |                                             ^       |
//!   |  \ timeout                +---------------------------------------------+       |
//!   |   +--> comparing --> (observing)    Observed, nothing to apply                  |
//!   +---------------------------------------------------------------------------------+
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use datapath_api::DatapathError;
use devices::Device;
use hive::job::Backoff;

use crate::config::Notifications;
use crate::interfaces::desired::Desired;
use crate::watchdog::schedule::{Comparison, Schedule};

/// An input of the machine.
#[derive(Debug)]
pub(crate) enum Event {
    /// A table or an option has changed since it was observed.
    Changed,
    /// Answer to [`Action::Observe`].
    Observed(Box<Observation>),
    /// Answer to [`Action::Apply`].
    Applied(Applied),
    /// Answer to [`Action::Retire`], with the time until the next retirement is due.
    Retired(Option<Duration>),
    /// Answer to [`Action::Compare`].
    Compared(Comparison),
    /// The kernel has reported a removal that may concern the datapath.
    Alarm,
    /// Owners of other map entries have repaired drift, which the next comparison reports.
    DriftRepaired,
    /// The watchdog's interval has changed; zero disables it.
    Interval(Duration),
    /// The time returned by [`HostMachine::next_timeout`] has come.
    Timeout,
    /// The job is to end: no command follows; the answer to the command in flight is still recorded.
    Stop,
}

/// The state of tables and options at a point of time.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    /// The desired state; `None` while the router has no address.
    pub(crate) desired: Option<Desired>,
    pub(crate) links: HostLinks,
    pub(crate) notifications: Notifications,
    /// Revision of the runtime options that `notifications` come from.
    pub(crate) options_revision: u64,
}

/// The host's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostLinks {
    pub(crate) devices: [Option<Device>; 2],
    /// The tunnel device; none in native mode, and where it cannot be created.
    pub(crate) tunnel: Option<Device>,
}

impl HostLinks {
    /// Whether both devices exist and are up.
    fn are_up(&self) -> bool {
        self.devices.iter().all(|device| device.as_ref().is_some_and(|device| device.is_up()))
    }
}

/// The outcome of applying a desired state.
#[derive(Debug)]
pub(crate) struct Applied {
    /// Whether the kernel lacks nftables, so that the host's packets have no mark; or the error.
    pub(crate) unmarked: Result<bool, DatapathError>,
    /// Whether there are programs in use now, also after a failure.
    pub(crate) has_programs: bool,
}

/// An output of the machine.
#[derive(Debug)]
pub(crate) enum Action {
    /// Command: read tables and options.
    Observe,
    /// Command: bring the host's side to this state.
    Apply(Box<Desired>),
    /// Command: remove leftovers of replaced programs.
    Retire,
    /// Command: compare the kernel with the state that was applied, and repair it.
    Compare,
    /// Request the owners of other map entries to compare theirs.
    BeginDriftChecks,
    /// Report to health.
    Report(Status),
    /// Report that the runtime options of this revision are in force.
    OptionsApplied(u64),
}

impl Action {
    /// Whether the action only reports state.
    fn is_report(&self) -> bool {
        matches!(self, Action::Report(_) | Action::OptionsApplied(_))
    }
}

/// The state of the host's side, for health.
#[derive(Debug)]
pub(crate) enum Status {
    WaitingForRouter,
    Ready { unmarked: bool },
    Failed(DatapathError),
}

/// The machine.
#[derive(Debug)]
pub(crate) struct HostMachine {
    phase: Phase,
    actions: VecDeque<Action>,
    /// The state that was applied last; `None` if the next observation has to be applied in any case.
    applied: Option<Desired>,
    /// The options that the programs in use were loaded with.
    in_force: Option<Notifications>,
    /// A load failed half-way: some programs have the new options, some the previous ones.
    partly_loaded: bool,
    has_programs: bool,
    links: Option<HostLinks>,
    /// Tables or options have changed while a command was in flight.
    changed: bool,
    /// When to observe again without an event: a retry, or programs to retire.
    round_at: Option<Instant>,
    backoff: Backoff,
    schedule: Schedule,
    stopping: bool,
}

#[derive(Debug)]
enum Phase {
    Idle,
    Observing,
    Applying { desired: Box<Desired>, notifications: Notifications, options_revision: u64 },
    Retiring { retry: Option<Duration> },
    Comparing,
}

impl HostMachine {
    /// Creates a machine that begins with an observation. Failures are retried after `backoff`, comparisons follow each
    /// `interval`; zero disables them.
    pub(crate) fn new(interval: Duration, backoff: Backoff, now: Instant) -> HostMachine {
        let mut machine = HostMachine {
            phase: Phase::Idle,
            actions: VecDeque::new(),
            applied: None,
            in_force: None,
            partly_loaded: false,
            has_programs: false,
            links: None,
            changed: false,
            round_at: None,
            backoff,
            schedule: Schedule::new(interval, now),
            stopping: false,
        };
        machine.begin_round();
        machine
    }

    /// Returns the next action to perform.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns when [`Event::Timeout`] is due. Without programs there is nothing to compare.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if !matches!(self.phase, Phase::Idle) || self.stopping {
            return None;
        }
        let comparison = self.schedule.deadline().filter(|_| self.has_programs);
        self.round_at.into_iter().chain(comparison).min()
    }

    /// Whether [`Event::DriftRepaired`] would change the schedule.
    pub(crate) fn awaits_drift_repairs(&self) -> bool {
        self.has_programs && self.schedule.awaits_drift_repairs()
    }

    /// Handles an event. An answer to a command that is not in flight is ignored.
    pub(crate) fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::Changed => self.changed = true,
            Event::Observed(observation) => {
                if let Phase::Observing = self.phase {
                    self.observed(*observation, now);
                }
            }
            Event::Applied(applied) => {
                if let Phase::Applying { .. } = self.phase {
                    self.apply_ended(applied, now);
                }
            }
            Event::Retired(again) => {
                if let Phase::Retiring { retry } = self.phase {
                    self.round_at = retry.or(again).map(|wait| now + wait);
                    self.phase = Phase::Idle;
                }
            }
            Event::Compared(comparison) => {
                if let Phase::Comparing = self.phase {
                    self.schedule.compared(comparison, now);
                    if comparison == Comparison::HostSideLost {
                        self.applied = None;
                    }
                    self.phase = Phase::Idle;
                    self.changed = true;
                }
            }
            Event::Alarm => self.schedule.alarm(now),
            Event::DriftRepaired => self.schedule.drift_repaired(now),
            Event::Interval(interval) => self.schedule.set_interval(interval, now),
            Event::Timeout => self.timeout(now),
            Event::Stop => {
                self.stopping = true;
                self.actions.retain(Action::is_report);
            }
        }
        if self.changed && matches!(self.phase, Phase::Idle) {
            self.begin_round();
        }
    }

    fn begin_round(&mut self) {
        self.round_at = None;
        // The observation that follows sees all changes until now.
        self.changed = false;
        self.command(Action::Observe, Phase::Observing);
    }

    fn observed(&mut self, observation: Observation, now: Instant) {
        let Observation { desired, links, notifications, options_revision } = observation;
        // Compared with the previous observation instead of waiting for a watch: a change during a command wakes no
        // watch.
        if self.links.as_ref().is_some_and(|before| *before != links) {
            self.schedule.soon(now);
        }
        // Another process deleted the host devices or set them down.
        if !links.are_up() {
            self.applied = None;
        }
        self.links = Some(links);
        match desired.filter(|desired| self.applied.as_ref() != Some(desired)) {
            Some(desired) => {
                let desired = Box::new(desired);
                let apply = Action::Apply(desired.clone());
                self.command(apply, Phase::Applying { desired, notifications, options_revision });
            }
            None => {
                if self.applied.is_none() {
                    self.actions.push_back(Action::Report(Status::WaitingForRouter));
                }
                self.end_round(notifications, options_revision, None);
            }
        }
    }

    fn apply_ended(&mut self, applied: Applied, now: Instant) {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        let Phase::Applying { desired, notifications, options_revision } = phase else { return };
        self.has_programs = applied.has_programs;
        let retry = match applied.unmarked {
            Ok(unmarked) => {
                self.actions.push_back(Action::Report(Status::Ready { unmarked }));
                self.schedule.confirm(now);
                self.backoff.reset();
                self.applied = Some(*desired);
                (self.in_force, self.partly_loaded) = (Some(notifications), false);
                None
            }
            Err(error) => {
                self.actions.push_back(Action::Report(Status::Failed(error)));
                // A failure may have undone parts of the previous state: a return to that one is a change, too.
                self.applied = None;
                self.partly_loaded |= self.in_force != Some(notifications);
                self.backoff.next_wait()
            }
        };
        self.end_round(notifications, options_revision, retry);
    }

    fn end_round(&mut self, notifications: Notifications, options_revision: u64, retry: Option<Duration>) {
        // Without programs there is nothing to reload: the first ones are loaded with these options.
        if !self.partly_loaded && self.in_force.is_none_or(|loaded| loaded == notifications) {
            self.actions.push_back(Action::OptionsApplied(options_revision));
        }
        self.command(Action::Retire, Phase::Retiring { retry });
    }

    fn timeout(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Idle) {
            return;
        }
        if self.round_at.is_some_and(|at| at <= now) {
            return self.begin_round();
        }
        if self.has_programs && self.schedule.deadline().is_some_and(|at| at <= now) {
            if self.schedule.take_drift_checks(now) && !self.stopping {
                self.actions.push_back(Action::BeginDriftChecks);
            }
            self.command(Action::Compare, Phase::Comparing);
        }
    }

    fn command(&mut self, command: Action, phase: Phase) {
        if self.stopping {
            self.phase = Phase::Idle;
        } else {
            self.actions.push_back(command);
            self.phase = phase;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use datapath_abi::NodeConfig;
    use devices::Link;

    use super::*;
    use crate::interfaces::host::HostSettings;

    const INTERVAL: Duration = Duration::from_secs(30);
    const BASE: Notifications = Notifications { drops: true, traces: true, verdicts: true, aggregation: 0 };

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A desired state, distinguished from others by this value.
    fn desired(trace_payload_len: u32) -> Desired {
        Desired {
            host: HostSettings::default(),
            constants: NodeConfig { trace_payload_len, ..NodeConfig::default() },
            tunnel: None,
            ipip: None,
            acceleration: Default::default(),
            devices: BTreeMap::new(),
            masquerade: BTreeMap::new(),
            addresses: BTreeSet::new(),
        }
    }

    fn links(mtu: u32) -> HostLinks {
        let link = Link { raw_flags: 1, mtu, ..Link::default() };
        let device = Some(Device { link, ..Device::default() });
        HostLinks { devices: [device.clone(), device], tunnel: None }
    }

    fn observation(number: u32) -> Observation {
        Observation {
            desired: Some(desired(number)),
            links: links(1500),
            notifications: BASE,
            options_revision: number.into(),
        }
    }

    /// The machine with a clock that only the test moves.
    struct Bench {
        machine: HostMachine,
        now: Instant,
    }

    impl Bench {
        fn new(interval: Duration) -> Bench {
            let now = Instant::now();
            let backoff = Backoff::exponential(ms(200), ms(30_000)).jitter(0.0);
            Bench { machine: HostMachine::new(interval, backoff, now), now }
        }

        fn send(&mut self, event: Event) {
            self.machine.handle(event, self.now);
        }

        /// Takes all actions, as their names.
        fn actions(&mut self) -> Vec<String> {
            std::iter::from_fn(|| self.machine.poll_action())
                .map(|action| match action {
                    Action::Apply(desired) => format!("apply {}", desired.constants.trace_payload_len),
                    Action::OptionsApplied(revision) => format!("options {revision}"),
                    Action::Report(Status::Failed(_)) => "failed".to_owned(),
                    Action::Report(Status::Ready { unmarked: false }) => "ready".to_owned(),
                    Action::Report(Status::Ready { unmarked: true }) => "unmarked".to_owned(),
                    Action::Report(Status::WaitingForRouter) => "waiting".to_owned(),
                    other => format!("{other:?}").to_lowercase(),
                })
                .collect()
        }

        fn observe(&mut self, observation: Observation) -> Vec<String> {
            self.send(Event::Observed(Box::new(observation)));
            self.actions()
        }

        fn succeed(&mut self) -> Vec<String> {
            self.send(Event::Applied(Applied { unmarked: Ok(false), has_programs: true }));
            self.actions()
        }

        fn fail(&mut self, has_programs: bool) -> Vec<String> {
            self.send(Event::Applied(Applied { unmarked: Err(DatapathError::NotReady), has_programs }));
            self.actions()
        }

        fn retire(&mut self, again: Option<Duration>) -> Vec<String> {
            self.send(Event::Retired(again));
            self.actions()
        }

        /// Moves the clock to the next timeout and returns how long that took.
        fn sleep(&mut self) -> Option<Duration> {
            let at = self.machine.next_timeout()?;
            let slept = at.saturating_duration_since(self.now);
            self.now += slept;
            self.send(Event::Timeout);
            Some(slept)
        }

        /// A machine that has applied state 1 and is idle.
        fn idle(interval: Duration) -> Bench {
            let mut bench = Bench::new(interval);
            assert_eq!(bench.actions(), ["observe"]);
            assert_eq!(bench.observe(observation(1)), ["apply 1"]);
            assert_eq!(bench.succeed(), ["ready", "options 1", "retire"]);
            assert!(bench.retire(None).is_empty());
            bench
        }
    }

    #[test]
    fn what_is_applied_is_not_applied_again() {
        let mut bench = Bench::idle(Duration::ZERO);
        assert_eq!(bench.machine.next_timeout(), None);
        bench.send(Event::Changed);
        assert_eq!(bench.actions(), ["observe"]);
        assert_eq!(
            bench.observe(Observation { options_revision: 7, ..observation(1) }),
            ["options 7", "retire"]
        );
    }

    #[test]
    fn without_the_routers_address_it_waits() {
        let mut bench = Bench::new(INTERVAL);
        bench.actions();
        let none = Observation { desired: None, ..observation(1) };
        assert_eq!(bench.observe(none), ["waiting", "options 1", "retire"]);
        bench.retire(None);
        assert_eq!(bench.machine.next_timeout(), None, "no programs, nothing to compare");
        bench.send(Event::Alarm);
        assert_eq!(bench.machine.next_timeout(), None);
    }

    #[test]
    fn changes_while_a_command_is_in_flight_are_one_observation_after_it() {
        let mut bench = Bench::new(INTERVAL);
        bench.actions();
        bench.observe(observation(1));
        for _ in 0..3 {
            bench.send(Event::Changed);
        }
        assert!(bench.actions().is_empty(), "one command at a time");
        assert_eq!(bench.succeed(), ["ready", "options 1", "retire"]);
        assert_eq!(bench.retire(None), ["observe"]);
        assert_eq!(bench.observe(observation(2)), ["apply 2"], "compared with the state that was applied");
        bench.succeed();
        assert!(bench.retire(None).is_empty());
    }

    #[test]
    fn answers_to_no_command_in_flight_are_ignored() {
        let mut bench = Bench::idle(Duration::ZERO);
        assert!(bench.observe(observation(2)).is_empty());
        assert!(bench.fail(true).is_empty());
        assert!(bench.retire(Some(ms(1))).is_empty());
        bench.send(Event::Compared(Comparison::HostSideLost));
        bench.send(Event::Timeout);
        assert!(bench.actions().is_empty());
        assert_eq!(bench.machine.next_timeout(), None);
        bench.send(Event::Changed);
        bench.actions();
        assert_eq!(bench.observe(observation(1)), ["options 1", "retire"], "state 1 is still applied");
    }

    #[test]
    fn failures_are_retried_with_backoff_until_a_success_resets_it() {
        let mut bench = Bench::new(Duration::ZERO);
        bench.actions();
        for wait in [200, 400, 800] {
            assert_eq!(bench.observe(observation(1)), ["apply 1"]);
            assert_eq!(bench.fail(false), ["failed", "retire"]);
            // The time of the retry takes precedence over that of the retirement.
            assert!(bench.retire(Some(ms(1))).is_empty());
            assert_eq!(bench.sleep(), Some(ms(wait)));
            assert_eq!(bench.actions(), ["observe"]);
        }
        bench.observe(observation(1));
        assert_eq!(bench.succeed(), ["ready", "options 1", "retire"]);
        bench.retire(None);
        bench.send(Event::Changed);
        bench.actions();
        bench.observe(observation(2));
        bench.fail(true);
        bench.retire(None);
        assert_eq!(bench.sleep(), Some(ms(200)));
    }

    #[test]
    fn a_change_retries_at_once() {
        let mut bench = Bench::new(Duration::ZERO);
        bench.actions();
        bench.observe(observation(1));
        bench.fail(false);
        bench.retire(None);
        bench.send(Event::Changed);
        assert_eq!(bench.actions(), ["observe"]);
        assert_eq!(bench.observe(observation(1)), ["apply 1"]);
    }

    #[test]
    fn after_a_failure_the_previous_state_is_applied_again() {
        let mut bench = Bench::idle(Duration::ZERO);
        bench.send(Event::Changed);
        bench.actions();
        bench.observe(observation(2));
        bench.fail(true);
        bench.retire(None);
        bench.sleep();
        bench.actions();
        assert_eq!(bench.observe(observation(1)), ["apply 1"]);
    }

    #[test]
    fn options_are_in_force_only_when_all_programs_have_them() {
        let mut bench = Bench::idle(Duration::ZERO);
        let quiet = Notifications { drops: false, ..BASE };
        bench.send(Event::Changed);
        bench.actions();
        bench.observe(Observation { notifications: quiet, ..observation(2) });
        assert_eq!(bench.fail(true), ["failed", "retire"]);
        bench.retire(None);
        bench.sleep();
        bench.actions();
        // Options that were in force before are not in force again before a load has succeeded.
        bench.observe(observation(3));
        assert_eq!(bench.fail(true), ["failed", "retire"]);
        bench.retire(None);
        bench.sleep();
        bench.actions();
        bench.observe(observation(3));
        assert_eq!(bench.succeed(), ["ready", "options 3", "retire"]);
        // A failure that concerns no option does not keep a request waiting.
        bench.retire(None);
        bench.send(Event::Changed);
        bench.actions();
        bench.observe(observation(4));
        assert_eq!(bench.fail(true), ["failed", "options 4", "retire"]);
    }

    #[test]
    fn host_devices_that_are_gone_or_down_are_made_again() {
        for lost in [None, Some(Device::default())] {
            let mut bench = Bench::idle(Duration::ZERO);
            bench.send(Event::Changed);
            bench.actions();
            let [host, _] = links(1500).devices;
            let links = HostLinks { devices: [host, lost], tunnel: None };
            assert_eq!(bench.observe(Observation { links, ..observation(1) }), ["apply 1"]);
        }
    }

    #[test]
    fn replaced_programs_are_retired_when_it_is_time() {
        let mut bench = Bench::idle(Duration::ZERO);
        bench.send(Event::Changed);
        bench.actions();
        bench.observe(observation(2));
        bench.succeed();
        bench.retire(Some(ms(1000)));
        assert_eq!(bench.sleep(), Some(ms(1000)));
        assert_eq!(bench.actions(), ["observe"]);
        assert_eq!(bench.observe(observation(2)), ["options 2", "retire"]);
        bench.retire(None);
        assert_eq!(bench.machine.next_timeout(), None);
    }

    #[test]
    fn comparisons_follow_the_interval_and_restore_the_hosts_side() {
        let mut bench = Bench::idle(INTERVAL);
        assert_eq!(bench.sleep(), Some(ms(1000)), "what was removed during the apply");
        assert_eq!(bench.actions(), ["compare"]);
        bench.send(Event::Compared(Comparison::Done));
        assert_eq!(bench.actions(), ["observe"]);
        assert_eq!(bench.observe(observation(1)), ["options 1", "retire"]);
        bench.retire(None);
        assert_eq!(bench.sleep(), Some(INTERVAL));
        assert_eq!(bench.actions(), ["begindriftchecks", "compare"]);
        bench.send(Event::Compared(Comparison::HostSideLost));
        assert_eq!(bench.actions(), ["observe"]);
        assert_eq!(bench.observe(observation(1)), ["apply 1"]);
    }

    #[test]
    fn changed_links_are_compared_soon() {
        let mut bench = Bench::idle(INTERVAL);
        bench.sleep();
        bench.send(Event::Compared(Comparison::Done));
        bench.actions();
        bench.observe(observation(1));
        bench.retire(None);
        bench.now += ms(5000);
        bench.send(Event::Changed);
        bench.actions();
        bench.observe(Observation { links: links(1400), ..observation(1) });
        bench.retire(None);
        assert_eq!(bench.sleep(), Some(ms(20)));
        assert_eq!(bench.actions(), ["compare"]);
    }

    #[test]
    fn a_stop_during_work_records_its_end_and_begins_nothing() {
        let mut bench = Bench::new(INTERVAL);
        bench.actions();
        bench.observe(observation(1));
        bench.send(Event::Changed);
        bench.send(Event::Stop);
        assert_eq!(bench.succeed(), ["ready", "options 1"], "neither retired nor observed again");
        bench.now += INTERVAL;
        for event in [Event::Timeout, Event::Alarm, Event::Changed, Event::Timeout] {
            bench.send(event);
            assert!(bench.actions().is_empty());
        }
        assert_eq!(bench.machine.next_timeout(), None);
    }

    #[test]
    fn a_stop_drops_commands_that_were_not_begun() {
        let mut bench = Bench::new(INTERVAL);
        bench.send(Event::Stop);
        assert!(bench.actions().is_empty());
    }
}
