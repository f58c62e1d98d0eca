//! Comparison with the recorded output of Cilium's statedb for the same commands and tables, byte for byte.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use hive_script::{Archive, Engine, State, default_commands};
use statedb::{FromValue, Index, IndexDef, Initializer, Query, RwTable, TableDisplay, TableSpec};

/// A row that serializes as the corresponding Go struct: an empty list is `null`.
#[derive(Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(default, rename_all(serialize = "PascalCase"))]
struct Device {
    name: String,
    index: u32,
    kind: String,
    tags: Option<Vec<String>>,
}

const BY_INDEX: Index<Device, u32> = Index::new("index", |device, keys| keys.add(&device.index));
const BY_TAG: Index<Device, String> =
    Index::new("tag", |device, keys| keys.extend(device.tags.iter().flatten()));

impl TableSpec for Device {
    const NAME: &'static str = "devices";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_INDEX.def(), BY_TAG.def()]
    }
}

impl TableDisplay for Device {
    const FROM_VALUE: Option<FromValue<Self>> = Some(serde_json::from_value);

    fn columns() -> &'static [&'static str] {
        &["Name", "Index", "Kind", "Tags"]
    }

    fn row(&self) -> Vec<String> {
        let tags = self.tags.iter().flatten().cloned().collect::<Vec<_>>().join(",");
        vec![self.name.clone(), self.index.to_string(), self.kind.clone(), tags]
    }
}

/// The row type of an empty table with pending initializers.
#[derive(Clone, serde::Serialize)]
struct Slow(Device);

impl TableSpec for Slow {
    const NAME: &'static str = "slow";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.0.name
    }
}

impl TableDisplay for Slow {
    fn columns() -> &'static [&'static str] {
        Device::columns()
    }

    fn row(&self) -> Vec<String> {
        self.0.row()
    }
}

fn device(name: &str, index: u32, kind: &str, tags: &[&str]) -> Device {
    let tags = (!tags.is_empty()).then(|| tags.iter().map(|&tag| tag.into()).collect());
    Device { name: name.into(), index, kind: kind.into(), tags }
}

/// A hive with both tables.
struct Fixture {
    hive: TestHive,
    devices: RwTable<Device>,
    slow: RwTable<Slow>,
    folder: tempfile::TempDir,
}

impl Fixture {
    async fn new(archive: &Archive) -> (Self, [Initializer<Slow>; 2]) {
        let devices =
            module("devices", "Links", [statedb::table::<Device>(), invoke(|_: Arc<RwTable<Device>>| ())]);
        let slow = module("slow", "Empty", [statedb::table::<Slow>(), invoke(|_: Arc<RwTable<Slow>>| ())]);
        let cells = [statedb::cell(), devices, slow, statedb_script::cell(), hive_script::cell()];
        let mut hive = TestHive::needing::<Engine>(cells);
        hive.start().await;
        let devices = RwTable::clone(&hive.get::<RwTable<Device>>());
        devices.transact(|w| {
            w.insert(device("eth0", 1, "veth", &["a", "b"]));
            w.insert(device("eth1", 2, "", &["c"]));
            w.insert(device("lxc1", 300, "<a> & \"b\"", &["b"]));
        });
        let slow = RwTable::clone(&hive.get::<RwTable<Slow>>());
        let (sources, _) =
            slow.transact(|w| ["source-b", "source-a"].map(|name| w.register_initializer(name)));
        let folder = tempfile::tempdir().unwrap();
        archive.extract(folder.path(), |name| name.to_owned()).unwrap();
        (Fixture { hive, devices, slow, folder }, sources)
    }

    fn state(&self) -> State {
        State::within(self.folder.path(), Duration::from_secs(10))
    }

    async fn run(&self, state: &State, text: &str) -> Result<(), String> {
        let engine = Engine::clone(&self.hive.get::<Engine>()).with(default_commands()).unwrap();
        let ran = Arc::new(engine).run(state.clone(), "t", text).await;
        ran.map_err(|error| error.to_string())
    }

    async fn finish(mut self) {
        self.hive.stop().await;
        drop(self.folder);
    }
}

fn recorded(name: &str) -> (Archive, String) {
    let base: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(name);
    let log = std::fs::read_to_string(base.with_extension("log")).unwrap();
    (Archive::parse(&std::fs::read(base.with_extension("txtar")).unwrap()), log)
}

