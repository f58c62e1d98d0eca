//! A node with pods, policy, a service and a traced agent.

use std::io::{Read as _, Write as _};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_tests::{Node, Pod, plugin, plugin_input};
use test_kit::{NetNs, Traced, try_wait_until};

use crate::snapshot::Snapshot;
use crate::verdicts::{Actor, Actors, Verdicts};

/// After so long without a write an agent has done what there was to do; emptied policy maps rest for a second.
const QUIET: Duration = Duration::from_millis(1500);
/// Limit of a start; not a guarantee, which the benchmarks measure.
const LIMIT: Duration = Duration::from_secs(120);

/// A node and the senders of packets on it.
pub(crate) struct Stage {
    pub(crate) node: Node,
    pub(crate) agent: Option<Traced>,
    /// Length of the log before the agent's start.
    log_before: usize,
    pub(crate) actors: Actors,
    /// Pods that stay.
    pub(crate) pods: Vec<Pod>,
    /// Namespaces of pods that come and go.
    pub(crate) guests: Vec<(String, NetNs)>,
}

impl Stage {
    /// Creates a node on which no agent was ever started.
    pub(crate) fn empty() -> Stage {
        let mut node = Node::new();
        node.follow_services("services.json");
        // A stage is settled when the agent writes nothing more.
        node.config.insert("agent-liveness-update-interval".into(), "1h".into());
        let actors = Actors::new(Vec::new(), &[]);
        Stage { node, agent: None, log_before: 0, actors, pods: Vec::new(), guests: Vec::new() }
    }

    pub(crate) fn agent(&self) -> &Traced {
        self.agent.as_ref().expect("the agent was started")
    }

    /// Starts the agent and waits until it is ready and its programs are in place.
    pub(crate) fn start(&mut self) {
        self.log_before = self.node.log().len();
        self.agent = Some(Traced::start(self.node.agent_command()).unwrap());
        self.node.wait_ready();
        let loaded =
            try_wait_until(LIMIT, || if self.has_loaded() { Ok(()) } else { Err("no programs".into()) });
        loaded.unwrap_or_else(|e| panic!("{e}\n{}", self.node.log()));
    }

    /// Whether the agent has attached its programs, which it does last.
    fn has_loaded(&self) -> bool {
        self.node.log()[self.log_before..].contains("Loaded the datapath")
    }

    /// Starts the agent, to be killed after its `k`-th write.
    pub(crate) fn start_armed(&mut self, k: u64) {
        self.log_before = self.node.log().len();
        self.agent = Some(Traced::start_armed(self.node.agent_command(), k).unwrap());
    }

    pub(crate) fn kill(&mut self) {
        self.agent = None;
    }

    /// Waits until the agent is dead or has written nothing for a while. Returns whether it is dead.
    pub(crate) fn watch(&self, call: &mut Option<Call>) -> bool {
        let (agent, begin) = (self.agent(), Instant::now());
        let mut last = (0, begin);
        while agent.status().is_none() {
            let writes = agent.writes().len();
            if writes != last.0 {
                last = (writes, Instant::now());
            }
            let waits = call.as_mut().is_some_and(|call| !call.has_ended());
            if !waits && last.1.elapsed() > QUIET && self.has_loaded() || begin.elapsed() > LIMIT {
                return false;
            }
            sleep(Duration::from_millis(2));
        }
        true
    }

    /// Waits until the agent is idle.
    pub(crate) fn quiet(&self) {
        self.agent().arm(u64::MAX);
        assert!(!self.watch(&mut None), "the agent has ended\n{}", self.node.log());
    }

    /// Returns the whole state, once it no longer changes.
    pub(crate) fn settled(&self) -> (Snapshot, Verdicts) {
        self.quiet();
        let mut last = Snapshot::take(&self.node).unwrap();
        loop {
            self.quiet();
            // A pause may also be caused by a busy machine: compare once more.
            let next = Snapshot::take(&self.node).unwrap();
            if next == last {
                return (next, self.actors.measure());
            }
            last = next;
        }
    }

    /// Waits until all is as expected, and no packet meanwhile is judged in a way that none of the accepted ones does.
    pub(crate) fn settle(
        &self,
        expected: &(Snapshot, Verdicts),
        accepted: &[&Verdicts],
    ) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            self.actors.judge(accepted)?;
            let found = Snapshot::take_like(&self.node, &expected.0);
            if matches!(&found, Ok(Some(found)) if *found == expected.0) {
                return self.actors.judge(&[&expected.1]);
            }
            if begin.elapsed() > LIMIT / 2 {
                return Err(expected.0.diff(&Snapshot::take(&self.node)?));
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Adds a namespace for a pod, and an actor in it.
    pub(crate) fn guest(&mut self, name: &str) -> Actor {
        let ns = self.node.sandbox().netns(name).unwrap();
        let actor = Actor::new(name, &ns, "eth0").unwrap();
        self.guests.push((name.to_owned(), ns));
        actor
    }

    /// Calls the plugin as a container runtime does, without waiting.
    pub(crate) fn call(&self, verb: &str, pod: &str) -> Call {
        let (_, ns) = self.guests.iter().find(|(name, _)| name == pod).unwrap();
        let mut child = plugin(&self.node, verb, "default", pod, ns).spawn().unwrap();
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(plugin_input(&self.node).as_bytes()));
        Call { child }
    }

    /// The same to its end.
    pub(crate) fn called(&self, verb: &str, pod: &str) -> Result<(), String> {
        self.call(verb, pod).end()
    }

    /// The plugin, killed after its `k`-th write.
    pub(crate) fn call_armed(&self, verb: &str, pod: &str, k: u64) -> Traced {
        let (_, ns) = self.guests.iter().find(|(name, _)| name == pod).unwrap();
        let mut traced = Traced::start_armed(plugin(&self.node, verb, "default", pod, ns), k).unwrap();
        let _ = traced.pipes.0.take().map(|mut stdin| stdin.write_all(plugin_input(&self.node).as_bytes()));
        traced
    }
}

/// The plugin at work.
pub(crate) struct Call {
    child: Child,
}

impl Call {
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for its answer, which is an error if it was one.
    pub(crate) fn end(mut self) -> Result<(), String> {
        let (mut text, status) = (String::new(), self.child.wait().unwrap());
        let _ = self.child.stdout.take().map(|mut stdout| stdout.read_to_string(&mut text));
        let _ = self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut text));
        if status.success() { Ok(()) } else { Err(format!("{status}: {text}")) }
    }
}
