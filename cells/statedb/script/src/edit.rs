//! Commands that change rows.

use std::sync::Arc;

use anyhow::{Context, bail};
use figment::providers::{Format, Yaml};
use hive_script::{Call, Command, Output};
use statedb::{Db, Edit};

use crate::cell::{command, table};

pub(crate) fn commands(db: &Arc<Db>) -> Vec<Command> {
    let edits = [
        ("db/insert", "Insert object into a table", Edit::Insert),
        ("db/delete", "Delete an object from the table", Edit::Delete),
    ];
    let edits = edits.map(|(name, summary, edit)| {
        command(db, name, summary, move |db: Arc<Db>, call: Call| async move { change(&db, &call, edit) })
            .takes("table path...")
            .detail("Files hold YAML, objects separated by ---; keys are the names of fields in lower case.")
    });
    edits.into()
}

/// All files in one transaction. What comes before an object that is none is done.
fn change(db: &Db, call: &Call, edit: Edit) -> anyhow::Result<Output> {
    let [name, files @ ..] = call.args.as_slice() else { bail!("expected table and path(s)") };
    if files.is_empty() {
        bail!("expected table and path(s)");
    }
    let table = table(db, name)?;
    let mut rows = vec![];
    let read = files.iter().try_for_each(|file| {
        let text = call.state.read(file).with_context(|| format!("ReadFile({file})"))?;
        let text = str::from_utf8(&text).with_context(|| file.clone())?;
        for part in text.split("---").filter(|part| !part.trim().is_empty()) {
            rows.push(Yaml::from_str::<serde_json::Value>(part).with_context(|| file.clone())?);
        }
        anyhow::Ok(())
    });
    table.edit(db, edit, rows).with_context(|| files.join(" "))?;
    read?;
    Ok(Output::none())
}
