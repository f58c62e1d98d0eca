//! `GET /statedb/dump` and `/statedb/dump/{table}`.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use statedb::{AnyObj, AnyTable, Db, Snapshot};

use crate::response::{LONGEST_WITH_LENGTH, Response};

/// Maximum number of rows in one batch.
const BATCH: usize = 64;

/// Answers with all tables or the wanted one, from one snapshot, encoded batch by batch as the client reads; short
/// answers have a Content-Length.
pub(super) fn answer(db: Option<&Db>, wanted: Option<&str>) -> Response {
    let mut tables = db.map(Db::tables).unwrap_or_default();
    if let Some(name) = wanted {
        tables.retain(|table| table.name() == name);
    }
    let tables = tables.into_iter();
    let mut parts = Parts { snapshot: db.map(Db::snapshot), tables, table: None, written: 0, ended: false };
    let mut first = Vec::new();
    while first.len() <= LONGEST_WITH_LENGTH {
        match parts.next() {
            Some(part) => first.extend_from_slice(&part),
            None => return Response::raw_json(200, first),
        }
    }
    let first = std::iter::once(Bytes::from(first));
    Response::stream(200, "application/json", stream::iter(first.chain(parts)))
}

/// The parts of a dump: for each table its start, batches of its rows and its end; then the end of the dump.
struct Parts {
    snapshot: Option<Snapshot>,
    tables: std::vec::IntoIter<Arc<dyn AnyTable>>,
    /// The table whose rows are written, and the last row that was.
    table: Option<(Arc<dyn AnyTable>, Option<AnyObj>)>,
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
        if let (Some((table, last)), Some(snapshot)) = (&mut self.table, &self.snapshot) {
            let rows = table.page(snapshot, last.as_ref(), BATCH);
            let ended = rows.len() < BATCH;
            for row in rows {
                let comma = if last.is_none() { "" } else { "," };
                // Writing to a String does not fail.
                let _ = write!(text, "{comma}\n    {}", row.json_text());
                *last = Some(row);
            }
            if ended {
                text.push_str("\n  ]");
                self.table = None;
            }
            return Some(Bytes::from(text));
        }
        match (self.tables.next(), &self.snapshot) {
            (Some(table), Some(_)) => {
                text.push_str(if self.written == 0 { "{\n" } else { ",\n" });
                self.written += 1;
                let _ = write!(text, "  \"{}\": [", table.name());
                self.table = Some((table, None));
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
    use statedb::{RwTable, TableDisplay, TableSpec};

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
    }

    impl TableDisplay for Mtu {
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
    }

    impl TableDisplay for Empty {
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
        let table: RwTable<Mtu> = db.table_with_display().unwrap();
        let _empty: RwTable<Empty> = db.table_with_display().unwrap();
        table.transact(|w| {
            w.insert(Mtu { prefix: "0.0.0.0/0".to_owned(), mtu: 1500 });
            w.insert(Mtu { prefix: "::/0".to_owned(), mtu: 1480 });
        });
        let mtu = "  \"mtu\": [\n    {\"prefix\":\"0.0.0.0/0\",\"mtu\":1500},\n    {\"prefix\":\"::/0\",\"mtu\":1480}\n  ]";
        assert_eq!(get(&db, Some("mtu")).await, (200, format!("{{\n{mtu}\n}}\n")));
        assert_eq!(get(&db, None).await, (200, format!("{{\n{mtu},\n  \"empty\": [\n  ]\n}}\n")));
        assert_eq!(get(&db, Some("none")).await, (200, "{\n}\n".to_owned()));
        table.transact(|w| {
            (0..1000).for_each(|n| drop(w.insert(Mtu { prefix: format!("<{n:03}>"), mtu: n })))
        });
        // 1002 rows end within a batch, 1024 with one.
        for rows in [1002, 1024] {
            table.transact(|w| {
                (1002..rows).for_each(|n| drop(w.insert(Mtu { prefix: format!("z{n}"), mtu: 1 })))
            });
            let (_, text) = get(&db, Some("mtu")).await;
            let dump = serde_json::from_str::<serde_json::Value>(&text).unwrap();
            let dumped: Vec<_> =
                dump["mtu"].as_array().unwrap().iter().map(|row| row["prefix"].clone()).collect();
            let stored: Vec<_> = table.all(&table.snapshot()).map(|row| row.prefix.clone()).collect();
            assert_eq!((dumped.len(), dumped == stored), (rows as usize, true));
            table.transact(|w| {
                (1002..rows).for_each(|n| drop(w.delete(statedb::Query::primary(&*format!("z{n}")))))
            });
        }
        let (_, text) = get(&db, Some("mtu")).await;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            (lines.len(), lines[4]),
            (2 + 1002 + 2, "    {\"prefix\":\"\\u003c000\\u003e\",\"mtu\":0},")
        );
        assert!(lines[1002].ends_with("},") && lines[1003].ends_with('}'), "{}", lines[1003]);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap()["mtu"].as_array().unwrap().len(),
            1002
        );
    }
}
