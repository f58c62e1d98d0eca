//! The workload of a pod: the object that makes pods of its kind.

use hubble_api::flow::Workload;
use k8s_tables::core::Pod;

/// The label of a ReplicaSet's pods with the suffix of its name, if a Deployment has made it.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// The label of a ReplicationController's pods with the name of the DeploymentConfig that has made it.
const DEPLOYMENT_CONFIG: &str = "deploymentconfig";
/// The length of the suffix of a Job's name that a CronJob has made: a time, in seconds or minutes.
const JOB_SUFFIX: std::ops::RangeInclusive<usize> = 8..=10;

/// Returns the workload of a pod; `None` if no controller has made it.
pub(crate) fn workload(pod: &Pod) -> Option<Workload> {
    let metadata = &pod.metadata;
    if metadata.generate_name.is_empty() {
        return None;
    }
    let owner = metadata.owner_references.iter().find(|owner| owner.controller == Some(true))?;
    let (kind, name) = match owner.kind.as_str() {
        "ReplicaSet" => {
            let hash = metadata.labels.get(TEMPLATE_HASH).filter(|hash| !hash.is_empty());
            let name = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
            name.map_or(("ReplicaSet", owner.name.as_str()), |name| ("Deployment", name))
        }
        "ReplicationController" => match metadata.labels.get(DEPLOYMENT_CONFIG) {
            Some(name) => ("DeploymentConfig", name.as_str()),
            None => ("ReplicationController", owner.name.as_str()),
        },
        "Job" => cron_job(&owner.name).map_or(("Job", owner.name.as_str()), |name| ("CronJob", name)),
        kind => (kind, owner.name.as_str()),
    };
    Some(Workload { name: name.to_owned(), kind: kind.to_owned() })
}

/// Returns the CronJob that has made a Job, by the Job's name.
fn cron_job(job: &str) -> Option<&str> {
    let (name, suffix) = job.rsplit_once('-')?;
    let is_time = JOB_SUFFIX.contains(&suffix.len()) && suffix.bytes().all(|byte| byte.is_ascii_digit());
    is_time.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_those_that_people_have_made() {
        let named = |kind: &str, name: &str, label: (&str, &str)| {
            let owner = format!(
                r#"{{"apiVersion":"v1","kind":"{kind}","name":"{name}","uid":"u","controller":true}}"#
            );
            let labels = format!(r#"{{"{}":"{}"}}"#, label.0, label.1);
            let pod = format!(
                r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p","generateName":"p-","labels":{labels},"ownerReferences":[{owner}]}}}}"#
            );
            let found = workload(&k8s_tables::decode::<Pod>(pod.as_bytes()).unwrap()).unwrap();
            format!("{}/{}", found.kind, found.name)
        };
        let hash = (TEMPLATE_HASH, "5d4f");
        assert_eq!(named("ReplicaSet", "web-5d4f", hash), "Deployment/web");
        assert_eq!(named("ReplicaSet", "web-0000", hash), "ReplicaSet/web-0000");
        assert_eq!(named("ReplicaSet", "web-5d4f", ("a", "b")), "ReplicaSet/web-5d4f");
        assert_eq!(named("Job", "backup-29012345", ("a", "b")), "CronJob/backup");
        assert_eq!(named("Job", "backup-2901234", ("a", "b")), "Job/backup-2901234");
        assert_eq!(named("Job", "backup-2901234x", ("a", "b")), "Job/backup-2901234x");
        assert_eq!(
            named("ReplicationController", "web-3", (DEPLOYMENT_CONFIG, "web")),
            "DeploymentConfig/web"
        );
        assert_eq!(named("ReplicationController", "web-3", ("a", "b")), "ReplicationController/web-3");
        assert_eq!(named("DaemonSet", "proxy", ("a", "b")), "DaemonSet/proxy");
    }

    #[test]
    fn pods_without_a_controller_have_none() {
        let owner = r#"{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}"#;
        for metadata in [
            r#"{"name":"p"}"#.to_owned(),
            r#"{"name":"p","generateName":"p-"}"#.to_owned(),
            format!(r#"{{"name":"p","generateName":"p-","ownerReferences":[{owner}]}}"#),
        ] {
            let pod = format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{metadata}}}"#);
            assert_eq!(workload(&k8s_tables::decode::<Pod>(pod.as_bytes()).unwrap()), None);
        }
    }
}
