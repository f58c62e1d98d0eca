//! Backends of other clusters. The node's own cluster has the id 3.

use statedb::Obj;

use super::*;
use crate::model::backend::{Backend, BackendState};
use crate::model::frontend::{FrontendParams, FrontendType};
use crate::model::name::ServiceName;
use crate::model::service::Service;

const ADDRESS: &str = "10.96.0.1:80/TCP";

fn web() -> ServiceName {
    ServiceName::new("app", "web")
}

fn of_cluster(cluster_id: u32, address: &str) -> Backend {
    Backend { cluster_id, ..Backend::new(web(), address.parse().unwrap(), Source::ClusterMesh) }
}

/// Upserts the service with these annotations.
fn annotate(writer: &ServicesWriter, annotations: &[(&str, &str)]) {
    let annotations = annotations.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let service = Service { annotations, ..Service::new(web(), Source::Kubernetes) };
    let kind = FrontendType::ClusterIP;
    let address = ADDRESS.parse().unwrap();
    let frontend = FrontendParams { address, kind, port_name: "".into(), service_port: 80 };
    let mut txn = writer.write();
    txn.upsert_service(service, vec![frontend]).unwrap();
    txn.commit();
}

/// Returns the last bytes of the addresses of the selected backends, and of those to check.
fn chosen(writer: &ServicesWriter) -> (Vec<u8>, Vec<u8>) {
    let (frontends, address) = (writer.frontends(), ADDRESS.parse().unwrap());
    let snapshot = frontends.snapshot();
    let frontend = frontends.get(&snapshot, Frontend::by_address(&address)).unwrap();
    let last = |rows: &[Obj<Backend>]| {
        rows.iter()
            .map(|row| match row.address.ip {
                std::net::IpAddr::V4(ip) => ip.octets()[3],
                std::net::IpAddr::V6(_) => 0,
            })
            .collect()
    };
    (last(&frontend.backends), last(&frontend.health_check_backends))
}

/// Returns a service with two backends of this cluster, by either of its ids, and one each of two others.
fn world() -> ServicesWriter {
    let writer = writer();
    let mut txn = writer.write();
    txn.set_backends(
        &web(),
        Source::ClusterMesh,
        vec![
            of_cluster(0, "10.0.0.1:80/TCP"),
            of_cluster(3, "10.0.0.2:80/TCP"),
            of_cluster(1, "10.1.0.3:80/TCP"),
            of_cluster(2, "10.2.0.4:80/TCP"),
        ],
    );
    txn.commit();
    writer
}

#[test]
fn backends_of_other_clusters_are_for_global_services() {
    let writer = world();
    for (annotations, expected) in [
        (&[][..], &[1, 2][..]),
        (&[("service.cilium.io/global", "true")], &[1, 2, 3, 4]),
        (&[("service.cilium.io/global", "True")], &[1, 2, 3, 4]),
        (&[("service.cilium.io/global", "false")], &[1, 2]),
        (&[("service.cilium.io/global", "yes")], &[1, 2]),
        (&[("io.cilium/global-service", "true")], &[1, 2, 3, 4]),
        (&[("service.cilium.io/global", "false"), ("io.cilium/global-service", "true")], &[1, 2]),
        (&[("service.cilium.io/affinity", "remote")], &[1, 2]),
        (&[("service.cilium.io/shared", "true")], &[1, 2]),
    ] {
        annotate(&writer, annotations);
        assert_eq!(chosen(&writer), (expected.to_vec(), expected.to_vec()), "{annotations:?}");
    }
}

#[test]
fn preferred_clusters_are_used_while_one_backend_is_healthy() {
    let writer = world();
    let state = |rows: &[Backend]| {
        let mut txn = writer.write();
        rows.iter().for_each(|row| {
            txn.set_backends_of_cluster(&web(), Source::ClusterMesh, row.cluster_id, vec![row.clone()])
        });
        txn.commit();
    };
    let well = |writer: &ServicesWriter, address: &str, healthy| {
        let mut txn = writer.write();
        assert!(txn.set_health(
            &web(),
            &address.parse().unwrap(),
            healthy,
            std::time::SystemTime::UNIX_EPOCH
        ));
        txn.commit();
    };
    for key in ["service.cilium.io/affinity", "io.cilium/service-affinity"] {
        let affinity = |value| annotate(&writer, &[("service.cilium.io/global", "true"), (key, value)]);
        for value in ["none", "", "nearest"] {
            affinity(value);
            assert_eq!(chosen(&writer).0, [1, 2, 3, 4], "{value}");
        }
        affinity("local");
        assert_eq!(chosen(&writer), (vec![1, 2], vec![1, 2]));
        affinity("Remote");
        assert_eq!(chosen(&writer).0, [3, 4]);
    }
    // One of two is enough; if both are unhealthy, both sides serve.
    well(&writer, "10.1.0.3:80/TCP", false);
    assert_eq!(chosen(&writer).0, [3, 4]);
    let leaving = |row: Backend| Backend { state: BackendState::Terminating, ..row };
    state(&[leaving(of_cluster(2, "10.2.0.4:80/TCP"))]);
    assert_eq!(chosen(&writer).0, [1, 2, 3, 4]);
    well(&writer, "10.1.0.3:80/TCP", true);
    assert_eq!(chosen(&writer).0, [3, 4]);
    annotate(&writer, &[("service.cilium.io/global", "true"), ("service.cilium.io/affinity", "local")]);
    well(&writer, "10.0.0.1:80/TCP", false);
    assert_eq!(chosen(&writer).0, [1, 2]);
    well(&writer, "10.0.0.2:80/TCP", false);
    assert_eq!(chosen(&writer).0, [1, 2, 3, 4]);
}

/// A backend that is not checked yet does not exclude others.
#[test]
fn of_checked_services_those_count_that_were_checked() {
    let writer = world();
    annotate(&writer, &[("service.cilium.io/global", "true"), ("service.cilium.io/affinity", "local")]);
    writer.set_is_service_health_checked(|_| true);
    let mut txn = writer.write();
    txn.set_health(&web(), &"10.1.0.3:80/TCP".parse().unwrap(), true, std::time::SystemTime::UNIX_EPOCH);
    txn.commit();
    assert_eq!(chosen(&writer), (vec![3], vec![1, 2, 3, 4]));
    let mut txn = writer.write();
    txn.set_health(&web(), &"10.0.0.2:80/TCP".parse().unwrap(), true, std::time::SystemTime::UNIX_EPOCH);
    txn.commit();
    assert_eq!(chosen(&writer), (vec![2], vec![1, 2, 3, 4]));
}
