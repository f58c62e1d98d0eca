//! Commands that change rows.

use std::sync::Arc;

use anyhow::{Context, bail};
use hive_command::{Call, Command, Output};
use statedb::{Db, Edit, EditError};

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

/// Applies all files in one transaction, which any error aborts.
fn change(db: &Db, call: &Call, edit: Edit) -> anyhow::Result<Output> {
    let [name, files @ ..] = call.args.as_slice() else { bail!("expected table and path(s)") };
    if files.is_empty() {
        bail!("expected table and path(s)");
    }
    let table = table(db, name)?;
    let (mut rows, mut sources) = (vec![], vec![]);
    for file in files {
        let text = call.read(file).with_context(|| format!("ReadFile({file})"))?;
        let unmarshal = || format!("Unmarshal({file})");
        let text = str::from_utf8(&text).with_context(unmarshal)?;
        for part in text.split("---").filter(|part| !part.trim().is_empty()) {
            rows.push(yaml_values::value(part).with_context(unmarshal)?);
            sources.push(file);
        }
    }
    table.edit(db, edit, rows).map_err(|error| match &error {
        EditError::Value { at, .. } => {
            let file = sources[*at];
            anyhow::Error::new(error).context(format!("Unmarshal({file})"))
        }
        _ => anyhow::Error::new(error),
    })?;
    Ok(Output::none())
}
