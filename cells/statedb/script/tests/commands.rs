//! Commands on a table, run by scripts.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use hive_script::{Archive, Engine, State, default_commands};
use statedb::{FromValue, Index, IndexDef, RwTable, TableDisplay, TableSpec};

#[derive(Clone, serde::Serialize, serde::Deserialize)]
#[serde(rename_all(serialize = "PascalCase"))]
struct Device {
    name: String,
    #[serde(default)]
    index: u32,
    #[serde(default)]
    kind: Option<String>,
}

const BY_INDEX: Index<Device, u32> = Index::new("index", |device, keys| keys.add(&device.index));

impl TableSpec for Device {
    const NAME: &'static str = "devices";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_INDEX.def()]
    }
}

impl TableDisplay for Device {
    const FROM_VALUE: Option<FromValue<Self>> = Some(serde_json::from_value);

    fn columns() -> &'static [&'static str] {
        &["Name", "Index", "Kind"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.name.clone(), self.index.to_string(), self.kind.clone().unwrap_or_default()]
    }
}

/// A table whose rows cannot be inserted by commands.
#[derive(serde::Serialize)]
struct Plain;

impl TableSpec for Plain {
    const NAME: &'static str = "plain";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        0
    }
}

impl TableDisplay for Plain {
    fn columns() -> &'static [&'static str] {
        &[]
    }

    fn row(&self) -> Vec<String> {
        vec![]
    }
}

/// Runs a script in a hive with the table and its writer.
async fn run(script: &str) -> (Result<(), String>, String) {
    run_with(script, false).await
}

/// As [`run`], optionally with a row that is inserted while the script runs.
async fn run_with(script: &str, one_more: bool) -> (Result<(), String>, String) {
    let devices =
        module("devices", "Links", [statedb::table::<Device>(), invoke(|_: Arc<RwTable<Device>>| ())]);
    let plain = module("plain", "Empty", [statedb::table::<Plain>(), invoke(|_: Arc<RwTable<Plain>>| ())]);
    let cells = [statedb::cell(), devices, plain, statedb_script::cell(), hive_script::cell()];
    let mut hive = TestHive::needing::<Engine>(cells);
    hive.start().await;
    let table = RwTable::clone(&hive.get::<RwTable<Device>>());
    let device = |name: &str, index, kind: Option<&str>| Device {
        name: name.into(),
        index,
        kind: kind.map(Into::into),
    };
    table.transact(|w| {
        w.insert(device("eth0", 1, Some("veth")));
        w.insert(device("eth1", 2, None));
        w.insert(device("lxc1", 3, None));
    });
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::parse(script.as_bytes());
    let state = State::within(folder.path(), Duration::from_secs(10));
    archive.extract(folder.path(), |name| name.to_owned()).unwrap();
    let engine = Arc::new(Engine::clone(&hive.get::<Engine>()).with(default_commands()).unwrap());
    let later = async {
        if !one_more {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        table.transact(|w| drop(w.insert(device("zz", 9, None))));
    };
    let text = archive.script_text();
    let (result, ()) = tokio::join!(engine.run(state.clone(), "t.txtar", &text), later);
    hive.stop().await;
    (result.map_err(|error| error.to_string()), state.log().text())
}

#[tokio::test]
async fn tables_are_printed_queried_and_compared() {
    let script = "\
db
db/show devices
cmp stdout all.txt
db/show devices --columns=INDEX,name -o f.txt
! stdout .
cmp f.txt columns.txt
db/get devices eth1 -f json
cmp stdout one.json
db/get -i index -f yaml devices 1
cmp stdout one.yaml
db/prefix devices eth
stdout --count=2 ^eth
db/lowerbound devices eth1 --columns Name
! stdout eth0
db/get devices nosuch
stdout '^Name.*Kind$'
-- all.txt --
Name   Index   Kind
eth0   1       veth
eth1   2       \nlxc1   3       \n-- columns.txt --
INDEX   name
1       eth0
2       eth1
3       lxc1
-- one.json --
{
  \"Name\": \"eth1\",
  \"Index\": 2,
  \"Kind\": null
}
-- one.yaml --
name: eth0
index: 1
kind: veth
";
    let (result, log) = run(script).await;
    assert_eq!(result, Ok(()), "{log}");
    let line = log.lines().find(|line| line.starts_with("devices   3 ")).unwrap();
    let (_, written) = line.rsplit_once("   devices (").unwrap();
    assert!(written.contains("s ago, locked for ") && written.ends_with("s)"), "{line}");
}

#[tokio::test]
async fn cmp_waits_for_the_expected_rows() {
    let script = "\
db/initialized
db/cmp devices some.txt --grep=eth
! db/cmp devices all.txt --timeout=1ms
db/cmp devices all.txt
! db/empty devices
! db/cmp devices none.txt
! db/show nosuch
! db/show devices --columns=nosuch
! db/show devices --columns=Name -f json
! db/get devices eth0 -i nosuch
db/dump -o dump.json
grep '\"devices\"' dump.json
-- some.txt --
kind   NAME

veth   eth0
       eth1
-- all.txt --
Index  Name
1      eth0
2      eth1
3      lxc1
9      zz
-- none.txt --
";
    let (result, log) = run_with(script, true).await;
    assert_eq!(result, Ok(()), "{log}");
    for said in [
        "devices initialized",
        "+ 9      zz",
        "obects",
        "missing header line, e.g. \"Name Index Kind\"",
        "table \"nosuch\" not found",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

#[tokio::test]
async fn rows_are_inserted_and_deleted_by_commands() {
    let script = "\
db/insert devices two.yaml one.yaml
db/show devices
cmp stdout inserted.txt
db/get devices br0 -f yaml -o again.yaml
db/delete devices again.yaml gone.yaml
! db/insert devices one.yaml half.yaml
! db/insert devices two.yaml nosuch.yaml
! db/insert devices
! db/insert nosuch one.yaml
! db/insert plain one.yaml
# nothing of what failed is left
db/show devices --columns=Name
! stdout half
db/list devices --delete br1
stdout br1
db/prefix --delete devices eth --columns=Name
stdout --count=2 eth
db/get devices nosuch --delete
db/get devices --delete -i index 77
! db/get devices lxc1 --delete -i nosuch
db/show devices --columns=Name
cmp stdout left.txt
-- two.yaml --
name: br0
index: 7
---
name: eth0
kind: \"7\"
-- one.yaml --
---
name: br1
unknown: field
-- gone.yaml --
name: nosuch
-- half.yaml --
name: half
---
index: no-number
---
name: never
-- inserted.txt --
Name   Index   Kind
br0    7       \nbr1    0       \neth0   0       7
eth1   2       \nlxc1   3       \n-- left.txt --
Name
lxc1
";
    let (result, log) = run(script).await;
    assert_eq!(result, Ok(()), "{log}");
    for said in [
        "Deleted 2 objects",
        "Deleted 1 objects",
        "Deleted 0 objects",
        "Unmarshal(half.yaml): invalid type: string \"no-number\"",
        "expected table and path(s)",
        "rows of table `plain` are made by its owner alone",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
}
