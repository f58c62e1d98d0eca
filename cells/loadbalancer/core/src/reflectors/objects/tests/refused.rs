//! Refused services.

use super::*;
use crate::model::frontend::{FrontendParams, FrontendType};
use crate::model::name::ServiceName;
use crate::model::service::Service;
use crate::model::source::Source;

/// An owner that is neither a service nor a pod of the cluster, such as a local redirect policy.
#[test]
fn a_refused_service_is_retried_when_an_owner_of_another_source_goes() {
    let mut cluster = Cluster::new(&[]);
    let holder = ServiceName::new("ns", "holder");
    let writer = cluster.writer.clone();
    let hold = |address: &str| {
        let params = FrontendParams {
            address: address.parse().unwrap(),
            kind: FrontendType::LocalRedirect,
            port_name: "".into(),
            service_port: 80,
        };
        let mut txn = writer.write();
        txn.upsert_service(Service::new(holder.clone(), Source::Local), vec![params]).unwrap();
        txn.commit();
    };
    hold("10.96.0.1:80/TCP");
    cluster.service(service("s", "10.96.0.1", json!({})));
    assert_eq!(cluster.names(), ["ns/holder"]);
    assert_eq!(cluster.reflector.errors().len(), 1);
    assert!(!cluster.reflector.round().changed, "nothing has happened");
    hold("0.0.0.0:8080/TCP");
    assert_eq!(cluster.names(), ["ns/holder", "ns/s"], "its address is free");
    assert_eq!(cluster.reflector.errors(), [] as [String; 0]);

    cluster.pod(pod("u", "Running", json!([{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}])));
    cluster.host_ports.round();
    assert_eq!(cluster.names(), ["ns/holder", "ns/s"]);
    assert!(!cluster.host_ports.round().0);
    let mut txn = writer.write();
    txn.delete_service(&holder);
    txn.commit();
    assert!(cluster.host_ports.round().0);
    assert_eq!(cluster.names(), ["ns/dns:host-port:8080:u", "ns/s"]);
}
