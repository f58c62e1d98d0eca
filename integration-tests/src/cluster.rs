//! A node in a cluster: the agent in a sandbox, and a real API server behind a gate.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use api_client::Address;
use cluster_stage::{Gate, Stage, StageOptions, User};
use k8s_types::{Kind, KindVisitor, Resource, decode, with_type};
use serde_json::{Value, json};
use statedb_remote::RemoteTable;
use test_kit::try_wait_until;

use crate::Node;

/// How long tables may differ from the server once nothing disturbs them any more.
const LIMIT: Duration = Duration::from_secs(120);

/// Tables that are all objects of a kind, or those of the node alone.
const TABLES: &[(&str, Kind)] = &[
    ("k8s-namespaces", Kind::Namespace),
    ("k8s-pods", Kind::Pod),
    ("k8s-nodes", Kind::Node),
    ("k8s-services", Kind::Service),
    ("k8s-endpointslices", Kind::EndpointSlice),
    ("k8s-networkpolicies", Kind::NetworkPolicy),
    ("k8s-ciliumcidrgroups", Kind::CiliumCIDRGroup),
    ("k8s-ciliumnodes", Kind::CiliumNode),
    ("k8s-ciliumidentities", Kind::CiliumIdentity),
    ("k8s-ciliumendpoints", Kind::CiliumEndpoint),
];

/// Policies have one table.
const POLICIES: &[Kind] = &[Kind::CiliumNetworkPolicy, Kind::CiliumClusterwideNetworkPolicy];

/// A stage, and a node with an agent that uses it as its cluster.
pub struct Cluster {
    /// The node; in its namespace is the thread that has made it.
    pub node: Node,
    /// The agent's way to the API server.
    pub gate: Gate,
    /// The API server.
    pub stage: Stage,
}

impl Cluster {
    /// The name of the node.
    pub const NODE: &str = "node-1";

    /// Creates a cluster with these kinds besides Kubernetes' own, and a node; the agent is not started.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(definitions: &[Value]) -> Self {
        Self::with(&StageOptions::default(), definitions)
    }

    /// The same, with a stage that has the given extras.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn with(options: &StageOptions, definitions: &[Value]) -> Self {
        Self::of(Node::new(), options, definitions)
    }

    /// The same of this node.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn of(mut node: Node, options: &StageOptions, definitions: &[Value]) -> Self {
        let stage = Stage::with(options).unwrap();
        if !definitions.is_empty() {
            stage.define(definitions).unwrap();
        }
        stage.apply(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: {}}}}}", Self::NODE)).unwrap();
        let gate = stage.gate().unwrap();
        let kubeconfig = gate.kubeconfig(User::Agent).unwrap();
        node.config.remove("cluster-folder");
        node.config.insert("k8s-kubeconfig-path".to_owned(), kubeconfig.to_str().unwrap().to_owned());
        Self { node, gate, stage }
    }

    /// Starts the agent and waits until it is ready.
    ///
    /// # Panics
    /// When it is not ready in time.
    pub fn start(&mut self) {
        let mut command = self.node.agent_command();
        command.env("K8S_NODE_NAME", Self::NODE);
        self.node.spawn_command(command);
        self.node.wait_ready();
    }

    /// A table of the agent, by whatever client.
    #[must_use]
    pub fn table(&self, name: &str) -> RemoteTable<Value> {
        RemoteTable::new(Address::Unix(self.node.socket()), name)
    }

    /// Rows of health that are not well, as JSON.
    #[must_use]
    pub fn unwell(&self) -> Vec<String> {
        let health = self.node.get("/statedb/dump/health");
        let rows = health["health"].as_array().into_iter().flatten();
        rows.filter(|row| row["Level"] == "Degraded").map(Value::to_string).collect()
    }

    /// Waits until nothing is unwell.
    ///
    /// # Panics
    /// When something is for too long; with it and the agent's log.
    pub fn until_well(&self) {
        let well = || match self.unwell() {
            rows if rows.is_empty() => Ok(()),
            rows => Err(rows.join("\n")),
        };
        if let Err(rows) = try_wait_until(LIMIT, well) {
            panic!("still unwell:\n{rows}\n{}", self.node.log());
        }
    }

    /// Waits until the tables have exactly what kubectl shows; how many objects those are, by table.
    ///
    /// # Panics
    /// When they differ for too long; with the differences and the agent's log.
    pub fn until_equal(&self) -> BTreeMap<&'static str, usize> {
        let truth: BTreeMap<&str, BTreeMap<String, Value>> = self.truth();
        let compare = || {
            let mut differences = String::new();
            for (table, objects) in &truth {
                let rows = self.rows(table).map_err(|error| format!("{table}: {error}"))?;
                for (key, object) in objects.iter().filter(|(key, object)| rows.get(*key) != Some(object)) {
                    let row = rows.get(key).map_or("missing".to_owned(), Value::to_string);
                    let _ = writeln!(differences, "{table}: {key} is {row}, not {object}");
                }
                for key in rows.keys().filter(|key| !objects.contains_key(*key)) {
                    let _ = writeln!(differences, "{table}: {key} is left over");
                }
            }
            if differences.is_empty() { Ok(()) } else { Err(differences) }
        };
        if let Err(differences) = try_wait_until(LIMIT, || {
            std::thread::sleep(Duration::from_millis(200));
            compare()
        }) {
            let count = differences.lines().count();
            let few: Vec<&str> = differences.lines().take(10).collect();
            panic!("{count} differences\n{}\nlog of the agent:\n{}", few.join("\n"), self.node.log());
        }
        truth.into_iter().map(|(table, objects)| (table, objects.len())).collect()
    }

    /// Objects as kubectl shows them, in the form that the tables should have.
    fn truth(&self) -> BTreeMap<&'static str, BTreeMap<String, Value>> {
        let mut truth: BTreeMap<&'static str, BTreeMap<String, Value>> = BTreeMap::new();
        for (table, kind) in TABLES {
            let field = match kind {
                Kind::Pod => format!("spec.nodeName={}", Self::NODE),
                Kind::Node => format!("metadata.name={}", Self::NODE),
                _ => String::new(),
            };
            let slim =
                self.objects(*kind, &field).into_iter().map(|object| (key(&object), slim(*kind, &object)));
            truth.insert(table, slim.collect());
        }
        let policies = POLICIES.iter().flat_map(|kind| self.objects(*kind, "").into_iter().map(policy));
        truth.insert("k8s-policies", policies.collect());
        truth
    }

    fn objects(&self, kind: Kind, field: &str) -> Vec<Value> {
        let group = if kind.group().is_empty() { String::new() } else { format!(".{}", kind.group()) };
        let list = self.stage.get(&["-A", "--field-selector", field, &format!("{}{group}", kind.plural())]);
        match list.unwrap()["items"].take() {
            Value::Array(items) => items,
            other => panic!("{kind:?}: {other}"),
        }
    }

    fn rows(&self, table: &str) -> Result<BTreeMap<String, Value>, statedb_remote::Error> {
        let rows = self.table(table).all("name")?;
        rows.map(|row| {
            let mut row = row?.object;
            row.as_object_mut().unwrap().remove("updatedAt");
            let row = match table {
                "k8s-policies" => row["body"].take(),
                "k8s-namespaces" => json!({"metadata": row}),
                _ => row,
            };
            Ok((key(&row), row))
        })
        .collect()
    }
}

