//! `#[derive(Table)]`: the generated implementation.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnetwork::{IpNetwork, Ipv4Network};
use serde::{Deserialize, Serialize};
use serde_json::json;
use statedb::{Db, Index, IndexKey, KeyBuf, KeyParseError, RwTable, Table, TableDisplay, TableSpec};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    #[default]
    Up,
    Down,
}

impl State {
    fn name(&self) -> &str {
        match self {
            State::Up => "up",
            State::Down => "down",
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, Table)]
#[table(name = "devices", index(BY_STATE), insertable)]
#[serde(default)]
struct Device {
    #[primary(name = "id")]
    index: u32,
    #[index]
    name: String,
    #[column("MTU")]
    mtu: u16,
    #[index(multi, name = "address")]
    addresses: Vec<IpAddr>,
    #[index(multi)]
    group: Option<Arc<str>>,
    #[index(multi)]
    labels: BTreeMap<String, u8>,
    #[column(with = State::name)]
    state: State,
    #[column("Since", with = |time: &u64| format!("{time} s"))]
    updated_at: u64,
    #[column(skip)]
    origin: (),
    r#type: Arc<str>,
}

/// An index by a computed key.
const BY_STATE: Index<Device, str> = Index::new("state", |device, keys| keys.add(device.state.name()));

fn device(index: u32, name: &str) -> Device {
    Device { index, name: name.to_owned(), mtu: 1500, r#type: "veth".into(), ..Device::default() }
}

fn filled() -> RwTable<Device> {
    let table: RwTable<Device> = Db::new().table_with_display().unwrap();
    table.transact(|w| {
        w.insert(Device { group: Some("a".into()), ..device(1, "eth0") });
        w.insert(Device { group: Some("a".into()), state: State::Down, ..device(2, "eth1") });
        w.insert(Device {
            addresses: vec![Ipv4Addr::LOCALHOST.into(), "::1".parse().unwrap()],
            labels: [("tier".to_owned(), 1), ("zone".to_owned(), 2)].into(),
            updated_at: 7,
            ..device(3, "lo")
        });
    });
    table
}

#[test]
fn columns_are_derived_from_the_fields() {
    let headings = ["Index", "Name", "MTU", "Addresses", "Group", "Labels", "State", "Since", "Type"];
    assert_eq!(Device::columns(), headings);
    let table = filled();
    let snapshot = table.snapshot();
    let rows: Vec<Vec<String>> = table.all(&snapshot).map(|row| row.row()).collect();
    assert_eq!(rows[1], ["2", "eth1", "1500", "", "a", "", "down", "0 s", "veth"]);
    assert_eq!(rows[2], ["3", "lo", "1500", "127.0.0.1, ::1", "", "tier=1, zone=2", "up", "7 s", "veth"]);
}

#[test]
fn every_index_has_its_queries() {
    let table = filled();
    let snapshot = table.snapshot();
    let found = |query| table.list(&snapshot, query).map(|row| row.index).collect::<Vec<_>>();
    let starting = |query| table.prefix(&snapshot, query).map(|row| row.index).collect::<Vec<_>>();
    assert_eq!(found(Device::by_index(2)), [2]);
    assert_eq!(found(Device::by_name("eth0")), [1]);
    assert_eq!(starting(Device::by_name_prefix("eth")), [1, 2]);
    assert_eq!(found(Device::by_addresses(Ipv4Addr::LOCALHOST.into())), [3]);
    assert!(found(Device::by_addresses(Ipv4Addr::UNSPECIFIED.into())).is_empty());
    assert_eq!(found(Device::by_group("a")), [1, 2], "a row without group has no key");
    assert_eq!(starting(Device::by_group_prefix("")), [1, 2]);
    assert_eq!(found(Device::by_labels("zone")), [3]);
    assert_eq!(starting(Device::by_labels_prefix("t")), [3]);
    assert_eq!(found(BY_STATE.query("down")), [2]);
    assert_eq!(found(Device::BY_NAME.query("lo")), [3]);
}

#[test]
fn untyped_queries_use_the_index_names() {
    let table = filled();
    assert_eq!(Device::NAME, "devices");
    let any = &table.db().tables()[0];
    assert_eq!(any.indexes(), ["id", "name", "address", "group", "labels", "state"]);
}

#[test]
fn rows_are_converted_from_values_if_insertable() {
    let read = Device::FROM_VALUE.unwrap();
    let row = read(json!({"index": 4, "name": "eth3"})).unwrap();
    assert_eq!((row.index, row.name.as_str(), row.mtu), (4, "eth3", 0));
    assert!(read(json!({"index": "four"})).unwrap_err().to_string().contains("u32"));
    assert!(Route::FROM_VALUE.is_none());
}

#[derive(Clone, Debug, Serialize, Table)]
#[table(name = "routes", primary(table, link, dst))]
struct Route {
    table: u32,
    link: String,
    #[index(name = "destination")]
    dst: Ipv4Addr,
}

#[test]
fn a_key_of_several_fields_sorts_by_them() {
    let table: RwTable<Route> = Db::new().table().unwrap();
    let route =
        |table, link: &str, dst| Route { table, link: link.to_owned(), dst: Ipv4Addr::from_bits(dst) };
    table.transact(|w| {
        for row in [route(255, "lo", 1), route(254, "eth1", 3), route(254, "eth", 9), route(254, "eth1", 2)] {
            assert!(w.insert(row).is_none());
        }
    });
    let snapshot = table.snapshot();
    let starting = |query| table.prefix(&snapshot, query).map(|row| row.dst.to_bits()).collect::<Vec<_>>();
    assert_eq!(table.all(&snapshot).map(|row| row.dst.to_bits()).collect::<Vec<_>>(), [9, 2, 3, 1]);
    assert_eq!(starting(Route::by_table(254)), [9, 2, 3]);
    assert_eq!(starting(Route::by_table_link(254, "eth1")), [2, 3]);
    assert!(starting(Route::by_table_link(254, "et")).is_empty(), "parts are whole");
    let found = table.get(&snapshot, Route::by_primary(254, "eth", Ipv4Addr::from_bits(9)));
    assert_eq!(found.unwrap().row(), ["254", "eth", "0.0.0.9"]);
    assert_eq!(table.list(&snapshot, Route::by_dst(Ipv4Addr::from_bits(1))).count(), 1);
}

/// A key type of another crate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Id(u16);

impl IndexKey for Id {
    fn encode(&self, key: &mut KeyBuf) {
        self.0.encode(key);
    }

    fn encode_text(text: &str, key: &mut KeyBuf) -> Result<(), KeyParseError> {
        u16::encode_text(text, key)
    }
}

#[derive(Clone, Debug, Serialize, Table)]
#[table(name = "services")]
struct Service {
    #[primary]
    #[column("ID", with = |id: &Id| id.0)]
    id: Id,
    #[index(unique)]
    name: Arc<str>,
    #[index(unique, multi)]
    ports: BTreeSet<u16>,
    #[index]
    #[column(skip)]
    owner: Option<u8>,
    #[index]
    #[column(skip)]
    secret: Vec<u8>,
}

#[test]
fn unique_indexes_refuse_a_second_row() {
    let table: RwTable<Service> = Db::new().table().unwrap();
    let service = |id, name: &str, port: u16| Service {
        id: Id(id),
        name: name.into(),
        ports: [port].into(),
        owner: (id > 1).then_some(1),
        secret: vec![0, id as u8],
    };
    table.transact(|w| {
        w.try_insert(service(1, "a", 80)).unwrap();
        w.try_insert(service(2, "b", 81)).unwrap();
        assert_eq!(w.try_insert(service(3, "a", 82)).unwrap_err().index, "name");
        assert_eq!(w.try_insert(service(3, "c", 80)).unwrap_err().index, "ports");
    });
    let snapshot = table.snapshot();
    let found = |query| table.list(&snapshot, query).map(|row| row.id.0).collect::<Vec<_>>();
    let id = Id(2);
    assert_eq!(found(Service::by_id(&id)), [2]);
    assert_eq!(found(Service::by_id(id)), [2], "by value, too");
    assert_eq!(found(Service::by_name("a")), [1]);
    assert_eq!(found(Service::by_ports(81)), [2]);
    assert_eq!(found(Service::by_owner(None)), [1], "without multi, none is a key");
    assert_eq!(found(Service::by_secret(&[0, 1])), [1]);
    assert_eq!(Service::columns(), ["ID", "Name", "Ports"]);
}

#[derive(Clone, Debug, Serialize, Table)]
#[table(name = "networks")]
struct Network {
    #[primary]
    id: u8,
    #[index(lpm)]
    cidr: IpNetwork,
    #[index(lpm, unique, multi, name = "pool")]
    pools: Vec<Ipv4Network>,
}

#[test]
fn prefixes_are_found_by_covered_addresses() {
    let table: RwTable<Network> = Db::new().table().unwrap();
    let network = |id, cidr: &str, pool: &str| Network {
        id,
        cidr: cidr.parse().unwrap(),
        pools: vec![pool.parse().unwrap(), Ipv4Network::new(Ipv4Addr::new(192, 168, 0, id), 32).unwrap()],
    };
    table.transact(|w| {
        w.try_insert(network(1, "10.0.0.0/8", "172.16.0.0/16")).unwrap();
        w.try_insert(network(2, "10.1.0.0/16", "172.17.0.0/16")).unwrap();
        assert_eq!(w.try_insert(network(3, "::/0", "172.16.0.0/16")).unwrap_err().index, "pool");
    });
    let snapshot = table.snapshot();
    let found = |query| table.get(&snapshot, query).map(|row| row.id);
    let address: IpAddr = Ipv4Addr::new(10, 1, 2, 3).into();
    assert_eq!(found(Network::by_cidr(address)), Some(2));
    assert_eq!(found(Network::by_cidr(Ipv4Addr::new(10, 2, 2, 3))), Some(1));
    assert_eq!(found(Network::by_cidr(Ipv4Addr::new(11, 2, 2, 3))), None);
    assert_eq!(found(Network::by_pools(Ipv4Addr::new(172, 17, 2, 3))), Some(2));
    assert_eq!(found(Network::by_pools(Ipv4Addr::new(192, 168, 0, 1))), Some(1));
    let all: IpNetwork = "10.0.0.0/7".parse().unwrap();
    assert_eq!(
        table.prefix(&snapshot, Network::by_cidr_inside(all)).map(|row| row.id).collect::<Vec<_>>(),
        [1, 2]
    );
}

/// Field names that collide with those in the macro's code, and types that are expanded from another macro.
macro_rules! odd {
    ($first:ty, $text:ty) => {
        #[derive(Clone, Debug, Serialize, Table)]
        #[table(name = "odd", primary(key, buffer, type, start, name = "all"))]
        struct Odd {
            key: $first,
            buffer: $text,
            r#type: bool,
            start: [u8; 2],
            #[index]
            row: Cow<'static, str>,
            #[index(multi)]
            keys: Arc<[Box<str>]>,
            #[index(name = "first")]
            #[column(skip)]
            this: Option<$first>,
        }
    };
}
odd!(u8, Arc<str>);

#[test]
fn field_names_do_not_collide_with_generated_code() {
    let table: RwTable<Odd> = Db::new().table().unwrap();
    table.transact(|w| {
        w.insert(Odd {
            key: 1,
            buffer: "a".into(),
            r#type: true,
            start: [2, 3],
            row: "x".into(),
            keys: ["k".into(), "l".into()].into(),
            this: None,
        })
    });
    let snapshot = table.snapshot();
    let found =
        [Odd::by_primary(1, "a", true, [2, 3]), Odd::by_row("x"), Odd::by_keys("l"), Odd::by_this(None)];
    assert!(found.into_iter().all(|query| table.get(&snapshot, query).is_some()));
    let starting = [
        Odd::by_key(1),
        Odd::by_key_buffer(1, "a"),
        Odd::by_key_buffer_type(1, "a", true),
        Odd::by_row_prefix(""),
        Odd::by_keys_prefix("k"),
    ];
    assert!(starting.into_iter().all(|prefix| table.prefix(&snapshot, prefix).count() == 1));
    assert_eq!(Odd::columns(), ["Key", "Buffer", "Type", "Start", "Row", "Keys"]);
    let row = table.all(&snapshot).next().unwrap().row();
    assert_eq!(row, ["1", "a", "true", "2, 3", "x", "k, l"]);
}

mod by_hand {
    //! A unique index that is declared by hand sets `UNIQUE_SECONDARY`, too.

    use super::*;

    #[derive(Clone, Debug, Serialize, Table)]
    #[table(name = "pairs", index(BY_SUM))]
    struct Pair {
        #[primary]
        a: u8,
        b: u8,
    }

    const BY_SUM: Index<Pair, u8> = Index::unique("sum", |pair, keys| keys.add(&(pair.a + pair.b)));

    #[test]
    fn it_is_declared() {
        const { assert!(Pair::UNIQUE_SECONDARY && !Device::UNIQUE_SECONDARY) };
        let table: RwTable<Pair> = Db::new().table().unwrap();
        table.transact(|w| {
            w.try_insert(Pair { a: 1, b: 2 }).unwrap();
            assert!(w.try_insert(Pair { a: 2, b: 1 }).is_err());
        });
    }
}

/// The library under another path, as a facade has it. Its trait in the place of statedb's shows that the derive uses the
/// path.
mod facade {
    pub(crate) mod tables {
        pub(crate) use statedb::*;

        pub(crate) trait TableDisplay {
            fn columns() -> &'static [&'static str];
            fn row(&self) -> Vec<String>;
        }
    }
}

#[derive(Clone, Debug, Table)]
#[table(name = "foreign", crate = "facade::tables")]
struct Foreign {
    #[primary]
    id: u32,
    #[index]
    name: String,
}

#[test]
fn the_derive_works_where_the_library_has_another_path() {
    assert_eq!(<Foreign as facade::tables::TableDisplay>::columns(), ["Id", "Name"]);
    let table: RwTable<Foreign> = Db::new().table().unwrap();
    let (_, snapshot) = table.transact(|w| w.insert(Foreign { id: 1, name: "a".to_owned() }));
    let row = table.get(&snapshot, Foreign::by_name("a")).unwrap();
    assert_eq!(facade::tables::TableDisplay::row(&**row), ["1", "a"]);
}
