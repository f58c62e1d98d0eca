//! `GET /statedb/dump` and `/statedb/dump/{table}`.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use statedb::{AnyTable, Db, Snapshot};

use crate::response::Response;

/// All tables or the wanted one, read at one moment, and written one after the other as the client takes them.
pub(super) fn answer(db: Option<&Db>, wanted: Option<&str>) -> Response {
    let mut tables = db.map(Db::tables).unwrap_or_default();
    if let Some(name) = wanted {
        tables.retain(|table| table.name() == name);
    }
    let parts =
        Parts { snapshot: db.map(Db::snapshot), tables: tables.into_iter(), written: 0, ended: false };
    Response::stream(200, "application/json", stream::iter(parts))
}

/// The parts of a dump: its begin with the first table, further tables, its end.
struct Parts {
    snapshot: Option<Snapshot>,
    tables: std::vec::IntoIter<Arc<dyn AnyTable>>,
    written: usize,
    ended: bool,
}

impl Iterator for Parts {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut text = String::new();
        match (self.tables.next(), &self.snapshot) {
            (Some(table), Some(snapshot)) => {
                text.push_str(if self.written == 0 { "{\n" } else { ",\n" });
                self.written += 1;
                // Writing to a String does not fail.
                let _ = write!(text, "  \"{}\": [", table.name());
                for (at, row) in table.all(snapshot).iter().enumerate() {
                    let _ = write!(text, "{}\n    {}", if at == 0 { "" } else { "," }, row.json_text());
                }
                text.push_str("\n  ]");
            }
            _ => {
                self.ended = true;
                text.push_str(if self.written == 0 { "{\n}\n" } else { "\n}\n" });
            }
        }
        Some(Bytes::from(text))
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use statedb::{RwTable, TableSpec};

    use super::*;

    #[derive(Clone, Debug, Serialize)]
    struct Mtu {
        prefix: String,
        mtu: u32,
    }

    impl TableSpec for Mtu {
        const NAME: &'static str = "mtu";
        type Key<'a> = &'a str;

        fn key(&self) -> &str {
            &self.prefix
        }

        fn columns() -> &'static [&'static str] {
            &["Prefix", "MTU"]
        }

        fn row(&self) -> Vec<String> {
            vec![self.prefix.clone(), self.mtu.to_string()]
        }
    }

    #[derive(Clone, Debug, Serialize)]
    struct Empty(u32);

    impl TableSpec for Empty {
        const NAME: &'static str = "empty";
        type Key<'a> = u32;

        fn key(&self) -> u32 {
            self.0
        }

        fn columns() -> &'static [&'static str] {
            &["Key"]
        }

        fn row(&self) -> Vec<String> {
            vec![self.0.to_string()]
        }
    }

    async fn get(db: &Db, wanted: Option<&str>) -> (u16, String) {
        let response = answer(Some(db), wanted);
        (response.status().as_u16(), String::from_utf8(response.body().await.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn tables_are_dumped_row_by_row() {
        let db = Db::new();
        let table: RwTable<Mtu> = db.table().unwrap();
        let _empty: RwTable<Empty> = db.table().unwrap();
        table.transact(|w| {
            w.insert(Mtu { prefix: "0.0.0.0/0".to_owned(), mtu: 1500 });
            w.insert(Mtu { prefix: "::/0".to_owned(), mtu: 1480 });
        });
        let mtu = "  \"mtu\": [\n    {\"prefix\":\"0.0.0.0/0\",\"mtu\":1500},\n    {\"prefix\":\"::/0\",\"mtu\":1480}\n  ]";
        assert_eq!(get(&db, Some("mtu")).await, (200, format!("{{\n{mtu}\n}}\n")));
        assert_eq!(get(&db, None).await, (200, format!("{{\n{mtu},\n  \"empty\": [\n  ]\n}}\n")));
        assert_eq!(get(&db, Some("none")).await, (200, "{\n}\n".to_owned()));
    }
}
