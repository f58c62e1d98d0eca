//! A real kube-controller-manager makes the pods of the chart's workloads, and replaces them at an update.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster_stage::User;
use integration_tests::{Cluster, Image, Machine, RunningContainer, Workload, brought_by};
use serde_json::{Value, json};
use test_kit::{Process, require, require_root, try_wait_until, wait_until};

use super::images::{IMAGES, build, cluster, committed, start_agent, start_operator};

const LIMIT: Duration = Duration::from_secs(60);
const AGENT: &str = "k8s-app=cilium";
const OPERATOR: &str = "io.cilium/app=operator";

/// Returns the path of kube-controller-manager; `None` if it is not built, which takes minutes: `make test FULL=1` builds it.
fn controller_manager() -> Option<PathBuf> {
    brought_by("kube-controller-manager").map(|folder| folder.join("kube-controller-manager"))
}

/// Starts the controllers of DaemonSets and Deployments.
fn start(program: &Path, cluster: &Cluster) -> Process {
    let log = File::create(cluster.node.sandbox().dir().join("controllers.log")).unwrap();
    let mut command = cluster.node.host().command(program);
    command
        .arg("--kubeconfig")
        .arg(cluster.gate.kubeconfig(User::Admin).unwrap())
        .args(["--controllers=daemonset-controller,deployment-controller,replicaset-controller"])
        .args(["--leader-elect=false", "--secure-port=0"])
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    Process::start(&mut command).unwrap()
}

/// Returns the pods with this label that nothing deletes, as soon as there are so many.
fn pods(cluster: &Cluster, label: &str, count: usize) -> Vec<Value> {
    let made = try_wait_until(LIMIT, || {
        let list = cluster.stage.get(&["-n", "kube-system", "pods", "-l", label]).unwrap();
        let mut found = list["items"].as_array().unwrap().clone();
        found.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        if found.len() == count { Ok(found) } else { Err(format!("{} pods of {label}", found.len())) }
    });
    made.unwrap_or_else(|error| {
        let log = cluster.node.sandbox().dir().join("controllers.log");
        panic!("{error} instead of {count}\n{}", fs::read_to_string(log).unwrap())
    })
}

/// Binds a pod to the node, as a scheduler does, and prepares to run it.
fn bind<'a>(
    (cluster, machine, images): (&Cluster, &'a Machine, &'a [Image]),
    pod: &Value,
    user: User,
) -> Workload<'a> {
    let name = pod["metadata"]["name"].as_str().unwrap();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"kind": "Node", "name": Cluster::NODE},
    });
    let path = format!("/api/v1/namespaces/kube-system/pods/{name}/binding");
    cluster.stage.kubectl_with(&["create", "--raw", &path, "-f", "-"], &binding.to_string()).unwrap();
    let object = json!({"metadata": pod["metadata"], "spec": {"template": {"spec": pod["spec"]}}});
    Workload::new(machine, images, &object, cluster, &cluster.stage.account(user))
}

/// Reports a pod as ready, as its kubelet does.
fn report_ready(cluster: &Cluster, pod: &Value) {
    let ready = ["Ready", "ContainersReady"].map(|kind| json!({"type": kind, "status": "True"}));
    let status = json!({"status": {"phase": "Running", "conditions": ready}}).to_string();
    let name = pod["metadata"]["name"].as_str().unwrap();
    let patch =
        ["-n", "kube-system", "patch", "pod", name, "--subresource=status", "--type=merge", "-p", &status];
    cluster.stage.kubectl(&patch).unwrap();
}

/// Ends a pod that a controller deletes.
fn end(cluster: &Cluster, workload: &Workload<'_>, running: RunningContainer, pod: &Value) {
    let (_, code) = workload.stop(running);
    assert!(code.success(), "{code}");
    let name = pod["metadata"]["name"].as_str().unwrap();
    let delete = ["-n", "kube-system", "delete", "pod", name, "--grace-period=0", "--force"];
    cluster.stage.kubectl(&delete).unwrap();
}

#[test]
fn pods_that_controllers_make_of_the_chart_run_and_are_replaced_at_an_update() {
    require_root!();
    let program = controller_manager();
    require!(
        program.is_some(),
        "kube-controller-manager is not built: tools/kube-controller-manager does it"
    );
    let folder = tempfile::tempdir().unwrap();
    let images = build(&["--bare"], folder.path(), &IMAGES);
    // These images have no iptables.
    let cluster = cluster(&committed(), &[("install-iptables-rules", "false")]);
    let machine = Machine::start(&cluster.node, folder.path());
    let node = (&cluster, &machine, &*images);
    // Kubelets set it.
    cluster.stage.kubectl(&["label", "node", Cluster::NODE, "kubernetes.io/os=linux"]).unwrap();
    // A new node has both taints until its agent is ready.
    for taint in ["node.cilium.io/agent-not-ready=true:NoSchedule", "node.kubernetes.io/not-ready:NoExecute"]
    {
        cluster.stage.kubectl(&["taint", "node", Cluster::NODE, taint]).unwrap();
    }
    let mut control = committed()["DaemonSet/cilium"].clone();
    control["metadata"]["name"] = "control".into();
    control["spec"]["template"]["spec"]["tolerations"] = json!([]);
    control["spec"]["selector"] = json!({"matchLabels": {"app": "control"}});
    control["spec"]["template"]["metadata"]["labels"] = json!({"app": "control"});
    cluster.stage.apply(&control.to_string()).unwrap();
    let _controllers = start(&program.unwrap(), &cluster);

    let operators = pods(&cluster, OPERATOR, 2);
    let operator = bind(node, &operators[0], User::Operator);
    let leader = start_operator(&operator);
    let first = pods(&cluster, AGENT, 1).remove(0);
    let affinity = first["spec"]["affinity"]["nodeAffinity"].to_string();
    assert!(affinity.contains(Cluster::NODE), "{affinity}");
    let agent = bind(node, &first, User::Agent);
    let (_, running) = start_agent(&agent);
    report_ready(&cluster, &first);
    let rollout = ["-n", "kube-system", "rollout", "status", "daemonset/cilium", "--timeout=60s"];
    cluster.stage.kubectl(&rollout).unwrap();
    let status = |name: &str| cluster.stage.get(&["-n", "kube-system", name]).unwrap()["status"].clone();
    assert_eq!(status("daemonset/cilium")["numberReady"], 1);
    let control = status("daemonset/control");
    assert_eq!(
        (&control["observedGeneration"], &control["desiredNumberScheduled"]),
        (&json!(1), &json!(0)),
        "control: a pod without the tolerations is not made"
    );

    // An update: the old pod is deleted, and once it is gone another one is made.
    cluster.stage.kubectl(&["-n", "kube-system", "rollout", "restart", "daemonset/cilium"]).unwrap();
    let name = first["metadata"]["name"].as_str().unwrap();
    wait_until("the controllers delete the pod", LIMIT, || {
        let pod = cluster.stage.get(&["-n", "kube-system", "pod", name]).unwrap();
        pod["metadata"]["deletionTimestamp"].is_string()
    });
    end(&cluster, &agent, running, &first);
    let second = pods(&cluster, AGENT, 1).remove(0);
    let agent = bind(node, &second, User::Agent);
    let (_, running) = start_agent(&agent);
    assert_eq!(status("daemonset/cilium")["numberUnavailable"], 1, "control: before its pod is ready");
    report_ready(&cluster, &second);
    cluster.stage.kubectl(&rollout).unwrap();
    let (_, code) = agent.stop(running);
    assert!(code.success(), "{code}");
    operator.stop(leader);
}
