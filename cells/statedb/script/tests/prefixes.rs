//! Queries of longest-prefix-match indexes by scripts, with addresses and prefixes.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use hive_script::{Archive, Engine, State, default_commands};
use ipnetwork::IpNetwork;
use statedb::{Index, IndexDef, LpmIndex, RwTable, TableDisplay, TableSpec};

#[derive(serde::Serialize)]
struct Subnet {
    name: &'static str,
    prefix: IpNetwork,
}

const BY_PREFIX: LpmIndex<Subnet, IpNetwork> = Index::lpm("prefix", |subnet, keys| keys.add(&subnet.prefix));

impl TableSpec for Subnet {
    const NAME: &'static str = "subnets";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_PREFIX.def()]
    }
}

impl TableDisplay for Subnet {
    fn columns() -> &'static [&'static str] {
        &["Name", "Prefix"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.name.to_owned(), self.prefix.to_string()]
    }
}

const SCRIPT: &str = "\
db/get subnets -i prefix --columns Name 10.1.2.3
cmp stdout pods.txt
db/list subnets -i prefix --columns Name 10.9.0.0/16
cmp stdout cluster.txt
db/prefix subnets -i prefix --columns Name 10.0.0.0/9
cmp stdout inside.txt
db/lowerbound subnets -i prefix --columns Name 10.1.0.0/16
cmp stdout from.txt
db/get subnets -i prefix 192.168.0.1
! stdout 10.
! db/get subnets -i prefix 10.0.0.0/33
-- pods.txt --
Name
pods
-- cluster.txt --
Name
cluster
twin
-- inside.txt --
Name
pods
-- from.txt --
Name
pods
documentation
";

#[tokio::test]
async fn prefixes_are_queried_by_addresses_and_prefixes() {
    let subnets =
        module("subnets", "Ranges", [statedb::table::<Subnet>(), invoke(|_: Arc<RwTable<Subnet>>| ())]);
    let cells = [statedb::cell(), subnets, statedb_script::cell(), hive_script::cell()];
    let mut hive = TestHive::needing::<Engine>(cells);
    hive.start().await;
    let table = RwTable::clone(&hive.get::<RwTable<Subnet>>());
    table.transact(|w| {
        let rows = [
            ("cluster", "10.0.0.0/8"),
            ("documentation", "2001:db8::/32"),
            ("pods", "10.1.0.0/16"),
            ("twin", "10.0.0.0/8"),
        ];
        rows.map(|(name, prefix)| drop(w.insert(Subnet { name, prefix: prefix.parse().unwrap() })))
    });
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::parse(SCRIPT.as_bytes());
    let state = State::within(folder.path(), Duration::from_secs(10));
    archive.extract(folder.path(), |name| name.to_owned()).unwrap();
    let engine = Engine::clone(&hive.get::<Engine>()).with(default_commands()).unwrap();
    let result = Arc::new(engine).run(state.clone(), "t.txtar", &archive.script_text()).await;
    hive.stop().await;
    assert!(result.is_ok(), "{result:?}\n{}", state.log().text());
}
