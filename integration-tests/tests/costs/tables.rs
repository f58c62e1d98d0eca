//! A row of a table.

use serde::Serialize;
use statedb::{Db, Index, IndexDef, RwTable, TableDisplay, TableSpec};

use crate::count;

#[derive(Clone, Serialize)]
struct Pod {
    name: String,
    node: String,
    addresses: Vec<u32>,
}

const BY_NODE: Index<Pod, str> = Index::new("node", |pod, keys| keys.add(&pod.node));
const BY_ADDRESS: Index<Pod, u32> = Index::new("address", |pod, keys| keys.extend(&pod.addresses));

impl TableSpec for Pod {
    const NAME: &'static str = "pods";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_NODE.def(), BY_ADDRESS.def()]
    }
}

impl TableDisplay for Pod {
    fn columns() -> &'static [&'static str] {
        &["Name"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.name.clone()]
    }
}

fn pod(number: u32) -> Pod {
    Pod {
        name: format!("a-namespace/a-deployment-{:x}", number.wrapping_mul(2_654_435_761)),
        node: format!("node-{}", number % 50),
        addresses: vec![number, number + (1 << 24)],
    }
}

#[test]
fn a_row_is_inserted() {
    count::check("table insert", "tables::a_row_is_inserted", |rounds| {
        let table: RwTable<Pod> = Db::new().table().unwrap();
        table.transact(|txn| (0..1000).for_each(|number| drop(txn.insert(pod(number)))));
        for round in 0..rounds {
            table.transact(|txn| drop(txn.insert(pod(1000 + round as u32))));
        }
    });
}
