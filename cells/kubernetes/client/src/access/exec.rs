//! Commands that print credentials: `exec` of a kubeconfig (`client.authentication.k8s.io`).

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::config::{Cluster, ExecAuthCluster, ExecConfig, ExecInteractiveMode};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;

/// The timeout of a command, with time for network requests and retries.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The maximum size of a command's output in bytes.
const MAX_OUTPUT: u64 = 1 << 20;

/// The interval at which the end of a command is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Credentials printed by a command.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Given {
    pub(super) token: Option<String>,
    /// PEM.
    pub(super) client_certificate_data: Option<String>,
    /// PEM.
    pub(super) client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
    /// The time at which the credentials expire.
    #[serde(skip)]
    pub(super) expires: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    kind: String,
    status: Option<Given>,
}

/// Runs the command. Kills its process group when it takes longer than `limit`. Blocks.
pub(super) fn run(exec: &ExecConfig, cluster: Option<&Cluster>, limit: Duration) -> Result<Given, String> {
    let name = exec.command.as_deref().filter(|name| !name.is_empty());
    let name = name.ok_or("command is missing; give the program that prints an ExecCredential")?;
    if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err("interactiveMode is Always, and the agent has no terminal; give Never".to_owned());
    }
    let mut spec = json!({"interactive": false});
    if exec.provide_cluster_info {
        let cluster =
            cluster.map(ExecAuthCluster::try_from).transpose().map_err(|error| error.to_string())?;
        spec["cluster"] = serde_json::to_value(cluster).map_err(|error| error.to_string())?;
    }
    let info = json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec});
    let memory = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map_err(|error| error.to_string());
    let (output, errors) = (memory("exec-stdout")?, memory("exec-stderr")?);
    let end = |fd: &OwnedFd| fd.try_clone().map_err(|error| error.to_string());
    let mut command = Command::new(name);
    command
        .args(exec.args.iter().flatten())
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(Stdio::null())
        .stdout(end(&output)?)
        .stderr(end(&errors)?)
        .process_group(0);
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let mut child = command.spawn().map_err(|error| match &exec.install_hint {
        Some(hint) => format!("cannot be run: {error}; {hint}"),
        None => format!("cannot be run: {error}; install it, or give its path"),
    })?;
    let output = File::from(output);
    let status = wait(&mut child, &output, limit)?;
    if !status.success() {
        let complaint = String::from_utf8_lossy(&read(File::from(errors))?).into_owned();
        let complaint = complaint.split_whitespace().collect::<Vec<_>>().join(" ");
        let complaint: String = complaint.chars().take(300).collect();
        return Err(format!("ended with {status}: {complaint:?}"));
    }
    parse(&read(output)?)
}

/// Waits until the command ends; kills its process group after `limit`.
fn wait(child: &mut Child, output: &File, limit: Duration) -> Result<ExitStatus, String> {
    let begin = Instant::now();
    let fault = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(status);
        }
        if begin.elapsed() >= limit {
            break format!(
                "has not ended within {} s and was killed; does it wait for somebody?",
                limit.as_secs_f32()
            );
        }
        if output.metadata().is_ok_and(|output| output.len() > MAX_OUTPUT) {
            break format!("has said more than {MAX_OUTPUT} bytes and was killed");
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(fault)
}

fn read(mut file: File) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let read = file.rewind().and_then(|()| file.take(MAX_OUTPUT).read_to_end(&mut content));
    read.map(|_| content).map_err(|error: io::Error| error.to_string())
}

/// Parses the output. Errors must not quote it, since it is a secret.
fn parse(output: &[u8]) -> Result<Given, String> {
    const RIGHT: &str = "it must print an ExecCredential in JSON whose status has a token, or clientCertificateData and \
                         clientKeyData";
    let answer: Answer = serde_json::from_slice(output).map_err(|error| {
        format!("has printed something else at line {}, column {}; {RIGHT}", error.line(), error.column())
    })?;
    let mut given = answer.status.filter(|_| answer.kind == "ExecCredential").unwrap_or_default();
    if given.client_certificate_data.is_some() != given.client_key_data.is_some()
        || (given.token.is_none() && given.client_key_data.is_none())
    {
        return Err(format!("has given no credentials; {RIGHT}"));
    }
    if let Some(text) = given.expiration_timestamp.take().filter(|text| !text.is_empty()) {
        let time = text.parse().map_err(|_| {
            format!("status.expirationTimestamp: {text:?} is wrong; give a time like 2026-01-31T12:00:00Z")
        })?;
        given.expires = Some(time);
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Given, String> {
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", script],
            "env": [{"name": "WORD", "value": "w-1"}], "provideClusterInfo": true,
        });
        let cluster = json!({"server": "https://192.0.2.1"});
        run(&serde_json::from_value(exec).unwrap(), Some(&serde_json::from_value(cluster).unwrap()), limit)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_command_prints_credentials() {
        let given = shell(
            r#"echo "$KUBERNETES_EXEC_INFO" | grep -q '"server":"https://192.0.2.1"' || exit 3
            echo '{"kind":"ExecCredential","status":{"token":"'"$WORD"'","expirationTimestamp":"2030-01-01T00:00:00Z"}}'"#,
            LONG,
        );
        let given = given.unwrap();
        assert_eq!(given.token.as_deref(), Some("w-1"));
        assert_eq!(given.expires.unwrap().to_string(), "2030-01-01T00:00:00Z");
    }

    #[test]
    fn faults_of_a_command_are_reported() {
        let wrong = |script: &str| shell(script, LONG).unwrap_err();
        assert_eq!(wrong("echo ' no  way' >&2; exit 7"), "ended with exit status: 7: \"no way\"");
        let none = wrong("echo token-of-mine");
        assert!(none.contains("line 1, column 2") && !none.contains("mine"), "{none}");
        assert!(wrong("echo '{\"kind\":\"ExecCredential\"}'").starts_with("has given no credentials"));
        let late = "echo '{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\",\"expirationTimestamp\":\"soon\"}}'";
        assert!(wrong(late).starts_with("status.expirationTimestamp: \"soon\" is wrong"));
        assert!(wrong("yes").starts_with("has said more than 1048576 bytes"));
        let exec = serde_json::from_value(json!({"command": "no-such-command-here"})).unwrap();
        assert!(run(&exec, None, LONG).unwrap_err().starts_with("cannot be run: No such file"));
    }

    #[test]
    fn a_hanging_command_is_killed_with_its_process_group() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("children");
        let script = format!("sleep 1000 & echo $$ $! > {}; wait", file.display());
        let fault = shell(&script, Duration::from_secs(2)).unwrap_err();
        assert!(fault.starts_with("has not ended within 2 s and was killed"), "{fault}");
        for pid in std::fs::read_to_string(file).unwrap().split_whitespace() {
            let state = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let begin = Instant::now();
            // A zombie counts as killed: init of a container may not reap it.
            while !state(pid).is_empty() && !state(pid).contains(") Z ") {
                assert!(begin.elapsed() < LONG, "{} lives", state(pid));
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
}
