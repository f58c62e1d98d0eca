//! The course of a check.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::probe::Reached;
use super::flows::{Flow, flows, nodes};
use super::kubectl::Kubectl;
use super::objects::{self, CLIENT, CLOSED, FRIEND, REMOTE, SERVER, SERVICE};

/// The delay between two looks at the pods.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(super) struct Check<'a> {
    pub(super) kubectl: Kubectl,
    pub(super) namespace: &'a str,
    pub(super) image: &'a str,
    pub(super) timeout: Duration,
}

/// The outcome of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) address: String,
    pub(super) expected: &'static str,
    pub(super) result: &'static str,
    pub(super) error: String,
}

impl Outcome {
    pub(super) fn is_expected(&self) -> bool {
        self.expected == self.result
    }

    fn new(flow: Flow, reached: Reached) -> Outcome {
        let expected = flow.expectation();
        let Flow { from, to, address, .. } = flow;
        let result = if reached.reached { "allowed" } else { "denied" };
        // That a denied flow is not answered is no error.
        let error = if expected == result { String::new() } else { reached.error };
        Outcome { from: from.to_owned(), to, address, expected, result, error }
    }
}

impl Check<'_> {
    /// Makes the objects, probes, and removes them, whatever the result.
    pub(super) fn run(&self) -> anyhow::Result<Vec<Outcome>> {
        let found = self.kubectl.list(&["namespace", "--ignore-not-found", self.namespace])?;
        ensure!(
            found.is_empty(),
            "namespace {} exists: remove it, or give another one with --namespace",
            self.namespace
        );
        let result = self.probe();
        let left = || format!("objects in namespace {} are left", self.namespace);
        match (result, self.remove()) {
            (result, Ok(())) => result,
            (Ok(_), Err(error)) => Err(error).with_context(left),
            (Err(fault), Err(error)) => Err(fault.context(format!("{}: {error:#}", left()))),
        }
    }

    fn probe(&self) -> anyhow::Result<Vec<Outcome>> {
        let nodes = nodes(&self.kubectl.list(&["nodes"])?);
        let [first, others @ ..] = nodes.as_slice() else { bail!("no node is ready") };
        self.create(&objects::shared(self.namespace))?;
        let server = |name, node: &str| objects::server(self.namespace, name, node, self.image);
        let mut servers = vec![server(SERVER, &first.name), server(CLOSED, &first.name)];
        servers.extend(others.first().map(|node| server(REMOTE, &node.name)));
        self.create(&objects::list(json!(servers)))?;
        let is_ready = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
                && pod["status"]["podIPs"].as_array().is_some_and(|ips| !ips.is_empty())
        };
        let pods = self.until("are not ready", is_ready)?;
        let service = self.kubectl.list(&["-n", self.namespace, "services", SERVICE])?;
        let flows = flows(&pods, service.first().context("the service is gone")?, &nodes);

        let of = |client: &str| {
            flows.iter().filter(|flow| flow.from == client).map(Flow::target).collect::<Vec<_>>()
        };
        let clients = [CLIENT, FRIEND].map(|name| {
            let timeout = self.timeout.as_secs();
            objects::client(self.namespace, name, &first.name, self.image, timeout, &of(name))
        });
        self.create(&objects::list(json!(clients)))?;
        let is_client = |pod: &Value| pod["metadata"]["name"] == CLIENT || pod["metadata"]["name"] == FRIEND;
        let pods = self.until("do not end", |pod| !is_client(pod) || message(pod).is_some())?;
        let mut outcomes = Vec::new();
        for name in [CLIENT, FRIEND] {
            let pod = pods.iter().find(|pod| pod["metadata"]["name"] == name);
            let text = pod.and_then(message).with_context(|| format!("pod {name} has no result"))?;
            let results: Vec<Reached> = serde_json::from_str(text)
                .with_context(|| format!("pod {name} reports {text:?}, no results of `apiary probe`"))?;
            let own = flows.iter().filter(|flow| flow.from == name).cloned();
            outcomes.extend(own.zip(results).map(|(flow, reached)| Outcome::new(flow, reached)));
        }
        ensure!(outcomes.len() == flows.len(), "{} of {} flows have a result", outcomes.len(), flows.len());
        Ok(outcomes)
    }

    fn create(&self, list: &Value) -> anyhow::Result<()> {
        self.kubectl.check_interrupt()?;
        self.kubectl.run(&["create", "-f", "-"], &list.to_string()).map(drop)
    }

    /// Returns the pods of the namespace once all are as they should be.
    fn until(&self, fault: &str, is_done: impl Fn(&Value) -> bool) -> anyhow::Result<Vec<Value>> {
        // The clients stop by themselves within the same time; their pods take a moment more.
        let deadline = Instant::now() + self.timeout * 2;
        loop {
            self.kubectl.check_interrupt()?;
            let pods = self.kubectl.list(&["-n", self.namespace, "pods"])?;
            let missing: Vec<&Value> = pods.iter().filter(|pod| !is_done(pod)).collect();
            if missing.is_empty() {
                return Ok(pods);
            }
            if Instant::now() >= deadline {
                let states: Vec<String> = missing.iter().map(|pod| state(pod)).collect();
                bail!("pods {fault} within {:?}: {}", self.timeout * 2, states.join("; "));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Removes what was made; pods first and with a wait, so that no address is in use when the namespace goes.
    fn remove(&self) -> anyhow::Result<()> {
        let kinds = "pods,services,networkpolicies";
        let objects = ["delete", kinds, "--all", "-n", self.namespace, "--timeout=60s"];
        let objects = self.kubectl.run(&objects, "").map(drop);
        let namespace = ["delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false"];
        self.kubectl.run(&namespace, "").map(drop).and(objects)
    }
}

/// Returns the termination message of a pod that has ended.
fn message(pod: &Value) -> Option<&str> {
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"].as_str()
}

/// Returns why a pod is not as it should be, as the kubelet reports it.
fn state(pod: &Value) -> String {
    let container = &pod["status"]["containerStatuses"][0]["state"];
    let reasons = ["waiting", "terminated"]
        .map(|state| ["reason", "message"].map(|field| container[state][field].as_str().unwrap_or_default()));
    let reasons: Vec<&str> = reasons.iter().flatten().copied().filter(|text| !text.is_empty()).collect();
    let phase = pod["status"]["phase"].as_str().unwrap_or("Unknown");
    format!("{} {phase} {}", pod["metadata"]["name"].as_str().unwrap_or_default(), reasons.join(": "))
}
