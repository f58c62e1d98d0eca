//! The job: from endpoints and pods to rows of table `no-track`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use endpoints::{Endpoint, Record};
use futures::future::{FutureExt as _, select_all};
use hive::JobCx;
use iptables::{NoTrack, NoTrackRules, Traffic};
use k8s_tables::Row;
use k8s_tables::core::Pod;
use statedb::{Changes, Initializer, Query, Snapshot, Table, TableSpec, Watch};

use crate::annotation::{Refused, host_ports, pod_port};

/// Follows endpoints and pods.
pub(crate) struct Follower {
    endpoints: Arc<Table<Endpoint>>,
    pods: Arc<Table<Row<Pod>>>,
    rules: Arc<NoTrackRules>,
    endpoint_changes: Changes<Endpoint>,
    pod_changes: Changes<Row<Pod>>,
    /// Kept until both tables are complete.
    initializer: Option<Initializer<NoTrack>>,
    /// Wrong annotations by pod, each of which is logged once.
    refused: BTreeMap<String, Vec<Refused>>,
}

/// Rows to set or to remove.
type Updates = Vec<(Arc<str>, Option<Traffic>)>;

impl Follower {
    pub(crate) fn new(
        endpoints: Arc<Table<Endpoint>>,
        pods: Arc<Table<Row<Pod>>>,
        rules: Arc<NoTrackRules>,
    ) -> Follower {
        Follower {
            endpoint_changes: endpoints.changes(),
            pod_changes: pods.changes(),
            initializer: Some(rules.register_initializer("annotations")),
            refused: BTreeMap::new(),
            endpoints,
            pods,
            rules,
        }
    }

    /// Runs until the job is cancelled.
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        loop {
            let watches = self.round();
            let table = self.rules.table();
            let count = table.len(&table.snapshot());
            match self.refused.len() {
                0 => cx.health.ok(format!("{count} endpoints and pods have untracked traffic")),
                wrong => cx.health.ok(format!(
                    "{count} endpoints and pods have untracked traffic; annotations of {wrong} pods are wrong"
                )),
            }
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                _ = select_all(watches.iter().map(|watch| watch.changed().boxed())) => {}
            }
        }
    }

    /// Processes the pending changes. Returns watches for more.
    fn round(&mut self) -> Vec<Watch> {
        let snapshot = self.endpoints.snapshot();
        let (are_complete, mut watches) = self.completeness(&snapshot);
        let (endpoints, watch) = self.endpoint_changes.read(&snapshot, usize::MAX);
        watches.push(watch);
        let (pods, watch) = self.pod_changes.read(&snapshot, usize::MAX);
        watches.push(watch);
        let (mut names, mut updates) = (BTreeSet::new(), Updates::new());
        for change in &endpoints {
            let endpoint = &change.object;
            // A new endpoint may have the id already.
            if change.deleted && self.endpoints.get(&snapshot, Endpoint::by_id(endpoint.id())).is_none() {
                updates.push((owner(endpoint), None));
            }
            if !endpoint.record.k8s_pod_name.is_empty() {
                names.insert(endpoint.record.pod_name());
            }
        }
        names.extend(pods.iter().map(|change| change.object.key()));
        for name in names {
            self.update(&name, &snapshot, &mut updates);
        }
        if !updates.is_empty() {
            self.rules.set(updates);
        }
        if let Some(initializer) = self.initializer.take_if(|_| are_complete) {
            self.rules.finish(initializer);
        }
        watches
    }

    fn completeness(&self, snapshot: &Snapshot) -> (bool, Vec<Watch>) {
        let states = [self.endpoints.initialized_watch(snapshot), self.pods.initialized_watch(snapshot)];
        let are_complete = states.iter().all(|(is_complete, _)| *is_complete);
        (
            are_complete,
            states.into_iter().filter(|(is_complete, _)| !is_complete).map(|(_, watch)| watch).collect(),
        )
    }

    /// Computes the rows of all endpoints of a pod's name, and that of the pod itself.
    fn update(&mut self, name: &str, snapshot: &Snapshot, updates: &mut Updates) {
        let pod = self.pods.get(snapshot, Query::primary(name.to_owned()));
        let mut refused = Vec::new();
        for endpoint in self.endpoints.list(snapshot, Endpoint::by_pod(name)) {
            let record: &Record = &endpoint.record;
            if endpoint.state.is_leaving() {
                updates.push((owner(endpoint), None));
                continue;
            }
            // Without the pod's object its annotation is unknown: the present row stays.
            let Some(pod) = pod.filter(|row| record.is_of(&row.object)) else { continue };
            match pod_port(pod) {
                Ok(port) => {
                    let addresses: Vec<_> = record.addresses().collect();
                    let traffic = port.filter(|_| !addresses.is_empty());
                    updates.push((owner(endpoint), traffic.map(|port| Traffic::Pod { addresses, port })));
                }
                Err(error) => refused.push(error),
            }
        }
        let owner: Arc<str> = format!("pod/{name}").into();
        match pod {
            Some(row) if !matches!(row.status.phase.as_str(), "Succeeded" | "Failed") => {
                let (ports, wrong) = host_ports(row);
                refused.extend(wrong);
                updates.push((owner, (!ports.is_empty()).then_some(Traffic::Host(ports))));
            }
            _ => updates.push((owner, None)),
        }
        self.report(name, refused);
    }

    fn report(&mut self, pod: &str, refused: Vec<Refused>) {
        let known = self.refused.get(pod).map(Vec::as_slice).unwrap_or_default();
        for error in refused.iter().filter(|error| !known.contains(error)) {
            tracing::warn!(pod, %error, "The annotation is not in force");
        }
        match refused.is_empty() {
            true => drop(self.refused.remove(pod)),
            false => drop(self.refused.insert(pod.to_owned(), refused)),
        }
    }
}

