//! Policies, identities and endpoints by commands, on policy maps in memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use datapath_api::testing::FakeDatapath;
use datapath_api::{Datapath, EndpointDatapath};
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use identity::{Identities, Identity};
use ipcache::testing::FakeMap;
use k8s_tables::cilium::CiliumCIDRGroup;
use k8s_tables::core::{ClusterNetworkPolicy, NetworkPolicy};
use k8s_tables::{PolicyKind, PolicyObject, Row};
use labels::{LabelArray, Labels};
use local_node::LocalNodeConfig;
use parking_lot::Mutex;
use policy::{EndpointPolicy, NamedPorts, ObjectState, Policies, PolicyStatus, Subject};
use statedb::{Db, RwTable, Table};

use super::run::StartFirst;

/// Labels of scripts have no cluster.
pub(super) const DEFAULTS: &[&str] = &["--policy-default-local-cluster=false"];

/// The source of policies that scripts import.
const SOURCE: &str = "script";

pub(super) fn cells() -> Vec<Cell> {
    vec![
        supply(Arc::new(StartFirst)),
        config::<LocalNodeConfig>(),
        config::<maps::FamilyConfig>(),
        supply::<Arc<dyn Datapath>>(Arc::new(FakeDatapath::new())),
        module("metrics", "Metrics", [provide(|| Arc::new(::metrics::Metrics::default()))]),
        module("world", "Tables of objects, identities, an ipcache", [provide(tables), provide(ipcache)]),
        policy::cell(),
        module(
            "policy-fixture",
            "Commands of scripts",
            [
                supply(Arc::new(Mutex::new(References::default()))),
                provide(commands),
                invoke(|_: Arc<StartFirst>| ()),
            ],
        ),
    ]
}

/// The tables of objects, which are complete from the start.
type Tables = (
    Arc<RwTable<PolicyObject>>,
    Arc<Table<PolicyObject>>,
    Arc<Table<Row<NetworkPolicy>>>,
    Arc<Table<Row<ClusterNetworkPolicy>>>,
    Arc<Table<Row<CiliumCIDRGroup>>>,
    Arc<Identities>,
    Arc<identity::Prefixes>,
    Arc<Table<Identity>>,
);

fn tables(db: Arc<Db>) -> anyhow::Result<Tables> {
    let (identities, prefixes, identity_table) = identity::testing::of(&db, None);
    let objects = db.table::<PolicyObject>()?;
    Ok((
        Arc::new(objects.clone()),
        Arc::new(objects.reader()),
        Arc::new(db.table()?.reader()),
        Arc::new(db.table()?.reader()),
        Arc::new(db.table()?.reader()),
        Arc::new(identities),
        Arc::new(prefixes),
        Arc::new(identity_table),
    ))
}

fn ipcache(
    db: Arc<Db>,
    jobs: JobGroup,
) -> anyhow::Result<(Arc<ipcache::IpcacheWriter>, Arc<Table<ipcache::Entry>>)> {
    let (writer, table, reconciler) = ipcache::testing::ipcache(db.table()?, Arc::new(FakeMap::default()));
    jobs.one_shot("ipcache", move |cx: JobCx| async move {
        reconciler.run_until(async move { cx.cancelled().await }).await;
        Ok(())
    })
    .add();
    Ok((Arc::new(writer), Arc::new(table)))
}

/// The state of the commands.
#[derive(Clone, Params)]
struct Fixture {
    datapath: Arc<dyn Datapath>,
    objects: Arc<RwTable<PolicyObject>>,
    identities: Arc<Identities>,
    identity_table: Arc<Table<Identity>>,
    statuses: Arc<Table<PolicyStatus>>,
    policies: Arc<Policies>,
    references: Arc<Mutex<References>>,
}

/// The references of `identity/allocate`.
#[derive(Default)]
struct References {
    /// The users of each identity.
    users: BTreeMap<u32, Vec<String>>,
    /// The number of all that were made.
    made: u64,
}

