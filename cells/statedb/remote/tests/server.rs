//! The client against the agent's server, over its socket.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use api_client::Address;
use hive::TestHive;
use serde::{Deserialize, Serialize};
use statedb::{Db, Index, IndexDef, Query, RwTable, TableDisplay, TableSpec};
use statedb_remote::{Change, Error, RemoteTable};
use tokio::runtime::Runtime;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Device {
    index: u32,
    name: String,
}

const BY_NAME: Index<Device, str> = Index::new("name", |device, keys| keys.add(&device.name));

impl TableSpec for Device {
    const NAME: &'static str = "devices";
    const PRIMARY: &'static str = "id";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.index
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_NAME.def()]
    }
}

impl TableDisplay for Device {
    fn columns() -> &'static [&'static str] {
        &["Index", "Name"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.index.to_string(), self.name.clone()]
    }
}

fn device(index: u32, name: &str) -> Device {
    Device { index, name: name.into() }
}

struct Agent {
    runtime: Runtime,
    hive: TestHive,
    devices: RwTable<Device>,
    folder: tempfile::TempDir,
}

impl Agent {
    fn start() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    fn at(folder: tempfile::TempDir) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let cells = [statedb::cell(), metrics::cell(), api::cell()];
        let mut hive = TestHive::new(cells).set("socket-path", socket(folder.path()));
        runtime.block_on(hive.start());
        let devices = hive.get::<Db>().table_with_display().unwrap();
        Agent { runtime, hive, devices, folder }
    }

    fn insert(&self, index: u32, name: &str) {
        self.devices.transact(|w| drop(w.insert(device(index, name))));
    }

    fn remote(&self) -> RemoteTable<Device> {
        RemoteTable::new(Address::parse(&socket(self.folder.path())), "devices")
    }

    fn stop(mut self) -> tempfile::TempDir {
        self.runtime.block_on(self.hive.stop());
        self.folder
    }
}

fn socket(folder: &Path) -> String {
    folder.join("cilium.sock").display().to_string()
}

#[test]
fn rows_are_returned_by_key_from_a_key_on_and_all() {
    let agent = Agent::start();
    [(1, "lo"), (2, "eth0"), (300, "lxc<1>")].iter().for_each(|(index, name)| agent.insert(*index, name));
    let remote = agent.remote();
    let row = remote.get("id", 2_u32).unwrap().unwrap();
    assert_eq!((row.object, row.revision), (device(2, "eth0"), 2));
    assert_eq!(remote.get("id", 3_u32).unwrap(), None);
    assert_eq!(remote.get("name", "lxc<1>").unwrap().unwrap().object.index, 300);
    let indexes = |rows: statedb_remote::Rows<Device>| -> Vec<u32> {
        rows.map(|row| row.unwrap().object.index).collect()
    };
    assert_eq!(indexes(remote.list("name", "lo").unwrap()), [1]);
    assert_eq!(indexes(remote.lower_bound("id", 2_u32).unwrap()), [2, 300]);
    assert_eq!(indexes(remote.lower_bound("name", "lo").unwrap()), [1, 300]);
    assert_eq!(indexes(remote.all("id").unwrap()), [1, 2, 300]);
    assert_eq!(indexes(remote.all("").unwrap()), [1, 2, 300]);
    agent.devices.transact(|w| (1000..11_000).for_each(|index| drop(w.insert(device(index, "veth")))));
    assert_eq!(remote.all("id").unwrap().count(), 10_003);
    assert_eq!(remote.list("name", "veth").unwrap().count(), 10_000);
    drop(agent.stop());
}

#[test]
fn missing_tables_and_malformed_keys_are_refused() {
    let agent = Agent::start();
    agent.insert(1, "lo");
    let address = Address::parse(&socket(agent.folder.path()));
    let refused = |error: Error| match error {
        Error::Refused { status, message } => (status, message),
        error => panic!("{error:?}"),
    };
    let nosuch = RemoteTable::<Device>::new(address.clone(), "a/b ?");
    assert_eq!(refused(nosuch.all("").unwrap_err()), (404, r#"Table "a/b ?" not found"#.into()));
    // Slashes are part of the name, not of the path.
    assert_eq!(refused(nosuch.changes().unwrap_err()).0, 404);
    assert_eq!(refused(agent.remote().get("x", "").unwrap_err()), (400, r#"Index "x" not found"#.into()));
    let other = RemoteTable::<u32>::new(address, "devices");
    assert!(matches!(other.get("id", 1_u32), Err(Error::Row { .. })));
    let folder = agent.stop();
    let gone = RemoteTable::<Device>::new(Address::parse(&socket(folder.path())), "devices");
    let error = gone.changes().unwrap_err();
    assert!(matches!(error, Error::Connect { .. }) && error.is_retryable(), "{error:?}");
}

#[test]
fn changes_are_streamed_until_the_agent_stops_and_start_over_with_the_next() {
    let agent = Agent::start();
    agent.insert(1, "lo");
    let changes = agent.remote().changes().unwrap();
    let (sender, received) = mpsc::channel();
    let read = move || {
        // Ends with the response.
        for change in changes {
            sender.send(change.unwrap()).unwrap();
        }
    };
    let reader = std::thread::Builder::new().spawn(read).unwrap();
    let next = || received.recv_timeout(Duration::from_secs(10)).unwrap();
    let change = |object, revision, deleted| Change { object, revision, deleted };
    assert_eq!(next(), change(device(1, "lo"), 1, false));
    agent.insert(2, "eth0");
    assert_eq!(next(), change(device(2, "eth0"), 2, false));
    agent.devices.transact(|w| w.delete(Query::primary(1)));
    assert_eq!(next(), change(device(1, "lo"), 3, true));
    let folder = agent.stop();
    reader.join().unwrap();

    let agent = Agent::at(folder);
    agent.insert(7, "new");
    let first = agent.remote().changes().unwrap().next().unwrap().unwrap();
    assert_eq!(first, change(device(7, "new"), 1, false));
    drop(agent.stop());
}

#[test]
fn a_dropped_reader_is_unregistered_and_its_deleted_rows_removed() {
    let agent = Agent::start();
    agent.insert(1, "lo");
    let mut changes = agent.remote().changes().unwrap();
    changes.next().unwrap().unwrap();
    let db = agent.devices.db();
    let stats = || db.table_by_name("devices").unwrap().stats(&db.snapshot());
    assert_eq!(stats().trackers, 1);
    drop(changes);
    agent.runtime.block_on(agent.hive.until("the reader to be forgotten", || stats().trackers == 0));
    agent.devices.transact(|w| w.delete_all());
    assert_eq!(stats().zombies, 0);
    drop(agent.stop());
}