/// Namespace and name.
fn key(object: &Value) -> String {
    let meta = &object["metadata"];
    format!("{}/{}", meta["namespace"].as_str().unwrap_or_default(), meta["name"].as_str().unwrap())
}

/// An object as its type has it.
fn slim(kind: Kind, object: &Value) -> Value {
    struct Slim(String);
    impl KindVisitor for Slim {
        type Output = Value;
        fn visit<T: Resource>(self) -> Value {
            with_type(&decode::<T>(self.0.as_bytes()).unwrap())
        }
    }
    let mut value = kind.visit(Slim(object.to_string()));
    match kind {
        Kind::Namespace => {
            // Only the fields that the agent uses; empty ones are left out.
            let metadata = value["metadata"].as_object_mut().unwrap();
            metadata.retain(|field, value| {
                ["name", "labels", "annotations"].contains(&field.as_str()) && *value != json!({})
            });
            return json!({"metadata": metadata});
        }
        // Cilium's slim type: with kind and version, without some metadata.
        Kind::Pod => {
            let metadata = value["metadata"].as_object_mut().unwrap();
            metadata.remove("creationTimestamp");
            metadata.remove("finalizers");
            for owner in
                metadata.get_mut("ownerReferences").and_then(Value::as_array_mut).into_iter().flatten()
            {
                owner.as_object_mut().unwrap().remove("blockOwnerDeletion");
            }
            return value;
        }
        _ => {}
    }
    let members = value.as_object_mut().unwrap();
    members.remove("apiVersion");
    members.remove("kind");
    value
}

/// A policy as the agent has it: without what the server keeps about it.
fn policy(mut object: Value) -> (String, Value) {
    object.as_object_mut().unwrap().remove("status");
    let meta = object["metadata"].as_object_mut().unwrap();
    for name in ["managedFields", "resourceVersion", "generation"] {
        meta.remove(name);
    }
    (key(&object), object)
}
