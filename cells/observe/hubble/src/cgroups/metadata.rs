//! `GET /cgroup-dump-metadata`: the cgroups of the containers of pods.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::sync::Arc;

use api::Response;
use api_models::{CgroupContainerMetadata, CgroupDumpMetadata, CgroupPodMetadata};
use datapath_api::{SocketCoverage, SocketLb};
use k8s_tables::Row;
use k8s_tables::core::Pod;
use statedb::Table;

use super::{of_pod, visit};

/// The end of the name of a cgroup that systemd made.
const SCOPE: &str = ".scope";
/// Part of the names of cgroups with the monitor of a container, not with its processes.
const CONTAINER_MONITOR: &str = "-conmon-";

/// The cgroups of the containers of a pod, by the id of the container.
type Containers = BTreeMap<String, CgroupContainerMetadata>;

/// Returns the pods of this node that have running containers, with the cgroups of these. As in Cilium there are none
/// without load balancing at sockets, which is what needs them.
pub(crate) async fn metadata(
    socket_lb: Option<Arc<SocketLb>>,
    pods: Option<Arc<Table<Row<Pod>>>>,
) -> Response {
    let (Some(socket_lb), Some(pods)) = (socket_lb, pods) else {
        return Response::json(200, &CgroupDumpMetadata::default());
    };
    if socket_lb.coverage() == SocketCoverage::None {
        return Response::json(200, &CgroupDumpMetadata::default());
    }
    let found = hive::blocking(move || containers(socket_lb.cgroup())).await;
    let snapshot = pods.snapshot();
    let list = pods.all(&snapshot).filter_map(|row| pod_metadata(&row.object, &found));
    let pod_metadatas: Vec<CgroupPodMetadata> = list.collect();
    Response::json(200, &CgroupDumpMetadata { pod_metadatas: pod_metadatas.into() })
}

/// Returns the cgroups of containers by the uid of their pod.
fn containers(root: &Path) -> HashMap<Arc<str>, Containers> {
    let mut found: HashMap<Arc<str>, Containers> = HashMap::new();
    visit(root, |entry, pod| {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(container_id) else { return };
        let cgroup = CgroupContainerMetadata {
            cgroup_id: entry.ino(),
            cgroup_path: entry.path().to_string_lossy().into_owned(),
        };
        found.entry(pod.clone()).or_default().insert(id.to_owned(), cgroup);
    });
    found
}

/// Returns the id of the container with a cgroup of this name: `<id>`, or `<runtime>-<id>.scope`.
fn container_id(name: &str) -> Option<&str> {
    let id = match name.strip_suffix(SCOPE) {
        Some(scope) if scope.contains(CONTAINER_MONITOR) => return None,
        Some(scope) => scope.rsplit_once('-')?.1,
        None => name,
    };
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

/// Returns the cgroups of the running containers of a pod; `None` if there are none.
fn pod_metadata(pod: &Pod, found: &HashMap<Arc<str>, Containers>) -> Option<CgroupPodMetadata> {
    let (uid, addresses) = of_pod(pod);
    let cgroups = found.get(&*uid)?;
    let running = pod.status.container_statuses.iter().filter(|status| status.state.running.is_some());
    let ids = running.filter_map(|status| Some(status.container_id.split_once("://")?.1));
    let containers: Vec<CgroupContainerMetadata> = ids.filter_map(|id| cgroups.get(id).cloned()).collect();
    let ips: Vec<String> = addresses.into_iter().flatten().map(|address| address.to_string()).collect();
    (!containers.is_empty()).then(|| CgroupPodMetadata {
        containers: containers.into(),
        ips: ips.into(),
        name: pod.metadata.name.to_string(),
        namespace: pod.metadata.namespace.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const UID: &str = "0a1b2c3d-0000-4000-8000-000000000001";

    #[test]
    fn containers_that_run_have_cgroups_by_either_driver() {
        let folder = tempfile::tempdir().unwrap();
        let slice = format!("kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_"));
        let (web, log) = (format!("{slice}/cri-containerd-aa01.scope"), format!("kubepods/pod{UID}/bb02"));
        let others = ["cri-containerd-cc03.scope", "crio-conmon-aa01.scope", "cri-containerd-dd04.scope"];
        fs::create_dir_all(folder.path().join(&log)).unwrap();
        fs::create_dir_all(folder.path().join(&web).join("init")).unwrap();
        for name in others {
            fs::create_dir_all(folder.path().join(&slice).join(name)).unwrap();
        }
        let pod = format!(
            r#"{{"metadata":{{"name":"p","namespace":"n","uid":"{UID}"}},"status":{{"podIPs":[{{"ip":"192.0.2.1"}}],
               "containerStatuses":[
                   {{"state":{{"running":{{}}}},"containerID":"containerd://aa01"}},
                   {{"state":{{"running":{{}}}},"containerID":"containerd://bb02"}},
                   {{"state":{{}},"containerID":"containerd://dd04"}}]}}}}"#
        );
        let pod = k8s_tables::decode::<Pod>(pod.as_bytes()).unwrap();
        let found = containers(folder.path());
        let of_pod = pod_metadata(&pod, &found).unwrap();
        assert_eq!(
            (&*of_pod.name, &*of_pod.namespace, &of_pod.ips[..]),
            ("p", "n", &["192.0.2.1".to_owned()][..])
        );
        let expected = [web, log].map(|path| {
            let path = folder.path().join(path);
            (fs::metadata(&path).unwrap().ino(), path.to_string_lossy().into_owned())
        });
        let cgroups = of_pod.containers.iter().map(|cgroup| (cgroup.cgroup_id, cgroup.cgroup_path.clone()));
        assert_eq!(cgroups.collect::<Vec<_>>(), expected, "neither the sandbox nor what has ended");
        assert_eq!(pod_metadata(&pod, &HashMap::new()), None);
    }
}