fn commands(fixture: Fixture) -> Members<Command> {
    let command = |name: &str, takes: &'static str, summary: &'static str, run: Run| {
        let fixture = fixture.clone();
        Command::new(name, summary, move |call: Call| {
            let fixture = fixture.clone();
            async move { run(fixture, call).await }
        })
        .takes(takes)
    };
    Members(vec![
        command("identity/allocate", "labels", "allocate an identity", |of, call| {
            Box::pin(async move { of.allocate(&call) })
        }),
        command("identity/release", "id", "release an identity", |of, call| {
            Box::pin(async move { of.release(&call) })
        }),
        command("identity/list", "", "list all identities", |of, _| {
            Box::pin(async move { Ok(of.list_identities()) })
        }),
        command("idm/list", "", "list the identities of endpoints", |of, _| {
            Box::pin(async move { Ok(of.list_subjects()) })
        }),
        command("endpoint/create", "id labels", "create an endpoint", |of, call| {
            Box::pin(async move { of.create_endpoint(&call).await })
        }),
        command("endpoint/delete", "id", "delete an endpoint", |of, call| {
            Box::pin(async move { of.delete_endpoint(&call) })
        }),
        command("endpoint/list", "", "list all endpoints", |of, _| {
            Box::pin(async move { of.list_endpoints() })
        }),
        command("endpoint/regen-all", "revision", "wait until all endpoints have a revision", |of, call| {
            Box::pin(async move { of.wait_for_revision(&call).await })
        }),
        command("endpoint/wait-for-policy-revision", "revision", "as endpoint/regen-all", |of, call| {
            Box::pin(async move { of.wait_for_revision(&call).await })
        }),
        command("policy/import", "file", "upsert a policy", |of, call| {
            Box::pin(async move {
                let revision = of.import(&call).await?;
                Ok(Output::text(format!("Imported policy change, rev={revision}\n")))
            })
        }),
        command("policyrepo/add", "file", "upsert a policy", |of, call| {
            Box::pin(async move {
                let revision = of.import(&call).await?;
                Ok(Output::text(format!("Added rules, revision={revision}\n")))
            })
        }),
        command("policy/remove", "file", "delete a policy", |of, call| {
            Box::pin(async move { of.remove(&call).await })
        }),
    ])
}

type Run = fn(Fixture, Call) -> futures::future::BoxFuture<'static, anyhow::Result<Output>>;

fn labels_of(text: &str) -> Labels {
    Labels::parse(text.split(','))
}

/// Prints identities as `[<id> {l1,l2} <id> {l1} ]`.
fn identity_list<'a>(rows: impl Iterator<Item = (u32, &'a LabelArray)>) -> Output {
    let mut text = String::from("[");
    for (id, labels) in rows {
        let _ = write!(text, "{id} {{{}}} ", labels.texts().join(","));
    }
    Output::text(text + "]\n")
}

impl Fixture {
    fn allocate(&self, call: &Call) -> anyhow::Result<Output> {
        let [labels] = call.exactly()?;
        let References { users, made } = &mut *self.references.lock();
        *made += 1;
        let user = format!("script/{made}");
        let id = self.identities.allocate(&labels_of(labels), &user)?;
        users.entry(id).or_default().push(user);
        Ok(Output::text(format!("{id}\n")))
    }

    fn release(&self, call: &Call) -> anyhow::Result<Output> {
        let [id] = call.exactly()?;
        let id: u32 = id.parse().with_context(|| format!("{id:?} is no identity"))?;
        let row = |id| {
            let snapshot = self.identity_table.snapshot();
            self.identity_table.get(&snapshot, Identity::by_id(id)).cloned()
        };
        ensure!(row(id).is_some(), "identity {id} not found");
        if let Some(user) = self.references.lock().users.get_mut(&id).and_then(Vec::pop) {
            self.identities.release(id, &user);
        }
        let is_unused = |row: &Identity| row.users.is_empty() && row.scope() != identity::Scope::Reserved;
        let released = row(id).is_none_or(|row| is_unused(&row));
        Ok(Output::text(format!("released={released}\n")))
    }

    fn list_identities(&self) -> Output {
        let snapshot = self.identity_table.snapshot();
        let rows = self.identity_table.all(&snapshot);
        // One without users is in quarantine.
        let rows = rows.filter(|row| row.scope() == identity::Scope::Reserved || !row.users.is_empty());
        identity_list(rows.map(|row| (row.id, &row.labels)))
    }

    fn list_subjects(&self) -> Output {
        let table = self.policies.table();
        let snapshot = table.snapshot();
        let subjects: BTreeMap<u32, &LabelArray> =
            table.all(&snapshot).map(|row| (row.subject.identity, &row.subject.labels)).collect();
        identity_list(subjects.into_iter())
    }

    async fn create_endpoint(&self, call: &Call) -> anyhow::Result<Output> {
        let [id, labels] = call.exactly()?;
        let endpoint: u16 = id.parse().with_context(|| format!("{id:?} is no id of an endpoint"))?;
        let attached =
            EndpointDatapath { id: endpoint, ifindex: endpoint.into(), ..EndpointDatapath::default() };
        self.datapath.attach(&attached)?;
        let labels = labels_of(labels);
        let identity = self.identities.allocate(&labels, &format!("endpoint/{endpoint}"))?;
        let (labels, named_ports) = (LabelArray::from(&labels), NamedPorts::default());
        self.policies.enforce(Subject { endpoint, identity, labels, named_ports });
        self.policies.realized(endpoint).await?;
        Ok(Output::text(endpoint.to_string()))
    }