fn owner(endpoint: &Endpoint) -> Arc<str> {
    format!("endpoint/{}", endpoint.record.id).into()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use endpoints::State;
    use serde_json::json;
    use statedb::{Db, RwTable, TableDisplay};

    use super::*;

    struct World {
        endpoints: Arc<RwTable<Endpoint>>,
        pods: Arc<RwTable<Row<Pod>>>,
        follower: Follower,
    }

    impl World {
        fn new() -> World {
            let db = Db::new();
            let endpoints = Arc::new(db.table_with_display::<Endpoint>().unwrap());
            let pods = Arc::new(db.table_with_display::<Row<Pod>>().unwrap());
            let rules = NoTrackRules::of(Arc::new(db.table_with_display::<NoTrack>().unwrap()));
            let follower = Follower::new(endpoints.reader().into(), pods.reader().into(), rules);
            World { endpoints, pods, follower }
        }

        fn endpoint(&self, id: u16, pod: &str, state: State) {
            let json = json!({
                "ID": id, "IPv4": format!("10.0.0.{id}"), "IPv6": format!("fd00::{id}"), "K8sNamespace": "ns",
                "K8sPodName": pod, "K8sUID": format!("uid-{pod}"), "OpLabels": null,
            });
            let record: Record = serde_json::from_value(json).unwrap();
            let row = Endpoint { state, ..Endpoint::restored(record, SystemTime::UNIX_EPOCH) };
            let mut txn = self.endpoints.write();
            txn.insert(row);
            txn.commit();
        }

        fn pod(&self, name: &str, key: &str, value: &str, host: bool) {
            let mut meta = json!({"name": name, "namespace": "ns", "uid": format!("uid-{name}")});
            if !key.is_empty() {
                meta["annotations"] = json!({key: value});
            }
            let pod =
                json!({"metadata": meta, "spec": {"hostNetwork": host}, "status": {"phase": "Running"}});
            let mut txn = self.pods.write();
            txn.insert(Row::of(serde_json::from_value(pod).unwrap()));
            txn.commit();
        }

        /// The rows after a round, and whether all are known.
        fn rows(&mut self) -> (Vec<String>, bool) {
            let _watches = self.follower.round();
            let table = self.follower.rules.table();
            let snapshot = table.snapshot();
            let rows = table.all(&snapshot).map(|row| row.row().join(" "));
            (rows.collect(), table.initialized(&snapshot))
        }
    }

    const PORT: &str = "policy.cilium.io/no-track-port";
    const SEVEN: &str = "endpoint/7 fd00::7, 10.0.0.7 53";

    #[test]
    fn a_pods_port_comes_changes_and_goes() {
        let mut world = World::new();
        world.endpoint(7, "dns", State::Ready);
        assert!(world.rows().0.is_empty(), "the pod is not known");
        world.pod("dns", PORT, "53", false);
        assert_eq!(world.rows(), (vec![SEVEN.to_owned()], true));
        for wrong in ["0", "70000", "dns"] {
            world.pod("dns", PORT, wrong, false);
            assert_eq!(world.rows().0, [SEVEN], "the previous port stays");
        }
        assert_eq!(world.follower.refused.len(), 1);
        world.pod("dns", "io.cilium.no-track-port", "54", false);
        assert_eq!(world.rows().0, ["endpoint/7 fd00::7, 10.0.0.7 54"]);
        assert!(world.follower.refused.is_empty());
        world.pod("dns", "", "", false);
        assert!(world.rows().0.is_empty(), "without the annotation");
        world.pod("dns", PORT, "53", false);
        assert_eq!(world.rows().0, [SEVEN]);
        world.endpoint(7, "dns", State::Disconnecting);
        assert!(world.rows().0.is_empty(), "it is leaving");
    }

    #[test]
    fn another_pod_of_the_name_or_endpoint_of_the_id_changes_nothing() {
        let mut world = World::new();
        world.endpoint(7, "dns", State::Ready);
        world.pod("dns", PORT, "53", false);
        assert_eq!(world.rows().0, [SEVEN]);
        let mut other: Pod = serde_json::from_value(json!({
            "metadata": {"name": "dns", "namespace": "ns", "uid": "next", "annotations": {PORT: "99"}},
        }))
        .unwrap();
        other.spec.host_network = false;
        let mut txn = world.pods.write();
        txn.insert(Row::of(other));
        txn.commit();
        assert_eq!(world.rows().0, [SEVEN], "the endpoint is that of the pod before");
        let mut txn = world.endpoints.write();
        txn.delete(Endpoint::by_id(endpoints::EndpointId(7)));
        txn.commit();
        world.endpoint(7, "web", State::Ready);
        world.pod("web", PORT, "80", false);
        assert_eq!(world.rows().0, ["endpoint/7 fd00::7, 10.0.0.7 80"], "the id has another owner");
    }

    #[test]
    fn ports_of_the_host_end_with_their_pod() {
        let mut world = World::new();
        let key = "network.cilium.io/no-track-host-ports";
        world.pod("a", key, "53/udp,443", true);
        world.pod("b", key, "53/udp", false);
        assert_eq!(world.rows().0, ["pod/ns/a host 443/tcp, 53/udp"]);
        assert_eq!(world.follower.refused.keys().collect::<Vec<_>>(), ["ns/b"], "not in the node's network");
        let mut txn = world.pods.write();
        txn.delete(Row::by_name("ns", "a"));
        txn.delete(Row::by_name("ns", "b"));
        txn.commit();
        assert_eq!((world.rows().0.len(), world.follower.refused.len()), (0, 0));
    }

    #[test]
    fn rules_of_the_previous_run_stay_until_all_pods_are_known() {
        let mut world = World::new();
        let mut txn = world.pods.write();
        let source = txn.register_initializer("api");
        txn.commit();
        assert!(!world.rows().1);
        let mut txn = world.pods.write();
        source.done(&mut txn);
        txn.commit();
        assert!(world.rows().1);
    }
}
