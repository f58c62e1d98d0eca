//! The chart `helm/apiary`, rendered by helm: its objects, its configuration, its roles, the values that it refuses.

mod beside;
mod certgen;
mod controllers;
mod images;
mod joined;
mod refused;
mod release;
mod rendered;
mod steps;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use integration_tests::brought_by;
use serde_json::Value;

const RELEASE: [&str; 5] = ["cilium", "helm/apiary", "--namespace", "kube-system", "--include-crds"];

/// Files with what the chart renders by default, which `tools/chart-files` writes.
const CONFIG_FILES: [&str; 3] =
    ["config/kubernetes/cilium-config.yaml", "config/kubernetes/cilium.yaml", "config/roles.yaml"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns helm's path; `None` if it is not built, which takes minutes: `make test FULL=1` builds it.
fn helm() -> Option<&'static Path> {
    static HELM: OnceLock<Option<PathBuf>> = OnceLock::new();
    HELM.get_or_init(|| brought_by("helm").map(|folder| folder.join("helm"))).as_deref()
}

/// Skips the test unless helm is built.
macro_rules! require_helm {
    () => {
        test_kit::require!(crate::chart::helm().is_some(), "helm is not built: tools/helm does it");
    };
}
use require_helm;

/// Runs a command of helm on the chart with these values.
fn run(command: &str, values: &Value) -> Output {
    let mut file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    file.write_all(values.to_string().as_bytes()).unwrap();
    let home = tempfile::tempdir().unwrap();
    let release = match command {
        "lint" => &RELEASE[1..4],
        _ => &RELEASE[..],
    };
    Command::new(helm().unwrap())
        .arg(command)
        .args(release)
        .arg("-f")
        .arg(file.path())
        .current_dir(root())
        .env("HELM_CACHE_HOME", home.path())
        .env("HELM_CONFIG_HOME", home.path())
        .env("HELM_DATA_HOME", home.path())
        .output()
        .unwrap()
}

/// Renders the chart; else the error.
fn render(values: &Value) -> Result<String, String> {
    let output = run("template", values);
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Returns the objects of a text of YAML documents, by kind and name.
fn objects(text: &str) -> BTreeMap<String, Value> {
    let objects = text.split("\n---\n").filter_map(|document| {
        let object = yaml_values::value(document).unwrap();
        let kind = object["kind"].as_str()?.to_owned();
        Some((format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap()), object))
    });
    objects.collect()
}

/// Returns the data of ConfigMap cilium-config.
fn config(text: &str) -> BTreeMap<String, String> {
    let data = objects(text)["ConfigMap/cilium-config"]["data"].clone();
    serde_json::from_value(data).expect("all values are strings")
}
