//! The commands `db/*` of the shell, and index keys as text and as bytes.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hive::TestHive;
use hive::prelude::*;
use hive_script::{Engine, State, default_commands};
use serde::{Deserialize, Serialize};
use statedb::{
    AnyObj, AnyTable, Db, Error, Find, FromValue, Index, IndexDef, RwTable, TableDisplay, TableSpec,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::input::{parts, text};

/// The maximum number of commands in an input.
const LINES: usize = 4;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all(serialize = "PascalCase"))]
struct Row {
    name: String,
    number: u32,
    signed: i64,
    address: Option<IpAddr>,
    tags: Vec<String>,
    kept: bool,
}

const BY_NUMBER: Index<Row, u32> = Index::new("number", |row, keys| keys.add(&row.number));
const BY_SIGNED: Index<Row, i64> = Index::new("signed", |row, keys| keys.add(&row.signed));
const BY_ADDRESS: Index<Row, IpAddr> = Index::new("address", |row, keys| keys.extend(&row.address));
const BY_TAG: Index<Row, String> = Index::new("tag", |row, keys| keys.extend(&row.tags));
const BY_KEPT: Index<Row, bool> = Index::new("kept", |row, keys| keys.add(&row.kept));
const BY_PAIR: Index<Row, (u32, String)> =
    Index::new("pair", |row, keys| keys.add(&(row.number, row.name.clone())));

impl TableSpec for Row {
    const NAME: &'static str = "rows";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        let numbers = [BY_NUMBER.def(), BY_SIGNED.def(), BY_ADDRESS.def()];
        numbers.into_iter().chain([BY_TAG.def(), BY_KEPT.def(), BY_PAIR.def()]).collect()
    }
}

impl TableDisplay for Row {
    const FROM_VALUE: Option<FromValue<Self>> = Some(serde_json::from_value);

    fn columns() -> &'static [&'static str] {
        &["Name", "Number", "Signed", "Address", "Tags", "Kept"]
    }

    fn row(&self) -> Vec<String> {
        let address = self.address.map_or_else(String::new, |address| address.to_string());
        let numbers = [self.name.clone(), self.number.to_string(), self.signed.to_string(), address];
        numbers.into_iter().chain([self.tags.join(","), self.kept.to_string()]).collect()
    }
}

thread_local! {
    static SHELL: RefCell<Option<Shell>> = const { RefCell::new(None) };
}

/// Commands by line, the content of the files `f` that they name, a key as text, another as bytes.
pub(crate) fn run(data: &[u8]) {
    SHELL.with_borrow_mut(|shell| {
        let shell = shell.get_or_insert_with(Shell::start);
        let [lines, file, key, raw] = parts(data);
        shell.reset(file);
        for line in text(lines).lines().take(LINES) {
            shell.command(line);
        }
        shell.finds(&text(key), raw);
        shell.shows_what_can_be_read();
    });
}

struct Shell {
    runtime: Runtime,
    engine: Arc<Engine>,
    rows: RwTable<Row>,
    any: Arc<dyn AnyTable>,
    folder: TempDir,
    /// `None` only after it was stopped at the end of the thread.
    hive: Option<TestHive>,
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.hive.take().into_iter().for_each(TestHive::kill);
    }
}

impl Shell {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let rows = module("rows", "Rows", [statedb::table::<Row>(), invoke(|_: Arc<RwTable<Row>>| ())]);
        let cells = [statedb::cell(), rows, statedb_script::cell(), hive_script::cell()];
        let mut hive = TestHive::needing::<Engine>(cells);
        runtime.block_on(hive.start());
        let rows = RwTable::clone(&hive.get::<RwTable<Row>>());
        let any = hive.get::<Db>().table_by_name("rows").unwrap();
        let engine = Engine::clone(&hive.get::<Engine>()).with(default_commands()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        Shell { runtime, engine: Arc::new(engine), rows, any, folder, hive: Some(hive) }
    }

