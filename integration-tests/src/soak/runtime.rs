//! A container runtime: what containerd asks of a plugin, and what it does when that fails.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use test_kit::NetNs;

use crate::{Node, binary};

/// How long the runtime repeats a DEL that fails.
const DEL_LIMIT: Duration = Duration::from_secs(60);

/// A container with its network namespace.
#[derive(Clone, Debug)]
pub(super) struct Container {
    /// The runtime's name of it, another for each.
    pub(super) id: String,
    /// The pod.
    pub(super) pod: String,
    /// Its namespace; containers that are gone leave it to others.
    pub(super) ns: NetNs,
    /// Whether its namespace is gone before it is deleted, as after a crash of its sandbox.
    pub(super) vanished: bool,
}

/// A plugin at work.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) container: Container,
    pub(super) verb: &'static str,
    child: Child,
}

/// How a call has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Well, with this result.
    Well(String),
    /// The plugin says why not.
    Refused(String),
    /// By a signal.
    Killed,
}

impl Call {
    /// Starts the plugin.
    ///
    /// # Panics
    /// When it cannot be started.
    pub(super) fn start(node: &Node, container: &Container, verb: &'static str) -> Call {
        let missing = node.sandbox().dir().join("netns/none");
        let netns = if container.vanished { &missing } else { container.ns.path() };
        let attachments = match verb {
            "GC" => r#","cni.dev/valid-attachments":[]"#,
            _ => "",
        };
        let plugin = binary("apiary-cni");
        let mut child = node
            .host()
            .command(&plugin)
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &container.id)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", plugin.parent().unwrap_or(&plugin))
            .env("CNI_ARGS", format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={}", container.pod))
            .env("CILIUM_SOCK", node.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the plugin can be started");
        let config = format!(r#"{{"cniVersion":"1.1.0","name":"cilium","type":"cilium-cni"{attachments}}}"#);
        // A plugin that ends before it has read its input says why in its answer.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(config.as_bytes()));
        Call { container: container.clone(), verb, child }
    }

    /// Kills the plugin where it is.
    ///
    /// # Panics
    /// When that is not possible.
    pub(super) fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
    }

    /// Waits for the plugin's end.
    ///
    /// # Panics
    /// When that is not possible.
    pub(super) fn end(self) -> (Container, Ended) {
        let output = self.child.wait_with_output().expect("a child can be waited for");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let ended = match output.status.signal() {
            Some(_) => Ended::Killed,
            None if output.status.success() => Ended::Well(text),
            None => Ended::Refused(text),
        };
        (self.container, ended)
    }
}

/// Repeats a DEL until it is done.
///
/// # Errors
/// The plugin's last output when it takes too long.
pub(super) fn delete(node: &Node, container: &Container) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match Call::start(node, container, "DEL").end().1 {
            Ended::Well(_) => return Ok(()),
            other if begin.elapsed() > DEL_LIMIT => {
                return Err(format!("DEL of {}: {other:?}", container.id));
            }
            _ => sleep(Duration::from_millis(50)),
        }
    }
}
