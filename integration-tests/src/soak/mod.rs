//! Pods come and go for a long time, agent and plugin are killed meanwhile; then everything is as it was at the start.
//!
//! A run is made of stretches. In one with kills the plugin is killed in the middle of ADD and DEL, the agent by SIGTERM
//! and kill -9 wherever it is; the runtime's side does what containerd does: an ADD that failed is followed by a DEL, a DEL
//! is repeated until it is done, GC is called now and then. A stretch without kills is served by one process from
//! beginning to end: memory, descriptors and threads of the last one are sampled and must not grow (`samples`). At the
//! quiet moments of both kinds nothing may be there that was not there at the start, and the other way round
//! (`inventory`).

mod cluster;
mod inventory;
mod random;
mod runtime;
mod samples;

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::process::ExitStatusExt as _;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use test_kit::{NetNs, try_wait_until};

use cluster::Cluster;
pub use inventory::Inventory;
use random::Random;
use runtime::{Call, Container, Ended};
pub use samples::{LEAK, Sample, Slope, growth};

use crate::Node;

/// The signal by which a service manager stops.
const SIGTERM: i32 = 15;
/// Pods at once.
const PODS: usize = 8;
/// Plugins at once.
const CALLS: usize = 4;
/// How long the node may take until it is as it was.
const SETTLE: Duration = Duration::from_secs(30);
/// Policy maps that are ready once pods come.
const RESERVE: usize = 256;
/// How long it may take until no address rests, which each does for half a minute.
const REST: Duration = Duration::from_secs(60);

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Decides about everything that is random.
    pub seed: u64,
    /// Pods that are added and removed in all.
    pub cycles: usize,
    /// Cycles between two quiet moments.
    pub quiet_every: usize,
    /// Samples of the last stretch. Each waits until no address rests any more, half a minute: how many do is a matter of
    /// how fast the machine is.
    pub samples: usize,
}

/// The counts of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Pods that were added, or tried to, and removed.
    pub cycles: usize,
    /// Plugins that were killed.
    pub killed_plugins: usize,
    /// Agents that were killed or stopped.
    pub killed_agents: usize,
    /// Quiet moments at which everything was compared.
    pub compared: usize,
    /// Samples of the last stretch, which one process has served.
    pub samples: Vec<Sample>,
}

/// Runs a plan: half of it without kills at its end, a sixth of it so at its beginning, the rest with kills. `emit` gets a
/// line for each quiet moment.
///
/// # Errors
/// Leaks, growth and failures.
///
/// # Panics
/// When the node itself cannot be made, or its agent does not start.
pub fn run(plan: &Plan, emit: &mut dyn FnMut(&str)) -> Result<Report, String> {
    let mut soak = Soak::new(plan);
    soak.stretch(plan.cycles / 6, false, 0, emit)?;
    soak.stretch(plan.cycles - plan.cycles / 6 - plan.cycles / 2, true, 0, emit)?;
    soak.stretch(plan.cycles / 2, false, plan.samples, emit)?;
    let samples = &soak.report.samples;
    if let Some(slope) = Slope::of(samples, |sample| sample.allocated) {
        emit(&format!("allocated memory of the last process: {slope}"));
    }
    if let Some(what) = growth(samples) {
        return Err(format!("the agent grows: {what}"));
    }
    Ok(soak.report)
}

/// A node with its past.
struct Soak {
    node: Node,
    random: Random,
    quiet_every: usize,
    start: Inventory,
    cluster: Cluster,
    live: BTreeMap<String, Live>,
    spare: Vec<NetNs>,
    containers: usize,
    report: Report,
}

/// A pod that runs.
struct Live {
    container: Container,
    addresses: Vec<IpAddr>,
}

impl Soak {
    fn new(plan: &Plan) -> Soak {
        let mut node = Node::new();
        node.follow_services("services.json");
        // Otherwise prefixes of policies have their identities for half a minute after a start.
        node.config.insert("identity-restore-grace-period".to_owned(), "500ms".to_owned());
        node.config.insert("prometheus-serve-addr".to_owned(), "127.0.0.1:9962".to_owned());
        node.start();
        let mut soak = Soak {
            node,
            random: Random::new(plan.seed),
            quiet_every: plan.quiet_every,
            start: Inventory::default(),
            cluster: Cluster::default(),
            live: BTreeMap::new(),
            spare: Vec::new(),
            containers: 0,
            report: Report::default(),
        };
        soak.grow_reserve();
        soak.start = soak.steady();
        soak
    }

