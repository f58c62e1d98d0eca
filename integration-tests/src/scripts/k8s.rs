//! The tracker alone, with an object that was made by a request, and a command that makes another one.

use std::sync::Arc;

use anyhow::{Context, ensure};
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use k8s_types::{Api, Key, Kind};
use serde_json::{Value, json};

pub(super) fn cells() -> Vec<Cell> {
    let fixture = [invoke(create), provide(update_status)];
    vec![k8s_fake_apiserver::cell(), module("fake-client", "A node, and updates of a status", fixture)]
}

async fn create(api: Arc<dyn Api>) -> anyhow::Result<()> {
    let node = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "test"}});
    api.create(Kind::CiliumNode, node.to_string().into()).await?;
    Ok(())
}

fn update_status(api: Arc<dyn Api>) -> Member<Command> {
    let update = move |call: Call| {
        let api = api.clone();
        async move {
            let [file] = call.exactly()?;
            let text = String::from_utf8(call.read(file)?)?;
            let said = k8s_types::documents(&text).into_iter().next().context("no object")??.value;
            let meta = |field: &str| said["metadata"][field].as_str().unwrap_or_default();
            // Servers take a status without a version for whatever is there.
            ensure!(
                !meta("resourceVersion").is_empty(),
                "{file}: has no metadata.resourceVersion, which a status update needs"
            );
            // They take labels with the status, which Cilium's does not.
            let key = Key::new(meta("namespace"), meta("name"));
            let mut service: Value = serde_json::from_slice(&api.get(Kind::Service, &key).await?)?;
            service["metadata"]["resourceVersion"] = meta("resourceVersion").into();
            service["status"] = said["status"].clone();
            api.update_status(Kind::Service, service.to_string().into()).await?;
            Ok(Output::none())
        }
    };
    Member(Command::new("k8s/svc/update-status", "update the status of a service", update).takes("file"))
}
