//! The cell in a hive, with a real folder.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::StatusSource;
use api_models::StatusResponse;
use hive::TestHive;
use hive::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

const NAME: &str = "05-cilium.conflist";

/// The sources of the status in the hive under test.
struct Sources(Group<StatusSource>);

/// A running hive with the cell, and its folder.
struct Agent {
    root: TempDir,
    hive: TestHive,
}

impl Agent {
    /// Starts with these options beside the path, after `prepare` has filled the folder. ROOT in a value is the parent of the
    /// folder.
    async fn start(options: &[(&str, &str)], prepare: impl FnOnce(&Path)) -> Agent {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("net.d");
        fs::create_dir(&folder).unwrap();
        prepare(&folder);
        let path = folder.join(NAME);
        let sources = provide(|sources: Group<StatusSource>| Arc::new(Sources(sources)));
        let mut hive = TestHive::needing::<Sources>([cni_config::cell(), sources])
            .set("write-cni-conf-when-ready", path.display());
        for (option, value) in options {
            hive = hive.set(option, value.replace("ROOT", root.path().to_str().unwrap()));
        }
        hive.start().await;
        Agent { root, hive }
    }

    fn folder(&self) -> PathBuf {
        self.root.path().join("net.d")
    }

    fn network(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder().join(NAME)).unwrap()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Returns state and message of the file, and the chaining mode.
    fn status(&self) -> (String, String, String) {
        let mut status = StatusResponse::default();
        self.hive.get::<Sources>().0.iter().for_each(|source| source.fill(&mut status));
        let file = status.cni_file.unwrap_or_default();
        (file.state, file.msg, status.cni_chaining.unwrap().mode)
    }
}