    /// Restores the initial rows and files.
    fn reset(&self, file: &[u8]) {
        for left in std::fs::read_dir(self.folder.path()).unwrap() {
            std::fs::remove_file(left.unwrap().path()).unwrap();
        }
        std::fs::write(self.folder.path().join("f"), file).unwrap();
        self.rows.transact(|w| {
            w.delete_all();
            for (number, name) in ["", "a", "a\0b", "ab", "b,c", "true"].into_iter().enumerate() {
                let number = number as u32 % 4;
                w.insert(Row {
                    name: name.to_owned(),
                    number,
                    signed: i64::from(number) - 2,
                    address: [None, "10.0.0.1".parse().ok(), "fd00::1".parse().ok()][number as usize % 3],
                    tags: ["x", "xy", "no"].iter().take(number as usize).map(|&tag| tag.into()).collect(),
                    kept: number > 1,
                });
            }
        });
    }

    fn run(&self, line: &str) -> Result<(), String> {
        // Nothing is read or written outside of the folder.
        let state = State::within(self.folder.path(), Duration::from_millis(200)).confined();
        let ran = self.runtime.block_on(self.engine.run(state, "f", line));
        ran.map_err(|error| error.to_string())
    }

    fn revision(&self) -> u64 {
        self.rows.revision(&self.rows.snapshot())
    }

    /// Runs a command on tables; one that fails must not change anything.
    fn command(&self, line: &str) {
        let Some(verb) = line.split_whitespace().next().filter(|verb| verb.starts_with("db")) else { return };
        // These commands wait for a state that never comes.
        let waits = ["db/cmp", "db/initialized"].contains(&verb);
        if verb == "db/watch" {
            return;
        }
        let line = line.replacen(verb, &if waits { format!("{verb} --timeout=1ms") } else { verb.into() }, 1);
        let before = self.revision();
        let ran = self.run(&line);
        let may_change = ["db/insert", "db/delete"].contains(&verb) || line.contains("--delete");
        if ran.is_err() || !may_change {
            assert_eq!(self.revision(), before, "{line}: {ran:?}");
        }
    }

    /// Each row that is found by a key has that key, for all kinds of queries.
    fn finds(&self, key: &str, raw: &[u8]) {
        let snapshot = self.rows.snapshot();
        let names = |found: Result<Vec<AnyObj>, Error>| -> Option<Vec<String>> {
            Some(found.ok()?.iter().map(|row| row.row()[0].clone()).collect())
        };
        for index in self.any.indexes() {
            let find = |find| names(self.any.find(&snapshot, find, index, key));
            if let Some(list) = find(Find::List) {
                let get = find(Find::Get).unwrap_or_default();
                assert_eq!(get.first(), list.first(), "{index} {key:?}");
                let from = find(Find::LowerBound).unwrap_or_default();
                assert!(from.starts_with(&list), "{index} {key:?}: {from:?} {list:?}");
                let prefix = find(Find::Prefix).unwrap_or_default();
                assert!(
                    list.iter().all(|name| prefix.contains(name)),
                    "{index} {key:?}: {prefix:?} {list:?}"
                );
            }
            let find = |from| names(self.any.find_raw(&snapshot, from, index, raw));
            if let (Some(list), Some(from)) = (find(false), find(true)) {
                assert!(from.starts_with(&list), "{index} {raw:?}: {from:?} {list:?}");
            }
        }
    }

    /// A printed table is parsed to the same rows, as YAML and by `db/cmp`.
    fn shows_what_can_be_read(&self) {
        let shown = || {
            let snapshot = self.rows.snapshot();
            let rows = self.any.all(&snapshot);
            (rows.iter().map(AnyObj::json_text).collect::<Vec<_>>(), rows)
        };
        let (before, rows) = shown();
        let cells: Vec<String> = rows.iter().flat_map(|row| row.row()).collect();
        if !cells.iter().any(|cell| cell.contains("---")) {
            let again = self.run("db/show rows -f yaml -o all.yaml\ndb/insert rows all.yaml");
            let yaml = std::fs::read_to_string(self.folder.path().join("all.yaml")).unwrap();
            assert!(rows.is_empty() || again.is_ok(), "{again:?}: {yaml}");
            assert_eq!(shown().0, before, "{yaml}");
        }
        let plain = |cell: &String| cell.chars().all(|c| c.is_ascii_graphic() && c != '$');
        if cells.iter().all(plain) {
            let same = self.run("db/show rows -o all.txt\ndb/cmp rows all.txt --timeout=1ms");
            assert_eq!(same, Ok(()));
        }
    }
}
