//! A pod, added and removed as by a container runtime.

use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use serde_json::Value;
use test_kit::NetNs;

use crate::{Node, binary};

/// A pod with its namespace and addresses.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its namespace in the cluster.
    pub namespace: String,
    /// Its name there.
    pub name: String,
    /// The namespace of its processes.
    pub ns: NetNs,
    /// Its IPv4 address.
    pub ipv4: IpAddr,
    /// Its IPv6 address.
    pub ipv6: IpAddr,
    /// The plugin's answer to ADD.
    pub result: Value,
}

impl Pod {
    /// Calls the plugin with ADD. The error is its output.
    pub fn add(node: &Node, namespace: &str, name: &str, ns: &NetNs) -> Result<Self, String> {
        let result = call(node, "ADD", namespace, name, ns)?;
        Pod::added(namespace, name, ns, &result)
    }

    /// Creates the pod from a plugin's result of ADD.
    pub fn added(namespace: &str, name: &str, ns: &NetNs, result: &str) -> Result<Self, String> {
        let result: Value = serde_json::from_str(result).map_err(|e| format!("{e}: {result}"))?;
        let address = |v6: bool| {
            let of_family = |a: &IpAddr| a.is_ipv6() == v6;
            let all = result["ips"].as_array().into_iter().flatten();
            all.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).find(of_family)
        };
        let (Some(ipv4), Some(ipv6)) = (address(false), address(true)) else {
            return Err(format!("not an address of each family: {result}"));
        };
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Ok(Self { namespace, name, ns: ns.clone(), ipv4, ipv6, result })
    }

    /// Calls the plugin with another verb. Returns its standard output, also if that fails.
    pub fn cni(&self, node: &Node, verb: &str) -> Result<String, String> {
        call(node, verb, &self.namespace, &self.name, &self.ns)
    }

    /// Returns its addresses, IPv4 first.
    #[must_use]
    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.ipv4, self.ipv6]
    }

    /// Returns the id of the container.
    #[must_use]
    pub fn container(&self) -> String {
        container(&self.name)
    }
}

fn container(name: &str) -> String {
    format!("container-{name}")
}

fn call(node: &Node, verb: &str, namespace: &str, name: &str, ns: &NetNs) -> Result<String, String> {
    let mut child = plugin(node, verb, namespace, name, ns).spawn().map_err(|e| e.to_string())?;
    // A plugin that ends before it has read its input reports the error in its output.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(plugin_input(node).as_bytes()));
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// The plugin as a runtime calls it, with pipes.
#[must_use]
pub fn plugin(node: &Node, verb: &str, namespace: &str, name: &str, ns: &NetNs) -> Command {
    let plugin = binary("apiary-cni");
    let mut command = node.host().command(&plugin);
    command
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", container(name))
        .env("CNI_NETNS", ns.path())
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", plugin.parent().unwrap())
        .env("CNI_ARGS", format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"))
        .env("CILIUM_SOCK", node.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns the configuration that a runtime writes to the plugin's standard input.
#[must_use]
pub fn plugin_input(node: &Node) -> String {
    let log = node.sandbox().dir().join("cni.log");
    format!(r#"{{"cniVersion":"1.0.0","name":"cilium","type":"cilium-cni","log-file":"{}"}}"#, log.display())
}
