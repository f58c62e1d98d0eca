//! The guarantees of the stage for other `cluster_*` tests: a real API server, and every way to disturb it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cluster_stage::{Gate, Stage, StageOptions, User};
use serde_json::{Value, json};
use test_kit::{Sandbox, require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(120);

fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{value: '{value}'}}\n")
}

/// The resource version of a namespace's list of ConfigMaps.
fn version(stage: &Stage, namespace: &str) -> String {
    let list =
        stage.kubectl(&["get", "--raw", &format!("/api/v1/namespaces/{namespace}/configmaps")]).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// Returns a namespace's ConfigMaps as of `version`.
fn past(stage: &Stage, namespace: &str, version: &str) -> anyhow::Result<Value> {
    let uri = format!(
        "/api/v1/namespaces/{namespace}/configmaps?resourceVersion={version}&resourceVersionMatch=Exact"
    );
    Ok(serde_json::from_str(&stage.kubectl(&["get", "--raw", &uri])?)?)
}

/// Returns the events of a watch of a namespace's ConfigMaps from `version` on, within a second or two.
fn events(stage: &Stage, namespace: &str, version: &str) -> Vec<Value> {
    let uri = format!(
        "/api/v1/namespaces/{namespace}/configmaps?watch=1&resourceVersion={version}&timeoutSeconds=1"
    );
    let text = stage.kubectl(&["get", "--raw", &uri]).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the answer to a client without credentials through the gate, in the calling thread's namespace: an HTTP
/// answer to an HTTP request on a port for TLS, which only the server itself can give.
fn answer(gate: &Gate) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(gate.address())?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn objects_come_and_go_by_kubectl() {
    require_root!();
    let stage = Stage::shared();
    let namespace = stage.namespace("objects");
    let before = version(stage, &namespace);
    stage.kubectl_with(&["-n", &namespace, "apply", "-f", "-"], &config_map("one", "1")).unwrap();
    stage.kubectl_with(&["-n", &namespace, "apply", "-f", "-"], &config_map("one", "2")).unwrap();
    assert_eq!(stage.get(&["-n", &namespace, "configmap", "one"]).unwrap()["data"]["value"], "2");
    stage.kubectl(&["-n", &namespace, "delete", "configmap", "one"]).unwrap();
    let reported: Vec<String> = events(stage, &namespace, &before)
        .iter()
        .map(|event| format!("{} {}", event["type"].as_str().unwrap(), event["object"]["data"]["value"]))
        .collect();
    assert_eq!(reported, ["ADDED \"1\"", "MODIFIED \"2\"", "DELETED \"2\""]);
    let error = stage.kubectl(&["-n", &namespace, "get", "configmap", "one"]).unwrap_err().to_string();
    assert!(error.contains("NotFound"), "{error}");
    let version = stage.kubectl(&["version"]).unwrap();
    assert_eq!(version.matches("v1.34.4").count(), 2, "client and server know what they are: {version}");
}

#[test]
fn a_new_start_keeps_what_was_stored_and_compaction_makes_old_watches_fail() {
    require_root!();
    let stage = Stage::start().unwrap();
    let namespace = stage.namespace("data");
    let before = version(&stage, &namespace);
    stage.kubectl_with(&["-n", &namespace, "apply", "-f", "-"], &config_map("kept", "1")).unwrap();

    let [old_etcd, old_server] = stage.pids();
    stage.kill_api_server().unwrap();
    assert!(stage.kubectl(&["get", "namespaces", "--request-timeout=2s"]).is_err(), "a killed server serves");
    assert!(stage.kill_api_server().is_err(), "it is dead already");
    stage.kill_etcd().unwrap();
    assert_eq!(stage.pids(), [None, None]);
    stage.start_etcd().unwrap();
    stage.start_api_server().unwrap();
    assert!(stage.start_api_server().is_err(), "it runs already");
    let [etcd, server] = stage.pids();
    assert!(etcd.is_some() && etcd != old_etcd && server.is_some() && server != old_server);
    assert_eq!(stage.get(&["-n", &namespace, "configmap", "kept"]).unwrap()["data"]["value"], "1");
    assert_eq!(
        past(&stage, &namespace, &before).unwrap()["items"],
        json!([]),
        "without compaction the past is known"
    );

    stage.compact().unwrap();
    stage.kill_api_server().unwrap();
    stage.start_api_server().unwrap();
    let reported = events(&stage, &namespace, &before);
    assert_eq!(
        (&reported[0]["type"], &reported[0]["object"]["code"]),
        (&"ERROR".into(), &410.into()),
        "{reported:?}"
    );
    let error = past(&stage, &namespace, &before).unwrap_err().to_string();
    assert!(error.contains("Expired"), "{error}");
    assert_eq!(stage.get(&["-n", &namespace, "configmap", "kept"]).unwrap()["data"]["value"], "1");
}

#[test]
fn a_gate_leads_out_of_any_namespace_and_can_be_cut_closed_held_and_slow() {
    require_root!();
    let stage = Stage::shared();
    let sandbox = Sandbox::new().unwrap();
    let gate = stage.gate().unwrap();
    let elsewhere = sandbox.netns("elsewhere").unwrap();
    assert!(elsewhere.run(|| answer(&gate)).is_err(), "a gate is in one namespace");
    assert!(answer(&gate).unwrap().contains("HTTPS server"));
    wait_until("the connection is gone", LIMIT, || gate.connections() == 0);

    let client = TcpStream::connect(gate.address()).unwrap();
    wait_until("the connection is there", LIMIT, || gate.connections() == 1);
    assert_eq!((gate.cut(), gate.cut()), (1, 0));
    assert_eq!((&client).read(&mut [0; 8]).unwrap(), 0, "a cut connection is at its end");
    assert!(answer(&gate).unwrap().contains("HTTPS server"), "after a cut the next one passes");

    gate.close();
    assert!(!answer(&gate).unwrap_or_default().contains("HTTPS"));
    gate.open();
    gate.hold();
    let error = answer(&gate).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "held is silence, not an end");
    gate.open();
    assert!(answer(&gate).unwrap().contains("HTTPS server"), "an opened gate lets pass");
    gate.delay(Duration::from_millis(100));
    let begin = Instant::now();
    assert!(answer(&gate).unwrap().contains("HTTPS server"));
    assert!(
        begin.elapsed() >= Duration::from_millis(300),
        "the connection, the request, the answer: {:?}",
        begin.elapsed()
    );
    assert!(gate.accepted() >= 6);
}

/// Runs the stage's kubectl as another user.
fn kubectl_by(stage: &Stage, kubeconfig: &Path, arguments: &[&str]) -> std::process::Output {
    let own = stage.kubectl_command(&[]);
    let mut command = Command::new(own.get_program());
    for (name, value) in own.get_envs() {
        command.env(name, value.unwrap());
    }
    command.args(arguments).env("KUBECONFIG", kubeconfig).output().unwrap()
}

#[test]
fn users_have_tokens_roles_and_traces() {
    require_root!();
    let stage = Stage::with(&StageOptions { rbac: true, audit: true, ..StageOptions::default() }).unwrap();
    let gate = stage.gate().unwrap();
    let [agent, admin] = [User::Agent, User::Admin].map(|user| gate.kubeconfig(user).unwrap());
    assert!(kubectl_by(&stage, &admin, &["get", "namespaces"]).status.success());
    let refused = kubectl_by(&stage, &agent, &["get", "namespaces"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("Forbidden") && text.contains(User::Agent.name()), "{text}");
    stage.kubectl(&["create", "clusterrole", "namespaces", "--verb=list", "--resource=namespaces"]).unwrap();
    let account = "--serviceaccount=kube-system:cilium";
    stage.kubectl(&["create", "clusterrolebinding", "agent", "--clusterrole=namespaces", account]).unwrap();
    wait_until("the role counts", LIMIT, || {
        kubectl_by(&stage, &agent, &["get", "namespaces"]).status.success()
    });

    let requests = stage.audit().unwrap();
    let of_lists: Vec<(&Value, &Value)> = requests
        .iter()
        .filter(|request| request["requestURI"].as_str().unwrap().starts_with("/api/v1/namespaces"))
        .map(|request| (&request["user"]["username"], &request["responseStatus"]["code"]))
        .collect();
    assert_eq!(of_lists.first().unwrap().1, 403, "{of_lists:?}");
    assert_eq!(of_lists.last().unwrap().1, 200, "{of_lists:?}");
    assert!(
        of_lists.iter().all(|(user, _)| *user == User::Agent.name()),
        "only objects that it concerns: {of_lists:?}"
    );

    let token = std::fs::read_to_string(stage.account(User::Agent).join("token")).unwrap();
    stage.replace_token(User::Agent).unwrap();
    assert!(
        kubectl_by(&stage, &agent, &["get", "namespaces"]).status.success(),
        "the file holds the new token"
    );
    let old = kubectl_by(
        &stage,
        &agent,
        &[
            "get",
            "namespaces",
            "--kubeconfig=/dev/null",
            &format!("--token={token}"),
            &format!("--server={}", gate.url()),
            "--insecure-skip-tls-verify",
        ],
    );
    let text = String::from_utf8_lossy(&old.stderr);
    assert!(!old.status.success() && text.contains("Unauthorized"), "{text}");
}

#[test]
fn a_stage_leaves_no_process_and_no_file() {
    require_root!();
    let stage = Stage::start().unwrap();
    let folder = stage.account(User::Admin).ancestors().nth(2).unwrap().to_owned();
    let pids = stage.pids().map(Option::unwrap);
    assert!(folder.join("etcd").is_dir());
    drop(stage);
    assert!(!folder.exists());
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}