#[tokio::test]
async fn output_of_queries_comparisons_and_edits_is_ciliums() {
    for name in ["show", "query", "cmp", "edit"] {
        let (archive, log) = recorded(name);
        let (fixture, _sources) = Fixture::new(&archive).await;
        let state = fixture.state();
        let ran = fixture.run(&state, &archive.script_text()).await;
        assert_eq!((ran, state.log().text()), (Ok(()), log), "{name}");
        fixture.finish().await;
    }
}

#[tokio::test]
async fn errors_and_differences_are_ciliums() {
    let (archive, errors) = recorded("errors");
    let (fixture, _sources) = Fixture::new(&archive).await;
    for block in errors.split("? ").skip(1) {
        let (command, expected) = block.split_once('\n').unwrap();
        let said = fixture.run(&fixture.state(), command).await.unwrap_err();
        let said = said.strip_prefix("t:1: ").unwrap();
        assert_eq!(said.trim_end(), expected.trim_end(), "{command}");
    }
    fixture.finish().await;
}

#[tokio::test]
async fn commands_wait_for_later_rows() {
    let (archive, log) = recorded("later");
    let (fixture, sources) = Fixture::new(&archive).await;
    let later = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        fixture.devices.transact(|w| drop(w.insert(device("zz", 9, "", &[]))));
        tokio::time::sleep(Duration::from_millis(30)).await;
        fixture.devices.transact(|w| drop(w.delete(Query::primary("eth0"))));
        fixture.slow.transact(|w| sources.into_iter().for_each(|source| source.done(w)));
    };
    let (state, text) = (fixture.state(), archive.script_text());
    let (ran, ()) = tokio::join!(fixture.run(&state, &text), later);
    assert_eq!((ran, state.log().text()), (Ok(()), log));
    fixture.finish().await;
}

#[tokio::test]
async fn watch_prints_changes_as_they_occur() {
    let (archive, log) = recorded("watch");
    let (fixture, _sources) = Fixture::new(&archive).await;
    let (devices, state) = (&fixture.devices, fixture.state());
    let shown = async |text: &str| {
        while !state.log().text().contains(text) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let writer = async {
        shown("lxc1").await;
        devices.transact(|w| {
            w.insert(device("0f", 0, "", &["t"]));
            w.insert(device("0g-a-long-name", 0, "", &["t"]));
        });
        shown("0g").await;
        devices.transact(|w| drop(w.insert(device("a-very-long-name", 9, "k", &["t"]))));
        shown("a-very").await;
        devices.transact(|w| drop(w.insert(device("b", 1_234_567, "", &[]))));
        shown("1234567").await;
        devices.transact(|w| {
            w.insert(device("c", 1, "dfsfsdfsdfsdfsd", &["t"]));
            w.insert(device("d", 2, "", &[]));
        });
        shown("dfsfs").await;
        devices.transact(|w| {
            w.delete(Query::primary("b"));
            w.delete(Query::primary("a-very-long-name"));
            w.insert(device("e", 0, "", &[]));
        });
        shown("\ne ").await;
    };
    let text = archive.script_text();
    tokio::select! {
        ran = fixture.run(&state, &text) => panic!("{ran:?}"),
        () = writer => {}
    }
    assert_eq!(state.log().text().trim_end(), log.trim_end());
    fixture.finish().await;
}

/// A row that changes continuously is printed at most once per interval.
#[tokio::test]
async fn watch_prints_a_row_at_most_ten_times_a_second() {
    let archive = Archive::parse(b"db/watch devices\n");
    let (fixture, _sources) = Fixture::new(&archive).await;
    let begin = tokio::time::Instant::now();
    let writer = async {
        for index in 0..500 {
            fixture.devices.transact(|w| drop(w.insert(device("busy", index, "", &[]))));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let (state, text) = (fixture.state(), archive.script_text());
    tokio::select! {
        ran = fixture.run(&state, &text) => panic!("{ran:?}"),
        () = writer => {}
    }
    let shown = state.log().text().matches("busy").count();
    let most = begin.elapsed().as_millis() / 100 + 1;
    assert!((2..=most as usize).contains(&shown), "{shown} times, at most {most}");
    fixture.finish().await;
}