    /// Once pods come the agent keeps more policy maps ready, also after all are gone: that is no leak.
    fn grow_reserve(&mut self) {
        let pods: Vec<_> = (0..20).map(|at| self.node.add_pod(&format!("first-{at}"))).collect();
        pods.into_iter().for_each(|pod| self.node.delete_pod(pod));
        let slots = self.node.sandbox().bpf_root().join("cilium/policy_maps");
        let grown = try_wait_until(SETTLE, || {
            sleep(Duration::from_millis(100));
            let count = fs::read_dir(&slots).map_err(|error| error.to_string())?.count();
            if count >= RESERVE { Ok(()) } else { Err(format!("{count} policy maps")) }
        });
        grown.unwrap_or_else(|error| panic!("the reserve does not grow: {error}"));
    }

    /// Returns the inventory of the node once it no longer changes.
    fn steady(&self) -> Inventory {
        let mut last = Inventory::default();
        let same = try_wait_until(SETTLE, || {
            sleep(Duration::from_millis(300));
            let now = Inventory::of(&self.node)?;
            let mut difference = now.beyond(&std::mem::replace(&mut last, now.clone()));
            // Duplicate address detection still runs: the address's routes are yet to come.
            difference
                .extend(now.items("address").filter(|line| line.contains("tentative")).map(str::to_owned));
            if difference.is_empty() { Ok(now) } else { Err(difference.join("\n")) }
        });
        same.unwrap_or_else(|error| panic!("the node does not settle: {error}"))
    }

    /// So many cycles, with kills or by one process, of which there are so many samples.
    fn stretch(
        &mut self,
        cycles: usize,
        kills: bool,
        samples: usize,
        emit: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        let (begin, end) = (self.report.cycles, self.report.cycles + cycles);
        while self.report.cycles < end {
            let quiet = (self.report.cycles + self.quiet_every).min(end);
            while self.report.cycles + self.live.len() < quiet {
                self.step(kills)?;
            }
            self.quiet(kills, emit)?;
            let due = begin + cycles * (self.report.samples.len() + 1) / samples.max(1);
            if self.report.samples.len() < samples && self.report.cycles >= due {
                self.sample(emit)?;
            }
        }
        Ok(())
    }

    /// A sample of the agent when no address rests.
    fn sample(&mut self, emit: &mut dyn FnMut(&str)) -> Result<(), String> {
        try_wait_until(REST, || {
            sleep(Duration::from_millis(500));
            match Inventory::resting(&self.node)? {
                0 => Ok(()),
                rest => Err(format!("{rest} addresses rest")),
            }
        })?;
        let sample = Sample::of(&self.node, self.report.cycles);
        emit(&format!("rested: {sample}"));
        self.report.samples.push(sample);
        Ok(())
    }

    /// A few plugins at once, and something that changes around them.
    fn step(&mut self, kills: bool) -> Result<(), String> {
        let addresses: Vec<String> =
            self.live.values().flat_map(|live| &live.addresses).map(IpAddr::to_string).collect();
        self.cluster.change(&self.node, &mut self.random, &addresses);
        if let Some(pod) = self.live.keys().nth(self.random.below(4 * PODS)).cloned() {
            Cluster::describe(&self.node, &pod, &mut self.random);
        }
        let mut calls = Vec::new();
        for _ in 0..=self.random.below(CALLS) {
            calls.push(self.call());
        }
        if kills {
            self.kill_plugin(&mut calls);
            if self.random.once_in(12) {
                self.kill_agent()?;
            }
        }
        for call in calls {
            self.ended(call, kills)?;
        }
        if kills && self.random.once_in(100) {
            self.collect()?;
        }
        Ok(())
    }

    /// Adds a pod or removes one.
    fn call(&mut self) -> Call {
        let remove = self.live.len() >= PODS || (!self.live.is_empty() && self.random.once_in(2));
        if remove {
            let at = self.random.below(self.live.len());
            let pod = self.live.keys().nth(at).cloned().expect("there are as many");
            let mut container = self.live.remove(&pod).expect("it is there").container;
            if self.random.once_in(3) {
                Cluster::forget(&self.node, &pod);
            }
            if self.random.once_in(16) {
                container.vanished = true;
                // A pod that reuses the name gets a new namespace; this one ends with its last descriptor.
                let _ = self.node.sandbox().remove_netns(container.ns.clone());
            }
            return Call::start(&self.node, &container, "DEL");
        }
        self.containers += 1;
        let (id, pod) = (format!("container-{:05}", self.containers), format!("pod-{}", self.containers));
        if !self.random.once_in(30) {
            Cluster::describe(&self.node, &pod, &mut self.random);
        }
        let ns = match self.spare.pop() {
            Some(ns) => ns,
            None => self
                .node
                .sandbox()
                .netns(&format!("ns-{}", self.containers))
                .expect("a namespace can be made"),
        };
        Call::start(&self.node, &Container { id, pod, ns, vanished: false }, "ADD")
    }

