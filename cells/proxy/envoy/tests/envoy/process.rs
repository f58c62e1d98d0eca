//! An Envoy that the agent starts; a script stands in for it, which records its arguments.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use hive::health::Level;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::world::{World, http};

/// A folder with the program; what runs at the end of a test is killed.
struct Program(tempfile::TempDir);

impl Program {
    /// Returns a program that records its arguments and its id, and goes on with a line of a script.
    fn new(line: &str) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let (path, log) = (folder.path().join("envoy"), folder.path().display());
        let script = format!(
            "#!/bin/sh\necho \"$*\" >>{log}/arguments\necho $$ >>{log}/pids\n\
             echo '1|warning|main|of a stand-in' >&2\n{line}\n"
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Program(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("envoy")
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.path().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn is_running(pid: &str) -> bool {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !state.is_empty() && !state.contains(") Z ")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let running = self.lines("pids").into_iter().filter(|pid| Program::is_running(pid));
        running.for_each(|pid| _ = std::process::Command::new("kill").args(["-9", &pid]).status());
    }
}

async fn start(program: &Path, options: &[(&str, &str)], before: impl FnOnce(&Path)) -> World {
    let binary = program.display().to_string();
    let own = [("external-envoy-proxy", "false"), ("envoy-binary", binary.as_str())];
    World::start(&[&own, options].concat(), |folder, _, _| before(folder)).await
}

fn health(world: &World) -> (Level, String) {
    let status = world.hive.health("envoy-proxy.job-process");
    (status.level, format!("{} {}", status.message, status.error))
}

#[tokio::test]
async fn an_envoy_is_started_for_the_first_listener_and_outlives_the_agent() {
    let program = Program::new("exec sleep 60");
    let options = [
        ("envoy-base-id", "7"),
        ("envoy-default-log-level", "debug"),
        ("proxy-prometheus-port", "9964"),
        ("proxy-initial-fetch-timeout", "7"),
    ];
    let world = start(&program.path(), &options, |_| ()).await;
    world.xds().await;
    assert_eq!(health(&world), (Level::Ok, "Envoy is not needed ".to_owned()));
    assert!(program.lines("pids").is_empty());
    world.set_and_reserve(7, http("/")).await;
    world.hive.until("it is started", || program.lines("pids").len() == 1).await;
    let file = world.folder.path().join("envoy/bootstrap.json");
    let wanted = format!("-l debug -c {} --base-id 7 --log-format %t|%l|%n|%v", file.display());
    assert_eq!(program.lines("arguments"), [wanted]);
    let start = "\ncilium_subprocess_start_total{subsystem=\"cilium-envoy-starter\"} 1\n";
    world.hive.until("its start is counted", || world.metrics.text().contains(start)).await;
    let pid = program.lines("pids").remove(0);
    world.hive.until("it is in health", || health(&world).1.contains(&pid)).await;
    world
        .hive
        .until("its log is in that of the agent", || {
            world.hive.has_logged(hive::LogLevel::WARN, "of a stand-in")
        })
        .await;
    let bootstrap: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let socket =
        "/staticResources/clusters/0/loadAssignment/endpoints/0/lbEndpoints/0/endpoint/address/pipe/path";
    assert_eq!(bootstrap.pointer(socket).unwrap(), &*world.socket("xds.sock").to_string_lossy());
    let port = "/staticResources/listeners/0/address/socketAddress/portValue";
    assert_eq!(bootstrap.pointer(port).unwrap(), 9964);
    assert_eq!(bootstrap.pointer("/dynamicResources/ldsConfig/initialFetchTimeout").unwrap(), "7s");
    world.end().await;
    assert!(Program::is_running(&pid), "connections of workloads outlive the agent");
}

#[tokio::test]
async fn an_envoy_that_ends_is_started_again_and_health_has_its_status() {
    let program = Program::new("exit 3");
    let world = start(&program.path(), &[], |_| ()).await;
    world.set_and_reserve(7, http("/")).await;
    world.hive.until("it is started again", || program.lines("pids").len() >= 3).await;
    world
        .hive
        .until("health has its status", || {
            let (level, text) = health(&world);
            level == Level::Degraded && text.contains("exit status: 3")
        })
        .await;
    world.end().await;
}

/// Answers as the administration of an Envoy does, in a task that ends when it is asked to and returns the request.
#[expect(clippy::disallowed_methods, reason = "a server of the test, which ends with it")]
fn administration(listener: UnixListener) -> JoinHandle<String> {
    tokio::spawn(answer(listener))
}

async fn answer(listener: UnixListener) -> String {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let length = stream.read(&mut request).await.unwrap();
        if length > 0 {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nOK\n")
                .await
                .unwrap();
            return String::from_utf8_lossy(&request[..length]).into_owned();
        }
    }
}

#[tokio::test]
async fn an_envoy_of_the_previous_run_serves_on_and_ends_when_its_options_have_changed() {
    let program = Program::new("exec sleep 60");
    let listen = |folder: &Path| {
        fs::create_dir_all(folder.join("envoy/sockets")).unwrap();
        UnixListener::bind(folder.join("envoy/sockets/admin.sock")).unwrap()
    };
    let mut admin = None;
    let world = start(&program.path(), &[], |folder| admin = Some(listen(folder))).await;
    let admin = administration(admin.unwrap());
    world.set_and_reserve(7, http("/")).await;
    world.hive.until("it is started", || program.lines("pids").len() == 1).await;
    assert!(admin.await.unwrap().starts_with("POST /quitquitquit HTTP/1.1\r\n"), "its bootstrap is unknown");
    // The next run has the same folder, options and an Envoy that is alive.
    let bootstrap = fs::read_to_string(world.folder.path().join("envoy/bootstrap.json")).unwrap();
    let former = world.folder.path().display().to_string();
    world.end().await;
    let mut admin = None;
    let world = start(&program.path(), &[], |folder| {
        let bootstrap = bootstrap.replace(&former, &folder.display().to_string());
        admin = Some(listen(folder));
        fs::write(folder.join("envoy/bootstrap.json"), bootstrap).unwrap();
    })
    .await;
    let admin = administration(admin.unwrap());
    world.set_and_reserve(7, http("/")).await;
    world.hive.until("it is taken over", || health(&world).1.contains("previous run serves on")).await;
    assert_eq!(program.lines("pids").len(), 1);
    admin.abort();
    let _ = admin.await;
    world.hive.until("another one follows it", || program.lines("pids").len() == 2).await;
    world.end().await;
}

/// Health names both versions as soon as the first check is due.
#[tokio::test]
async fn an_envoy_of_another_version_is_named() {
    let program = Program::new("exec sleep 60");
    let mut admin = None;
    let world = start(&program.path(), &[], |folder| {
        fs::create_dir_all(folder.join("envoy/sockets")).unwrap();
        admin = Some(UnixListener::bind(folder.join("envoy/sockets/admin.sock")).unwrap());
    })
    .await;
    world.xds().await;
    let health = || world.hive.health("envoy-proxy.job-version-check");
    let other = "0123456789abcdef0123456789abcdef01234567/1.30.1/Distribution/RELEASE/BoringSSL";
    let admin = reports_version(admin.unwrap(), other);
    world.hive.until("the other version is named", || health().level == Level::Degraded).await;
    let error = health().error;
    assert!(error.contains(other) && error.contains("disable-envoy-version-check"), "{error}");
    admin.abort();
    world.end().await;
}

/// Answers as an Envoy of a version does, in chunks, in a task that ends with the test.
#[expect(clippy::disallowed_methods, reason = "a server of the test, which ends with it")]
fn reports_version(listener: UnixListener, version: &'static str) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            if !request[..length].starts_with(b"GET /server_info ") {
                continue;
            }
            let body = format!("{{\"version\": \"{version}\", \"state\": \"LIVE\"}}");
            let answer = format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
}
