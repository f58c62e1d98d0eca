//! The pods of processes, by the ids of their cgroups.

mod metadata;

pub(crate) use metadata::metadata;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirEntry};
use std::net::IpAddr;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use datapath_abi::event::TRACE_SOCK;
use datapath_api::SocketLb;
use endpoints::Endpoint;
use k8s_tables::Row;
use k8s_tables::core::Pod;
use monitor_events::Event;
use monitor_events::gob::Payload;
use statedb::{Db, Table};
use tokio::time::Instant;

/// The addresses of a pod: IPv4, IPv6.
pub(crate) type Addresses = [Option<IpAddr>; 2];

/// The shortest time between two searches: an unknown cgroup may stay unknown.
const INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a search, by its duration, so that searches take 2 % of a CPU at most.
const PAUSES: u32 = 50;
/// The depth of a search: kubelets in containers have the cgroups of their pods five folders below their own.
const MAX_DEPTH: usize = 16;
/// The maximum number of cgroups of pods.
const MAX_CGROUPS: usize = 1 << 16;
/// Annotation of the object that stands for a static pod; its value is the uid of the pod's cgroup.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";
/// The shortest uid: that of a static pod is a hash of 32 digits, any other one is a UUID.
const MIN_UID: usize = 32;

/// The cgroups of pods, as of the latest search.
pub(crate) struct Cgroups {
    socket_lb: Option<Arc<SocketLb>>,
    skip_unknown: bool,
    pods: HashMap<u64, Addresses>,
    next_search: Instant,
}

impl Cgroups {
    pub(crate) fn new(socket_lb: Option<Arc<SocketLb>>, skip_unknown: bool) -> Self {
        Self { socket_lb, skip_unknown, pods: HashMap::new(), next_search: Instant::now() }
    }

    /// Returns the addresses of the pod with a cgroup; `None` if its events are skipped, no addresses if it is unknown.
    pub(crate) fn addresses(&self, cgroup: u64) -> Option<Addresses> {
        self.pods.get(&cgroup).copied().or((!self.skip_unknown).then_some([None; 2]))
    }

    /// Searches for cgroups if one of these messages has an unknown one.
    pub(crate) async fn find(
        &mut self,
        payloads: &[Payload],
        db: &Db,
        endpoints: &Table<Endpoint>,
        pods: Option<&Table<Row<Pod>>>,
    ) {
        let begin = Instant::now();
        let Some(socket_lb) = &self.socket_lb else { return };
        if begin < self.next_search || !payloads.iter().any(|payload| self.is_unknown(&payload.data)) {
            return;
        }
        let root = socket_lb.cgroup().to_owned();
        let found = hive::blocking(move || search(&root)).await;
        let snapshot = db.snapshot();
        let mut by_uid: BTreeMap<String, Addresses> = BTreeMap::new();
        for row in pods.into_iter().flat_map(|pods| pods.all(&snapshot)) {
            let (uid, addresses) = of_pod(&row.object);
            by_uid.insert(uid, addresses);
        }
        // The addresses of endpoints are known before the kubelet writes the status of their pods.
        for row in endpoints.all(&snapshot).filter(|row| !row.record.k8s_uid.is_empty()) {
            let record = &row.record;
            by_uid.insert(record.k8s_uid.clone(), [record.ipv4.map(Into::into), record.ipv6.map(Into::into)]);
        }
        let of_known = |(cgroup, uid): (u64, Arc<str>)| Some((cgroup, *by_uid.get(&*uid)?));
        self.pods = found.into_iter().filter_map(of_known).collect();
        self.next_search = begin + INTERVAL.max(begin.elapsed() * PAUSES);
    }

    /// Whether a message is an event of a cgroup that is not known.
    fn is_unknown(&self, data: &[u8]) -> bool {
        if data.first() != Some(&TRACE_SOCK) {
            return false;
        }
        matches!(monitor_events::decode(data), Ok(Event::Socket(trace)) if !self.pods.contains_key(&trace.cgroup))
    }
}

/// Returns the uid and the addresses of a pod.
fn of_pod(pod: &Pod) -> (String, Addresses) {
    let uid = pod.metadata.annotations.get(MIRROR_POD).unwrap_or(&pod.metadata.uid);
    let mut addresses = [None; 2];
    for address in pod.status.pod_ips.iter().filter_map(|address| address.ip.parse::<IpAddr>().ok()) {
        addresses[usize::from(address.is_ipv6())] = Some(address);
    }
    (uid.to_string(), addresses)
}

/// Returns the ids of the cgroups of pods with the uids of the pods.
fn search(root: &Path) -> HashMap<u64, Arc<str>> {
    let mut found = HashMap::new();
    visit(root, |entry, pod| drop(found.insert(entry.ino(), pod.clone())));
    found
}

/// Visits the folders of the cgroups of pods, with the uids of the pods. The inode number of a folder is the id of its
/// cgroup.
fn visit(root: &Path, mut visitor: impl FnMut(&DirEntry, &Arc<str>)) {
    let mut visited = 0;
    let mut folders: Vec<(PathBuf, Option<Arc<str>>, usize)> = vec![(root.to_owned(), None, 0)];
    while let Some((folder, pod, depth)) = folders.pop() {
        // A cgroup may go at any time.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) || visited >= MAX_CGROUPS {
                continue;
            }
            let name = entry.file_name();
            let pod = pod.clone().or_else(|| name.to_str().and_then(uid).map(Arc::from));
            if let Some(pod) = &pod {
                visitor(&entry, pod);
                visited += 1;
            }
            if depth < MAX_DEPTH {
                folders.push((entry.path(), pod, depth + 1));
            }
        }
    }
}

/// Returns the uid of the pod with a cgroup of this name, by either driver of kubelets: `pod<uid>`, or
/// `kubepods-burstable-pod<uid>.slice` with underscores in place of hyphens.
fn uid(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    let is_uid = uid.len() >= MIN_UID && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const UID: &str = "0a1b2c3d-0000-4000-8000-000000000001";

    #[test]
    fn cgroups_below_that_of_a_pod_are_the_pods() {
        let folder = tempfile::tempdir().unwrap();
        let slice = format!("kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_"));
        let cgroups = [
            (format!("{slice}/cri-containerd-1.scope/init"), Some(UID)),
            (
                "kubepods/besteffort/pod0123456789abcdef0123456789abcdef/c1".to_owned(),
                Some("0123456789abcdef0123456789abcdef"),
            ),
            ("system.slice/ssh.service".to_owned(), None),
            ("kubepods/podium".to_owned(), None),
        ];
        for (path, _) in &cgroups {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        let found = search(folder.path());
        for (path, uid) in cgroups {
            let id = fs::metadata(folder.path().join(&path)).unwrap().ino();
            assert_eq!(found.get(&id).map(|uid| &**uid), uid, "{path}");
        }
        assert_eq!(found.len(), 5, "the pods' own cgroups, too: {found:?}");
    }

    #[test]
    fn pods_of_the_host_have_the_addresses_of_their_status() {
        let pod = format!(
            r#"{{"metadata":{{"name":"p","uid":"x","annotations":{{"{MIRROR_POD}":"{UID}"}}}},
               "status":{{"podIPs":[{{"ip":"fd00::1"}},{{"ip":"192.0.2.1"}}]}}}}"#
        );
        let (uid, addresses) = of_pod(&k8s_tables::decode::<Pod>(pod.as_bytes()).unwrap());
        assert_eq!(uid, UID);
        assert_eq!(addresses, ["192.0.2.1", "fd00::1"].map(|address| address.parse().ok()));
    }
}
