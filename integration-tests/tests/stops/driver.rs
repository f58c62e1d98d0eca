//! Kills after the first write, after the second, and so on, until the change completes without a kill.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use integration_tests::costs;
use test_kit::{Slice, Write};

use crate::snapshot::Snapshot;
use crate::stage::{Call, Stage};
use crate::verdicts::Verdicts;

/// Maximum number of printed failures, after which a scenario ends.
const SHOWN: usize = 4;

/// Starts after a stop are stopped after one of so many writes, which each of them has.
const SECOND: u64 = 23;

/// A change of a node, at each write of which the agent is killed.
pub(crate) struct Scenario<'a> {
    pub(crate) name: &'a str,
    /// Creates the node in its state before the change.
    pub(crate) build: &'a dyn Fn() -> Stage,
    /// Begins the change; the agent may do `k` writes.
    pub(crate) act: &'a dyn Fn(&mut Stage, u64) -> Option<Call>,
    /// The reaction of a container runtime to a call without an answer.
    pub(crate) repeat: &'a dyn Fn(&Stage),
    /// Reverts the change; without a way to do so the node is created again.
    pub(crate) undo: Option<&'a dyn Fn(&Stage)>,
}

/// A call of the plugin that is killed at each of its writes, the agent being well.
pub(crate) struct PluginScenario<'a> {
    pub(crate) verb: &'a str,
    /// The pod of the call.
    pub(crate) pod: &'a str,
    /// Creates the node in its state before the change.
    pub(crate) build: &'a dyn Fn() -> Stage,
    /// The reaction of a container runtime then.
    pub(crate) repeat: &'a dyn Fn(&Stage),
    /// Takes the change back.
    pub(crate) undo: &'a dyn Fn(&Stage),
}

impl PluginScenario<'_> {
    /// Runs it to its end.
    ///
    /// # Panics
    /// If the state after a stop differs; the message has the write and the differences.
    pub(crate) fn run(&self) {
        let stage = (self.build)();
        let before = stage.settled();
        stage.called(self.verb, self.pod).unwrap();
        let after = stage.settled();
        let mut kinds = Kinds::default();
        for k in 1.. {
            (self.undo)(&stage);
            let either = [&before.1, &after.1];
            let undone = stage.settle(&before, &either);
            undone.unwrap_or_else(|e| panic!("plugin, {}: taken back after stop {}: {e}", self.verb, k - 1));
            let plugin = stage.call_armed(self.verb, self.pod, k);
            let status = plugin.wait_for_all(Duration::from_secs(30)).expect("the plugin ends");
            let writes = plugin.writes();
            if !plugin.is_killed() {
                assert!(status.success(), "{status}");
                return kinds.print(&format!("plugin, {}", self.verb));
            }
            drop(plugin);
            let last = writes.last().expect("it was killed after a write");
            kinds.count(last);
            let survived = stage.actors.judge(&either).and_then(|()| {
                (self.repeat)(&stage);
                stage.settle(&after, &either)
            });
            let (name, log) = (self.verb, stage.node.log());
            survived.unwrap_or_else(|e| panic!("plugin, {name}: killed after write {k}, {last}: {e}\n{log}"));
        }
    }
}

/// The counts of the calls after which a kill happened, by kind.
#[derive(Default)]
struct Kinds(BTreeMap<String, usize>);

impl Kinds {
    fn count(&mut self, write: &Write) {
        *self.0.entry(write.kind.clone()).or_default() += 1;
    }

    /// Prints the counts.
    fn print(&self, scenario: &str) {
        let kinds: Vec<String> = self.0.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let n: usize = self.0.values().sum();
        let mut out = std::io::stdout();
        let _ = writeln!(out, "stops: {scenario}: n = {n} ({})", kinds.join(", "));
        assert!(n > 0, "{scenario}: no write was seen");
        if scenario.ends_with(PART) {
            return;
        }
        costs::check(scenario, "writes", n as u64);
    }
}

/// The end of the name of a scenario of which a run has a part.
const PART: &str = " from there)";

/// The state of a node before and after an undisturbed run, each after one more start of the agent.
struct Undisturbed {
    before: (Snapshot, Verdicts),
    after: (Snapshot, Verdicts),
}

