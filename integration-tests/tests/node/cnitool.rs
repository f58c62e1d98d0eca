//! The plugin as libcni calls it: cnitool of the CNI project, with the network configuration that the agent has written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use integration_tests::{Node, Pod, binary, pod_manifest};
use serde_json::{Value, json};
use test_kit::{NetNs, require_root};

const NETWORKS: &str = "cni/net.d";

/// Returns the path of cnitool, which is built now if it never was: in some seconds.
fn cnitool() -> PathBuf {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tools/cnitool");
    let output = Command::new(tool).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "tools/cnitool failed");
    Path::new(String::from_utf8(output.stdout).unwrap().trim_end()).join("cnitool")
}

/// The version that has CHECK; the agent writes an older one, as Cilium does.
const CHECKED: (&str, &str) = ("checked", "1.0.0");

/// Runs cnitool for a namespace with the configuration of a folder; its output, or the error of the plugin.
fn run(
    node: &Node,
    networks: &Path,
    verb: &str,
    network: &str,
    ns: &NetNs,
    arguments: &str,
) -> Result<String, String> {
    let (dir, plugin) = (node.sandbox().dir(), binary("apiary-cni"));
    let mut command = node.host().command("unshare");
    command
        // It keeps results in /var/lib/cni, which is not that of the machine.
        .args(["--mount", "--propagation=private", "sh", "-c", r#"mount --bind "$0" /var/lib && exec "$@""#])
        .arg(dir.join("results"))
        .arg(cnitool())
        .args([verb, network])
        .arg(ns.path())
        .env("NETCONFPATH", networks)
        .env("CNI_PATH", dir.join("cni/bin"))
        .env("CNI_ARGS", arguments)
        .env("CILIUM_SOCK", node.socket())
        .stdin(Stdio::null());
    fs::create_dir_all(dir.join("cni/bin")).unwrap();
    fs::create_dir_all(dir.join("results")).unwrap();
    // By the name that the configuration has.
    let installed = dir.join("cni/bin/cilium-cni");
    if !installed.exists() {
        std::os::unix::fs::symlink(plugin, installed).unwrap();
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Adds two pods, and deletes them. Of the version that has it also CHECK.
fn add_and_delete(node: &Node, networks: &Path, network: &str, has_check: bool) {
    let before = node.endpoints();
    let pods = ["first", "second"].map(|name| {
        let ns = node.sandbox().netns(&format!("{name}-{has_check}")).unwrap();
        node.apply(&format!("{name}.yaml"), &pod_manifest("default", name, &[("name", name)]));
        let arguments = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}");
        let result = run(node, networks, "add", network, &ns, &arguments);
        let result = result.unwrap_or_else(|error| panic!("{error}\n{}", node.log()));
        (Pod::added("default", name, &ns, &result).unwrap(), arguments)
    });
    let [(first, of_first), (second, of_second)] = &pods;
    assert_eq!(node.endpoints().len(), before.len() + 2, "{:?}", node.endpoints());
    for address in second.addresses() {
        first.ns.exec(&format!("ping -c 1 -W 10 {address}")).unwrap();
    }
    let check = |pod: &Pod, arguments: &str| run(node, networks, "check", network, &pod.ns, arguments);
    if has_check {
        check(first, of_first).unwrap();
    } else {
        let error = check(first, of_first).unwrap_err();
        assert!(error.contains("does not support the CHECK command"), "{error}");
    }
    // The interface of a pod is gone: a check says so, and the deletion works all the same.
    second.ns.exec("ip link delete eth0").unwrap();
    if has_check {
        let error = check(second, of_second).unwrap_err();
        assert!(error.contains("eth0"), "{error}");
        check(first, of_first).unwrap();
    }
    for (pod, arguments) in &pods {
        run(node, networks, "del", network, &pod.ns, arguments).unwrap();
        // As runtimes do after an error.
        run(node, networks, "del", network, &pod.ns, arguments).unwrap();
    }
    assert_eq!(node.endpoints(), before);
    assert!(first.ns.exec("ip link show eth0").is_err(), "the interface is deleted");
}

#[test]
fn pods_are_added_checked_and_deleted_by_cnitool() {
    require_root!();
    let mut node = Node::new();
    let networks = node.sandbox().dir().join(NETWORKS);
    fs::create_dir_all(&networks).unwrap();
    let file = networks.join("05-cilium.conflist");
    node.config.insert("write-cni-conf-when-ready".to_owned(), file.display().to_string());
    node.start();
    let mut list: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let network = list["name"].as_str().unwrap().to_owned();
    add_and_delete(&node, &networks, &network, false);

    let checked = node.sandbox().dir().join(CHECKED.0);
    fs::create_dir_all(&checked).unwrap();
    list["cniVersion"] = json!(CHECKED.1);
    fs::write(checked.join("05-cilium.conflist"), list.to_string()).unwrap();
    add_and_delete(&node, &checked, &network, true);
    node.stop();
}