    fn delete_endpoint(&self, call: &Call) -> anyhow::Result<Output> {
        let [id] = call.exactly()?;
        let endpoint: u16 = id.parse().with_context(|| format!("{id:?} is no id of an endpoint"))?;
        let table = self.policies.table();
        ensure!(
            table.get(&table.snapshot(), EndpointPolicy::by_endpoint(endpoint)).is_some(),
            "endpoint {endpoint} not found"
        );
        self.policies.forget(endpoint);
        self.datapath.detach(endpoint)?;
        self.identities.release_all(&format!("endpoint/{endpoint}"));
        Ok(Output::text(""))
    }

    fn list_endpoints(&self) -> anyhow::Result<Output> {
        let table = self.policies.table();
        let snapshot = table.snapshot();
        let rows: Vec<&EndpointPolicy> = table.all(&snapshot).map(|row| &**row).collect();
        Ok(Output::text(serde_json::to_string_pretty(&rows)? + "\n"))
    }

    async fn wait_for_revision(&self, call: &Call) -> anyhow::Result<Output> {
        let [revision] = call.exactly()?;
        let revision: u64 = revision.parse().with_context(|| format!("{revision:?} is no revision"))?;
        let table = self.policies.table();
        loop {
            let snapshot = table.snapshot();
            let (mut rows, watch) = table.all_watch(&snapshot);
            if rows.all(|row| row.realized >= revision) {
                return Ok(Output::text(""));
            }
            drop(snapshot);
            watch.changed().await;
        }
    }

    fn read(call: &Call) -> anyhow::Result<PolicyObject> {
        let [file] = call.exactly()?;
        let text = String::from_utf8(call.read(file)?)?;
        let mut documents = k8s_types::documents(&text);
        ensure!(documents.len() == 1, "{file} has {} documents", documents.len());
        let manifest = documents.remove(0)?.value;
        let kind = match manifest["kind"].as_str() {
            Some("CiliumNetworkPolicy") => PolicyKind::CiliumNetworkPolicy,
            Some("CiliumClusterwideNetworkPolicy") => PolicyKind::CiliumClusterwideNetworkPolicy,
            kind => bail!("{file}: {} is no kind of policy", kind.unwrap_or("an object without a kind")),
        };
        let object = PolicyObject::decode(kind, &manifest)?;
        Ok(PolicyObject { source: SOURCE.into(), origin: file.to_owned(), ..object })
    }

    /// Upserts the policy of a file, and waits until it is in force. Returns its revision.
    async fn import(&self, call: &Call) -> anyhow::Result<u64> {
        let object = Self::read(call)?;
        let (kind, namespace, name) = (object.kind, object.namespace.clone(), object.name.clone());
        let before = self.policies.revision();
        let (old, _) = self.objects.transact(|txn| txn.insert(object.clone()));
        if old.is_some_and(|old| *old == object) {
            return Ok(before);
        }
        let status = self
            .status(kind, &namespace, &name, |status| {
                status.is_some_and(|row| row.revision > before || row.state != ObjectState::Applied)
            })
            .await
            .context("the policy is gone")?;
        ensure!(status.state == ObjectState::Applied, "refused: {:?}", status.problems);
        Ok(status.revision)
    }

    async fn remove(&self, call: &Call) -> anyhow::Result<Output> {
        let PolicyObject { kind, namespace, name, .. } = Self::read(call)?;
        self.objects.transact(|txn| txn.delete(PolicyObject::by_name(SOURCE, kind, &namespace, &name)));
        self.status(kind, &namespace, &name, |status| status.is_none()).await;
        Ok(Output::text(format!("Removed policy, rev={}\n", self.policies.revision())))
    }

    /// Waits until the status of a policy is as awaited.
    async fn status(
        &self,
        kind: PolicyKind,
        namespace: &str,
        name: &str,
        is_awaited: impl Fn(Option<&PolicyStatus>) -> bool,
    ) -> Option<PolicyStatus> {
        loop {
            let snapshot = self.statuses.snapshot();
            let (mut rows, watch) = self.statuses.all_watch(&snapshot);
            let row = rows.find(|row| {
                let object = &row.object;
                (object.kind.name(), &*object.namespace, &*object.name) == (kind.name(), namespace, name)
            });
            if is_awaited(row.map(|row| &**row)) {
                return row.map(|row| PolicyStatus::clone(row));
            }
            drop(snapshot);
            watch.changed().await;
        }
    }
}