impl Scenario<'_> {
    /// Runs it to its end.
    ///
    /// # Panics
    /// If the state after a stop differs; the message has the write and the differences.
    pub(crate) fn run(&self) {
        self.run_share(1, 1);
    }

    /// Stops after the writes of this run's slice, which are one in `count`: for what has a hundred of them.
    ///
    /// # Panics
    /// As [`Scenario::run`].
    pub(crate) fn run_slice(&self, first: u64, step: u64, count: u64) {
        let slice = Slice::of(count);
        self.run_share(first + step * slice.index, step * slice.count);
    }

    /// Stops after the `first` write and each `step`-th from there: several tests share what takes long.
    fn run_share(&self, first: u64, step: u64) {
        let (stage, undisturbed) = self.undisturbed();
        let mut stage = Some(stage);
        let mut kinds = Kinds::default();
        let mut failures = Vec::new();
        for k in (first..).step_by(step as usize) {
            let Some(write) = self.stop(&mut stage, k, &undisturbed, &mut failures) else { break };
            kinds.count(&write);
            if failures.len() >= SHOWN {
                break;
            }
        }
        match step {
            1 => kinds.print(self.name),
            _ => kinds.print(&format!("{} (write {first} and every {step}{PART}", self.name)),
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    fn undisturbed(&self) -> (Stage, Undisturbed) {
        let mut stage = (self.build)();
        let before = match self.undo {
            Some(_) => {
                stage.kill();
                stage.start();
                stage.settled()
            }
            None => Default::default(),
        };
        if let Some(call) = (self.act)(&mut stage, u64::MAX) {
            call.end().unwrap();
        }
        stage.quiet();
        stage.kill();
        stage.start();
        let after = stage.settled();
        assert!(
            after.1.is_empty()
                || after.1.values().any(|r| r.is_empty()) && after.1.values().any(|r| !r.is_empty())
        );
        let undisturbed = Undisturbed { before, after };
        let mut stage = Some(stage);
        self.back(&mut stage, &undisturbed).unwrap_or_else(|e| panic!("{}: undone: {e}", self.name));
        (stage.expect("it is there after each step"), undisturbed)
    }

    /// Kills after the `k`-th write and compares; which write that was, `None` if there is no such write.
    fn stop(
        &self,
        place: &mut Option<Stage>,
        k: u64,
        undisturbed: &Undisturbed,
        failures: &mut Vec<String>,
    ) -> Option<Write> {
        let stage = there(place);
        let mut call = (self.act)(stage, k);
        while !stage.watch(&mut call) {
            // Not only quiet, but where it is to come to: a busy machine has pauses of its own.
            let done = stage.agent().writes().len();
            let settled = stage.settle(&undisturbed.after, &[&undisturbed.before.1, &undisturbed.after.1]);
            if stage.agent().status().is_some() || stage.agent().writes().len() != done {
                continue;
            }
            if let Err(error) = settled {
                failures.push(format!("{}: with {} writes or more it does not end: {error}", self.name, k));
            }
            let _ = call.map(|call| call.end().unwrap());
            failures.extend(waits_of_workers(self.name, &stage.agent().writes()));
            stage.agent().disarm();
            return None;
        }
        let writes = stage.agent().writes();
        let last = writes.last().cloned().expect("it was killed after a write");
        assert_eq!(writes.len() as u64, k, "{}", stage.node.log());
        failures.extend(waits_of_workers(self.name, &writes[writes.len() - 1..]));
        stage.kill();
        let survived = self.survived(stage, k, call, undisturbed).map_err(|e| format!("after the stop: {e}"));
        let survived = survived.and_then(|()| {
            self.back(place, undisturbed)
                .map_err(|e| format!("when taken back after a stop that was survived: {e}"))
        });
        if let Err(error) = survived {
            let log = there(place).node.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            let writes: Vec<String> = writes.iter().rev().take(4).rev().map(ToString::to_string).collect();
            failures.push(format!(
                "{}: killed after write {k}, {last} (after {})\n{error}\n{}\n",
                self.name,
                writes.join("; "),
                tail.join("\n")
            ));
            self.rebuild(place, Some(undisturbed));
        }
        Some(last)
    }

    fn survived(
        &self,
        stage: &mut Stage,
        k: u64,
        call: Option<Call>,
        undisturbed: &Undisturbed,
    ) -> Result<(), String> {
        let either = [&undisturbed.before.1, &undisturbed.after.1];
        stage.actors.judge(&either).map_err(|e| format!("before the next start: {e}"))?;
        // The recovering start is killed as well, each time after another write.
        let second = 1 + k * 7 % SECOND;
        stage.start_armed(second);
        stage.watch(&mut None);
        stage.kill();
        let again = |e| format!("when the next start was killed as well, after write {second}: {e}");
        stage.actors.judge(&either).map_err(again)?;
        stage.start();
        if call.is_some_and(|call| call.end().is_err()) {
            (self.repeat)(stage);
        }
        stage.settle(&undisturbed.after, &either).map_err(again)
    }

    fn back(&self, stage: &mut Option<Stage>, undisturbed: &Undisturbed) -> Result<(), String> {
        match self.undo {
            Some(undo) => {
                let stage = there(stage);
                undo(stage);
                stage.settle(&undisturbed.before, &[&undisturbed.before.1, &undisturbed.after.1])
            }
            None => {
                self.rebuild(stage, None);
                Ok(())
            }
        }
    }

    /// Another node in the place of one. Sandboxes of a thread do not overlap: the old one goes first.
    fn rebuild(&self, stage: &mut Option<Stage>, undisturbed: Option<&Undisturbed>) {
        *stage = None;
        let new = stage.insert((self.build)());
        if self.undo.is_some()
            && let Some(undisturbed) = undisturbed
        {
            new.kill();
            new.start();
            let settled = new.settle(&undisturbed.before, &[&undisturbed.before.1]);
            settled.unwrap_or_else(|e| panic!("{}: created again it is another node: {e}", self.name));
        }
    }
}

/// Returns the writes of threads that run tasks to anything but maps: files wait for disks and the network configuration for
/// the lock of the kernel, and with them all tasks.
fn waits_of_workers(scenario: &str, writes: &[Write]) -> Option<String> {
    let waits = |write: &&Write| write.thread.starts_with("worker-") && !write.kind.starts_with("bpf ");
    let waits: Vec<String> = writes.iter().filter(waits).map(ToString::to_string).collect();
    (!waits.is_empty()).then(|| format!("{scenario}: writes by threads that run tasks: {}", waits.join("; ")))
}

fn there(stage: &mut Option<Stage>) -> &mut Stage {
    stage.as_mut().expect("it is there after each step")
}
