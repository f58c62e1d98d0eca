//! A service with changing backends, from the objects of the cluster to maps in memory.

use std::sync::Arc;

use k8s_tables::Row;
use k8s_tables::core::{Endpoint, EndpointPort, EndpointSlice, Service, ServicePort};
use loadbalancer::testing::{Direct, FakeMaps};

use crate::count;

const SERVICES: usize = 20;
const BACKENDS: usize = 20;

fn service(number: usize) -> Row<Service> {
    let mut object = Service::default();
    object.metadata.name = format!("service-{number}").into();
    object.metadata.namespace = "default".into();
    object.spec.r#type = "ClusterIP".into();
    let ip = format!("10.96.0.{number}");
    object.spec.cluster_ip = ip.as_str().into();
    object.spec.cluster_ips = [ip.into()].into();
    let port =
        ServicePort { name: "http".into(), port: 80, protocol: "TCP".into(), ..ServicePort::default() };
    object.spec.ports = [port].into();
    Row::of(object)
}

/// The endpoints of a service, of which one may not be ready.
fn slice(service: usize, out: Option<usize>) -> Row<EndpointSlice> {
    let mut object = EndpointSlice::default();
    object.metadata.name = format!("service-{service}-0").into();
    object.metadata.namespace = "default".into();
    let labels = [(k8s_tables::SERVICE_NAME, format!("service-{service}"))];
    object.metadata.labels = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
    object.address_type = "IPv4".into();
    let port = EndpointPort { name: Some("http".into()), port: Some(8080), protocol: Some("TCP".into()) };
    object.ports = [port].into();
    let endpoint = |backend: usize| {
        let addresses = [format!("10.0.{service}.{backend}").into()].into();
        let mut endpoint = Endpoint { addresses, node_name: Some("other".into()), ..Endpoint::default() };
        endpoint.conditions.ready = Some(out != Some(backend));
        endpoint
    };
    object.endpoints = (0..BACKENDS).map(endpoint).collect::<Vec<_>>();
    Row::of(object)
}

#[test]
fn a_backend_goes_or_comes() {
    count::check("service update", "loadbalancer::a_backend_goes_or_comes", |rounds| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let run = Direct::run(Arc::new(FakeMaps::default()), async |direct: &mut Direct| {
            direct
                .services
                .transact(|txn| (0..SERVICES).for_each(|number| drop(txn.insert(service(number)))));
            direct
                .slices
                .transact(|txn| (0..SERVICES).for_each(|number| drop(txn.insert(slice(number, None)))));
            direct.reflect();
            direct.reconciled().await;
            for round in 0..rounds as usize {
                let out = (round % 2 == 0).then_some(round / 2 % BACKENDS);
                direct.slices.transact(|txn| drop(txn.insert(slice(7, out))));
                direct.reflect();
                direct.reconciled().await;
            }
        });
        runtime.block_on(run).unwrap();
    });
}
