//! `GET /apiary/<table>`: the objects of a kind as in a list of `kubectl`, for `apiary get`.
//!
//! The first line of the response is a [`Head`], each further one an object in JSON with its `apiVersion` and `kind`,
//! in the table's order. Query: `namespace`, `name`; without them all objects. The tables' own JSON is that of Cilium,
//! which has fewer fields.

use std::sync::Arc;

use api::{Page, Query, Response};
use bytes::Bytes;
use futures::stream;
use serde::Serialize;
use serde_json::Value;
use statedb::{Obj, Table};

use k8s_types::{Kind, with_type};

use crate::policy::PolicyObject;
use crate::row::{Reflected, Row, Tabled};

/// The number of objects per write.
const ROWS_AT_ONCE: usize = 64;

/// The completeness of the list.
#[derive(Serialize)]
struct Head {
    /// The sources that are not complete: if there are any, objects may be missing.
    pending: Vec<Arc<str>>,
}

/// Rows that the page can list.
pub(crate) trait Listed: Reflected {
    /// Returns kind, namespace and name.
    fn named(&self) -> (Kind, &str, &str);

    /// Returns the object with its kind and version.
    fn object(&self) -> Value;
}

impl<T: Tabled> Listed for Row<T> {
    fn named(&self) -> (Kind, &str, &str) {
        let meta = self.metadata();
        (T::KIND, &meta.namespace, &meta.name)
    }

    fn object(&self) -> Value {
        with_type(&self.object)
    }
}

impl Listed for PolicyObject {
    fn named(&self) -> (Kind, &str, &str) {
        (self.kind.kind(), &self.namespace, &self.name)
    }

    fn object(&self) -> Value {
        self.body.value()
    }
}

/// Returns the page of a kind, from the table of its objects.
pub(crate) fn page<R: Listed>(name: &'static str, kind: Kind, table: Table<R>) -> Page {
    Page::new(name, move |query| {
        let answer = answer(kind, &table, &query);
        async { answer }
    })
}

fn answer<R: Listed>(kind: Kind, table: &Table<R>, query: &Query) -> Response {
    let (namespace, name) = (query.get("namespace"), query.get("name"));
    let wanted = |row: &R| {
        let row = row.named();
        row.0 == kind
            && namespace.is_none_or(|wanted| wanted == row.1)
            && name.is_none_or(|wanted| wanted == row.2)
    };
    let snapshot = table.snapshot();
    let head = Head { pending: table.pending_initializers(&snapshot) };
    let rows: Vec<Obj<R>> = table.all(&snapshot).filter(|row| wanted(row)).cloned().collect();
    let mut rows = rows.into_iter();
    let objects = std::iter::from_fn(move || {
        let text: String =
            rows.by_ref().take(ROWS_AT_ONCE).map(|row| format!("{}\n", row.object())).collect();
        (!text.is_empty()).then(|| Bytes::from(text))
    });
    // The head has only strings, so serialization cannot fail.
    let head = serde_json::to_string(&head).unwrap_or_default() + "\n";
    let parts = std::iter::once(Bytes::from(head)).chain(objects);
    Response::stream(200, "application/x-ndjson", stream::iter(parts))
}

#[cfg(test)]
mod tests {
    use k8s_types::core::Pod;
    use serde_json::json;
    use statedb::Db;

    use super::*;
    use crate::policy::PolicyKind;

    async fn lines(page: &Page, query: &[(&str, &str)]) -> Vec<Value> {
        let body = page.call(query.iter().copied().collect()).await.body().await;
        let text = String::from_utf8(body.to_vec()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn names(lines: &[Value]) -> Vec<&str> {
        lines[1..].iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
    }

    #[tokio::test]
    async fn objects_are_listed_with_their_kind_and_filtered_by_name() {
        let table = Db::new().table::<Row<Pod>>().unwrap();
        let (initializer, _) = table.transact(|w| {
            for (namespace, name) in [("shop", "web"), ("shop", "db"), ("bank", "web")] {
                let pod = json!({"metadata": {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}});
                w.insert(Row::of(k8s_types::decode::<Pod>(pod.to_string().as_bytes()).unwrap()));
            }
            w.register_initializer("api-server")
        });
        let page = page(Pod::TABLE, Kind::Pod, table.reader());
        let all = lines(&page, &[]).await;
        assert_eq!(all[0], json!({"pending": ["api-server"]}));
        assert_eq!(names(&all), ["web", "db", "web"]);
        assert_eq!((&all[1]["kind"], &all[1]["apiVersion"]), (&json!("Pod"), &json!("v1")));
        assert_eq!(all[1]["metadata"]["creationTimestamp"], "2026-01-01T00:00:00Z");
        assert_eq!(names(&lines(&page, &[("namespace", "shop")]).await), ["db", "web"]);
        assert_eq!(names(&lines(&page, &[("namespace", "shop"), ("name", "db")]).await), ["db"]);
        table.transact(|w| initializer.done(w));
        assert_eq!(lines(&page, &[("name", "none")]).await, [json!({"pending": []})]);
    }

    #[tokio::test]
    async fn a_page_has_the_policies_of_its_kind_as_written() {
        let table = Db::new().table::<PolicyObject>().unwrap();
        let policy = |kind: PolicyKind, name: &str| {
            PolicyObject::decode(kind, &json!({"metadata": {"name": name}, "spec": {"endpointSelector": {}}}))
                .unwrap()
        };
        table.transact(|w| {
            w.insert(policy(PolicyKind::CiliumNetworkPolicy, "of-a-namespace"));
            w.insert(policy(PolicyKind::CiliumClusterwideNetworkPolicy, "of-all"));
            (0..200).for_each(|n| {
                drop(w.insert(policy(PolicyKind::CiliumClusterwideNetworkPolicy, &n.to_string())))
            });
        });
        let page = |kind| page("k8s-policies", kind, table.reader());
        let policies = lines(&page(Kind::CiliumNetworkPolicy), &[]).await;
        assert_eq!(names(&policies), ["of-a-namespace"]);
        assert_eq!(policies[1]["spec"], json!({"endpointSelector": {}}));
        assert_eq!(names(&lines(&page(Kind::CiliumClusterwideNetworkPolicy), &[]).await).len(), 201);
    }
}