fn types(network: &Value) -> Vec<&str> {
    network["plugins"].as_array().unwrap().iter().map(|plugin| plugin["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_file_is_there_when_the_start_hooks_have_run() {
    let agent = Agent::start(&[("cni-log-file", "/l")], |_| ()).await;
    assert_eq!(agent.network()["name"], "cilium");
    assert_eq!(
        agent.network()["plugins"],
        json!([{"type": "cilium-cni", "enable-debug": false, "log-file": "/l"}])
    );
    let path = agent.folder().join(NAME);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let written = format!("successfully wrote CNI configuration file to {}", path.display());
    assert_eq!(agent.status(), ("Ok".to_owned(), written, "none".to_owned()));
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    agent.hive.finish().await;
    assert!(path.exists(), "the runtime needs it while no agent runs");
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified);
}

#[tokio::test]
async fn a_deleted_changed_or_linked_file_is_written_again() {
    let agent = Agent::start(&[], |folder| {
        symlink("/etc/passwd", folder.join(NAME)).unwrap();
    })
    .await;
    let path = agent.folder().join(NAME);
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    let content = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    agent.hive.until("it is there again", || fs::read(&path).is_ok_and(|found| found == content)).await;
    fs::write(&path, "{}").unwrap();
    agent
        .hive
        .until("it has its content again", || fs::read(&path).is_ok_and(|found| found == content))
        .await;
    fs::remove_dir_all(agent.folder()).unwrap();
    agent
        .hive
        .until("its folder is there again", || fs::read(&path).is_ok_and(|found| found == content))
        .await;
    agent.hive.finish().await;
}

#[tokio::test]
async fn an_exclusive_file_has_no_others_beside_it() {
    let others = ["10-a.conflist", "20-b.conf", "30-c.json"];
    let fill = |folder: &Path| {
        for name in others.iter().chain(&["keep.txt", "05-cilium.conf"]) {
            fs::write(folder.join(name), "{}").unwrap();
        }
    };
    let agent = Agent::start(&[("cni-exclusive", "true")], fill).await;
    let renamed = |name: &str| format!("{name}.cilium_bak");
    let mut expected: Vec<String> = others.map(renamed).into();
    expected.extend([renamed("05-cilium.conf"), NAME.to_owned(), "keep.txt".to_owned()]);
    expected.sort();
    assert_eq!(agent.names(), expected);
    fs::write(agent.folder().join("40-late.conf"), "{}").unwrap();
    agent.hive.until("it is renamed", || agent.names().contains(&renamed("40-late.conf"))).await;
    agent.hive.finish().await;

    let agent = Agent::start(&[], fill).await;
    let names = agent.names();
    assert!(others.iter().all(|name| names.iter().any(|found| found == name)), "{names:?}");
    assert!(names.contains(&renamed("05-cilium.conf")), "the name of older versions: {names:?}");
    agent.hive.finish().await;
}

#[tokio::test]
async fn the_plugin_is_inserted_into_the_network_of_another_plugin() {
    let aws = r#"{"cniVersion":"0.4.0","name":"aws-cni","plugins":[{"type":"aws-cni"},{"type":"portmap"}]}"#;
    let options = [("cni-chaining-mode", "aws-cni"), ("cni-exclusive", "true")];
    let agent = Agent::start(&options, |_| ()).await;
    let (state, message, mode) = agent.status();
    assert_eq!((state.as_str(), mode.as_str()), ("Failure", "aws-cni"));
    assert!(message.contains("no matching CNI configurations found (will retry)"), "{message}");
    assert!(!agent.folder().join(NAME).exists());
    // The other plugin comes later. Its file is renamed, and stays the source of the network.
    fs::write(agent.folder().join("10-aws.conflist"), aws).unwrap();
    agent.hive.until("the network is there", || agent.status().0 == "Ok").await;
    assert_eq!(types(&agent.network()), ["aws-cni", "portmap", "cilium-cni"]);
    assert_eq!(agent.network()["plugins"][2]["chaining-mode"], "aws-cni");
    assert_eq!(agent.names(), [NAME, "10-aws.conflist.cilium_bak"]);
    fs::remove_file(agent.folder().join(NAME)).unwrap();
    agent.hive.until("it is there again", || agent.folder().join(NAME).exists()).await;
    assert_eq!(types(&agent.network()), ["aws-cni", "portmap", "cilium-cni"]);
    agent.hive.finish().await;
}

#[tokio::test]
async fn any_network_is_the_target_of_a_star_but_our_own_old_one() {
    let options = [("cni-chaining-target", "*")];
    let agent = Agent::start(&options, |folder| {
        fs::write(folder.join("00-broken.conflist"), "{").unwrap();
        let old = r#"{"name":"cilium","plugins":[{"type":"cilium-cni"}]}"#;
        fs::write(folder.join("01-old.conflist"), old).unwrap();
        fs::write(folder.join("10-net.conf"), r#"{"name":"net","type":"ptp"}"#).unwrap();
    })
    .await;
    assert_eq!(agent.network()["name"], "net");
    assert_eq!(types(&agent.network()), ["ptp", "cilium-cni"]);
    assert_eq!(agent.network()["plugins"][1]["chaining-mode"], "generic-veth");
    agent.hive.finish().await;
}

#[tokio::test]
async fn a_custom_file_is_copied_if_it_is_a_network() {
    let custom = [("read-cni-conf", "ROOT/custom"), ("cni-chaining-mode", "generic-veth")];
    let agent = Agent::start(&custom, |_| ()).await;
    let (state, message, _) = agent.status();
    assert!(state == "Failure" && message.contains("option read-cni-conf"), "{message}");
    for (content, is_network) in [("no JSON", false), (r#"{"name":"x"}"#, false)] {
        fs::write(agent.root.path().join("custom"), content).unwrap();
        fs::write(agent.folder().join("poke.conf"), content).unwrap();
        agent.hive.until("its fault is named", || agent.status().1.contains("is no CNI configuration")).await;
        assert_eq!(agent.folder().join(NAME).exists(), is_network);
    }
    let text = "\n { \"name\": \"x\", \"plugins\": [ {\"type\": \"cilium-cni\"} ] }";
    fs::write(agent.root.path().join("custom"), text).unwrap();
    fs::remove_file(agent.folder().join("poke.conf")).unwrap();
    agent.hive.until("it is written", || agent.status().0 == "Ok").await;
    assert_eq!(fs::read_to_string(agent.folder().join(NAME)).unwrap(), text);
    agent.hive.finish().await;
}

#[tokio::test]
async fn without_a_path_nothing_is_managed() {
    let sources = provide(|sources: Group<StatusSource>| Arc::new(Sources(sources)));
    let mut hive = TestHive::needing::<Sources>([cni_config::cell(), sources]);
    hive.start().await;
    let mut status = StatusResponse::default();
    hive.get::<Sources>().0.iter().for_each(|source| source.fill(&mut status));
    assert!(status.cni_file.is_none(), "the status cell's own row says Disabled");
    hive.finish().await;
}

#[tokio::test]
async fn a_path_without_a_folder_is_refused_at_the_start() {
    let mut hive = TestHive::new(cni_config::cell()).set("write-cni-conf-when-ready", "05-cilium.conflist");
    let error = format!("{:?}", hive.try_start().await.unwrap_err());
    assert!(error.contains("write-cni-conf-when-ready"), "{error}");
}
