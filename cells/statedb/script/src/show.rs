//! Commands that print rows.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use hive_command::{Call, Command, Flag, FlagKind, Output, render};
use statedb::{AnyObj, AnyTable, Db, Error, Find};

use crate::cell::{command, table};

pub(crate) fn commands(db: &Arc<Db>) -> Vec<Command> {
    let queries = [
        ("db/get", "Get the first matching object", Find::Get),
        ("db/list", "List objects in the table", Find::List),
        ("db/prefix", "Query table by prefix", Find::Prefix),
        ("db/lowerbound", "Query table by lower bound search", Find::LowerBound),
    ];
    let queries = queries.map(|(name, summary, find)| {
        let query = move |db: Arc<Db>, call: Call| async move {
            Ok(query(&db, &call, find).unwrap_or_else(|error| Output::text("").failed(error)))
        };
        with_flags(command(db, name, summary, query))
            .takes("table key")
            .flag(Flag::text("index", "index to query, the primary if not given").short('i'))
            .flag(Flag::switch("delete", "delete what is shown"))
    });
    let show = |db: Arc<Db>, call: Call| async move {
        Ok(show(&db, &call).unwrap_or_else(|error| Output::text("").failed(error)))
    };
    let show = with_flags(command(db, "db/show", "Show table", show)).takes("table");
    std::iter::once(show).chain(queries).collect()
}

fn with_flags(command: Command) -> Command {
    command
        .flag(Flag::text("out", "file to write to instead of stdout").short('o'))
        .flag(Flag::new("columns", FlagKind::Texts, "", "columns to show, in this order"))
        .flag(Flag::new("format", FlagKind::Text, "table", "table, yaml or json").short('f'))
}

fn show(db: &Db, call: &Call) -> anyhow::Result<Output> {
    let name = call.args.first().context("missing table name")?;
    let table = table(db, name)?;
    let rows = table.all(&db.snapshot());
    written(call, &*table, &rows)
}

fn query(db: &Db, call: &Call, find: Find) -> anyhow::Result<Output> {
    let [name, key, ..] = call.args.as_slice() else { bail!("expected table and key") };
    let table = table(db, name)?;
    let index = call.flags.text("index");
    let rows = table.find(&db.snapshot(), find, index, key).map_err(|error| match error {
        Error::UnknownIndex { index, .. } => anyhow::anyhow!("query: invalid index \"{index}\""),
        error => anyhow::Error::new(error).context("query"),
    })?;
    let shown = written(call, &*table, &rows)?;
    if call.flags.is_on("delete") {
        call.log(format_args!("Deleted {} objects", table.delete(db, &rows)));
    }
    Ok(shown)
}

fn written(call: &Call, table: &dyn AnyTable, rows: &[AnyObj]) -> anyhow::Result<Output> {
    let wanted = call.flags.texts("columns");
    let format = call.flags.text("format");
    ensure!(wanted.is_empty() || format == "table", "--columns not supported with non-table formats");
    let text = match format {
        "table" => {
            let (header, picked) = columns(table, &wanted)?;
            let cells = rows.iter().map(|row| {
                let row = row.row();
                picked.iter().map(|column| row.get(*column).cloned().unwrap_or_default()).collect()
            });
            render::table(&std::iter::once(header).chain(cells).collect::<Vec<_>>())
        }
        "json" => rows.iter().map(|row| render::json(&row.json_text())).collect(),
        "yaml" => {
            let document = |row: &AnyObj| match row.yaml() {
                Some(said) => render::yaml(&said, str::to_owned),
                None => render::yaml(&row.json_text(), |key| key.to_lowercase()),
            };
            let documents: Result<Vec<String>, _> = rows.iter().map(document).collect();
            documents?.join("---\n")
        }
        other => bail!("unknown format \"{other}\", expected table, yaml or json"),
    };
    call.to_file_or_stdout("out", text)
}

/// Returns the header and the positions of the requested columns, by default all.
pub(crate) fn columns(table: &dyn AnyTable, wanted: &[String]) -> anyhow::Result<(Vec<String>, Vec<usize>)> {
    let known = table.columns();
    if wanted.is_empty() {
        return Ok((known.iter().map(|&name| name.to_owned()).collect(), (0..known.len()).collect()));
    }
    let position = |name: &String| {
        let found = known.iter().position(|column| column.eq_ignore_ascii_case(name));
        found.ok_or_else(|| anyhow::anyhow!("column \"{name}\" not part of [{}]", known.join(" ")))
    };
    let picked: anyhow::Result<Vec<usize>> = wanted.iter().map(position).collect();
    Ok((wanted.to_vec(), picked?))
}