    /// Kills one of these somewhere.
    fn kill_plugin(&mut self, calls: &mut [Call]) {
        if self.random.once_in(4) {
            let at = self.random.below(calls.len());
            sleep(self.random.time(Duration::from_millis(15)));
            calls[at].kill();
            self.report.killed_plugins += 1;
        }
    }

    /// Kills the agent somewhere, and starts it again, at once or after a while.
    fn kill_agent(&mut self) -> Result<(), String> {
        sleep(self.random.time(Duration::from_millis(20)));
        if self.random.once_in(2) {
            self.node.kill();
        } else {
            let status = self.node.terminate();
            // One that has just been started may not have a handler yet.
            if !status.success() && status.signal() != Some(SIGTERM) {
                return Err(format!("the agent ended with {status}"));
            }
        }
        self.report.killed_agents += 1;
        if self.random.once_in(3) {
            sleep(self.random.time(Duration::from_secs(1)));
        }
        self.node.spawn();
        if self.random.once_in(4) {
            // In the middle of its start.
            sleep(self.random.time(Duration::from_millis(300)));
            self.node.kill();
            self.report.killed_agents += 1;
            self.node.spawn();
        }
        Ok(())
    }

    /// Does what the runtime does with the end of a call.
    fn ended(&mut self, call: Call, kills: bool) -> Result<(), String> {
        let verb = call.verb;
        let (container, ended) = call.end();
        match ended {
            Ended::Well(result) if verb == "ADD" => {
                let addresses = addresses(&result);
                if addresses.len() != 2 {
                    return Err(format!("not an address of each family: {result}"));
                }
                talk(&container.ns, &addresses);
                self.live.insert(container.pod.clone(), Live { container, addresses });
                return Ok(());
            }
            Ended::Well(_) => {}
            other if !kills => {
                return Err(format!("{verb} of {}: {other:?}\n{}", container.id, self.node.log()));
            }
            _ => runtime::delete(&self.node, &container)?,
        }
        Cluster::forget(&self.node, &container.pod);
        if !container.vanished {
            self.spare.push(container.ns);
        }
        self.report.cycles += 1;
        Ok(())
    }

    /// Removes all pods by GC, as a runtime without containers does; then deletes each by DEL.
    fn collect(&mut self) -> Result<(), String> {
        self.node.wait_ready();
        let Some(first) = self.live.values().next() else { return Ok(()) };
        let (_, ended) = Call::start(&self.node, &first.container, "GC").end();
        if !matches!(ended, Ended::Well(_)) {
            return Err(format!("GC: {ended:?}"));
        }
        self.remove_all()
    }

    fn remove_all(&mut self) -> Result<(), String> {
        for Live { container, .. } in std::mem::take(&mut self.live).into_values() {
            runtime::delete(&self.node, &container)?;
            Cluster::forget(&self.node, &container.pod);
            self.spare.push(container.ns);
            self.report.cycles += 1;
        }
        Ok(())
    }

    /// Everything goes; what is there then is compared with the start. After kills with another start in between, which
    /// is when addresses that a killed plugin has asked for are free again.
    fn quiet(&mut self, kills: bool, emit: &mut dyn FnMut(&str)) -> Result<(), String> {
        self.remove_all()?;
        self.cluster.clear(&self.node);
        if kills {
            self.node.wait_ready();
            self.node.stop();
            self.node.start();
        }
        let start = &self.start;
        let same = try_wait_until(SETTLE, || {
            sleep(Duration::from_millis(200));
            let difference = Inventory::of(&self.node)?.beyond(start);
            if difference.is_empty() { Ok(()) } else { Err(difference.join("\n")) }
        });
        let cycles = self.report.cycles;
        same.map_err(|error| {
            format!("after {cycles} cycles, {error}\nlog of the agent:\n{}", self.node.log())
        })?;
        self.report.compared += 1;
        let sample = Sample::of(&self.node, cycles);
        emit(&format!("{sample}{}", if kills { ", another process" } else { "" }));
        Ok(())
    }
}

fn addresses(result: &str) -> Vec<IpAddr> {
    let result: Value = serde_json::from_str(result).unwrap_or_default();
    let ips = result["ips"].as_array().cloned().unwrap_or_default();
    ips.iter().filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect()
}

/// A few datagrams to the node, the world, a service and the pod itself, so that there are connections to forget. Whether
/// they arrive is not checked here.
fn talk(ns: &NetNs, own: &[IpAddr]) {
    ns.run(|| {
        for (local, remote) in [
            ("0.0.0.0:0", [Node::IPV4, Node::WORLD_IPV4, "10.96.0.1"]),
            ("[::]:0", [Node::IPV6, Node::WORLD_IPV6, "fd00:96::1"]),
        ] {
            let Ok(socket) = UdpSocket::bind(local) else { continue };
            for remote in remote.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()).chain(own.iter().copied())
            {
                let _ = socket.send_to(b"soak", (remote, 80));
            }
        }
    });
}
