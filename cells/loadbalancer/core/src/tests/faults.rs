//! Failures at every operation of an update: full maps, map errors, crashes; and entries that another program changes.

use super::model::{actual, expected, leads_nowhere};
use super::*;
use crate::reconciler::balancer::UpsertError;
use crate::testing::Fault;

fn with_backends(addresses: &[&str]) -> State {
    let endpoints: Vec<String> = addresses.iter().map(|ip| format!("{{addresses: [{ip}]}}")).collect();
    state(&format!(
        "services:\n- metadata: {{name: web}}\n  spec: {{clusterIP: 10.96.0.1, sessionAffinity: ClientIP, ports: [{{port: 80}}]}}\n\
         endpoints:\n- metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}\n  addressType: IPv4\n  \
         ports: [{{port: 8080}}]\n  endpoints: [{}]\n",
        endpoints.join(", ")
    ))
}

/// A crash at each operation of a change from one set of backends to another, then a restart: the maps become those of
/// the new set, and no slot ever refers to a missing backend.
#[test]
fn a_crash_at_any_operation_converges_to_the_right_maps() {
    let sets: [&[&str]; 4] = [
        &["10.0.0.1", "10.0.0.2", "10.0.0.3"],
        &["10.0.0.4", "10.0.0.5"],
        &[],
        &["10.0.0.1", "10.0.0.6", "10.0.0.7", "10.0.0.8"],
    ];
    for from in sets {
        for to in sets {
            for kill in 0.. {
                let maps = Arc::<FakeMaps>::default();
                let (writer, to) = (writer(), with_backends(to));
                writer.replace(Source::Api, with_backends(from));
                let mut balancer = Balancer::restore(maps.clone()).unwrap();
                balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
                maps.watch(|rows| assert_eq!(leads_nowhere(rows), None));
                writer.replace(Source::Api, to.clone());
                maps.fail(Fault::From(kill));
                let done = balancer.update(&desired(&writer)).into_iter().all(|result| result.is_ok());
                maps.fail(Fault::Never);
                brought(&maps, &writer);
                assert_eq!(actual(&maps.dump()), expected(&to), "killed after {kill} operations");
                if done {
                    break;
                }
            }
        }
    }
}

/// A failure at each operation of a change, and another desired state by the time of the retry: no entry of the failed
/// change is left, even without a prune.
#[test]
fn a_failure_at_any_operation_leaves_no_entries() {
    let sets: [&[&str]; 3] =
        [&["10.0.0.1"], &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"], &["10.0.0.5", "10.0.0.2"]];
    for (from, to) in sets.into_iter().flat_map(|from| sets.map(|to| (from, to))) {
        for then in sets.into_iter().map(Some).chain([None]) {
            for fault in 0.. {
                let (maps, writer) = (Arc::<FakeMaps>::default(), writer());
                let mut balancer = Balancer::restore(maps.clone()).unwrap();
                let mut publish = |content: State| {
                    writer.replace(Source::Api, content);
                    balancer.update(&desired(&writer)).into_iter().all(|result| result.is_ok())
                };
                assert!(publish(with_backends(from)));
                // All further operations fail: the retry within the same update must not succeed.
                maps.fail(Fault::From(fault));
                let done = publish(with_backends(to));
                maps.fail(Fault::Never);
                match then {
                    Some(then) => {
                        assert!(publish(with_backends(then)));
                        assert_eq!(
                            actual(&maps.dump()),
                            expected(&with_backends(then)),
                            "fault after {fault}"
                        );
                    }
                    None => {
                        let address = desired(&writer)[0].address;
                        balancer.delete(&[address]).into_iter().for_each(|result| result.unwrap());
                        assert_eq!(text(&maps.dump()), [] as [String; 0], "fault after {fault}");
                    }
                }
                if done {
                    break;
                }
            }
        }
    }
}

/// The second slot gets a terminating backend only after the frontend's count has excluded that slot.
#[test]
fn a_slot_leaves_the_count_before_it_gets_another_kind_of_backend() {
    let of = |endpoints: &str| {
        state(&format!(
            "services:\n- metadata: {{name: web}}\n  spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}\n\
             endpoints:\n- metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}\n  \
             addressType: IPv4\n  ports: [{{port: 8080}}]\n  endpoints: [{endpoints}]\n"
        ))
    };
    let maps = Arc::<FakeMaps>::default();
    let writer = writer();
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    let mut bring = || balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    writer.replace(Source::Api, of("{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}"));
    bring();
    maps.watch(|rows| {
        for (key, value) in rows {
            let (Key::Service(address, 0), Value::Service(row)) = (key, value) else { continue };
            for slot in 1..=row.count {
                let Some(Value::Service(row)) = rows.get(&Key::Service(*address, slot)) else {
                    panic!("no slot")
                };
                assert_ne!(row.backend_id, 3, "the terminating one");
            }
        }
    });
    let leaving = "{addresses: [10.0.0.3], conditions: {ready: false, serving: true, terminating: true}}";
    writer.replace(Source::Api, of(&format!("{{addresses: [10.0.0.2]}}, {leaving}")));
    bring();
    assert!(text(&maps.dump()).iter().any(|row| row.contains("SLOT=2 BEID=3")));
}

fn refusal(result: Result<u16, UpsertError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_service_that_does_not_fit_is_not_written_at_all() {
    // Each map holds four entries: in the service map a wildcard, a master and two slots.
    let maps = Arc::new(FakeMaps::with_capacity(4));
    let writer = writer();
    writer.replace(Source::Api, with_backends(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    let error = refusal(balancer.update(&desired(&writer)).remove(0));
    assert_eq!(
        error,
        "map cilium_lb4_services_v2 is full: it holds at most 4 entries, this frontend needs 1 more; \
         delete services or set a larger bpf-lb-service-map-max"
    );
    assert_eq!(text(&maps.dump()), [] as [String; 0]);
    let fits = with_backends(&["10.0.0.1", "10.0.0.2"]);
    writer.replace(Source::Api, fits.clone());
    assert_eq!(balancer.update(&desired(&writer)).remove(0).unwrap(), 1);
    assert_eq!(actual(&maps.dump()), expected(&fits));
    // A frontend that is written keeps its entries when it grows beyond the capacity.
    writer.replace(Source::Api, with_backends(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    refusal(balancer.update(&desired(&writer)).remove(0));
    assert_eq!(actual(&maps.dump()), expected(&fits));
}

#[test]
fn backends_of_a_full_map_can_be_exchanged() {
    let service = |name: &str, ip: &str, backends: [u8; 3]| {
        let endpoints = backends.map(|last| format!("{{addresses: [10.0.0.{last}]}}")).join(", ");
        let (service, slice) = (
            format!("- metadata: {{name: {name}}}\n  spec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n"),
            format!(
                "- metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {name}}}}}\n  addressType: IPv4\n  \
                 ports: [{{port: 8080}}]\n  endpoints: [{endpoints}]\n"
            ),
        );
        (service, slice)
    };
    let both = |b: [u8; 3]| {
        let (a, b) = (service("a", "10.96.0.1", [1, 2, 3]), service("b", "10.96.0.2", b));
        state(&format!("services:\n{}{}endpoints:\n{}{}", a.0, b.0, a.1, b.1))
    };
    // Each map holds ten entries: the service map is full, the backend map has six.
    let maps = Arc::new(FakeMaps::with_capacity(10));
    let writer = writer();
    writer.replace(Source::Api, both([4, 5, 6]));
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    // Fill the backend map with four orphans: they must be evicted for the new backends.
    maps.tamper(|rows| {
        for id in 100..104 {
            let address = LbAddress::new([10, 9, 0, id as u8].into(), 1, crate::Protocol::Tcp);
            let value = crate::lbmap::rows::BackendValue { address, state: 0, zone: 0 };
            rows.insert(Key::Backend(crate::lbmap::rows::Family::V4, id), Value::Backend(value));
        }
    });
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    let wanted = both([7, 8, 9]);
    writer.replace(Source::Api, wanted.clone());
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    balancer.prune().unwrap();
    assert_eq!(actual(&maps.dump()), expected(&wanted));
}

/// A restart after a change from two scopes to one: the prune runs while writing the external scope's entry fails.
#[test]
fn a_prune_does_not_leave_an_external_scope_that_leads_nowhere() {
    let service = |policy: &str| {
        state(&format!(
            "services:\n- metadata: {{name: web}}\n  spec: {{type: LoadBalancer, clusterIP: 10.96.0.1, \
             externalTrafficPolicy: {policy}, ports: [{{port: 80}}]}}\n  \
             status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.1}}]}}}}\n"
        ))
    };
    let (maps, writer) = (Arc::<FakeMaps>::default(), writer());
    writer.replace(Source::Api, service("Local"));
    brought(&maps, &writer);
    assert!(text(&maps.dump()).iter().any(|row| row.contains("203.0.113.1:80/TCP/i SLOT=0")));
    maps.watch(|rows| assert_eq!(leads_nowhere(rows), None));
    writer.replace(Source::Api, service("Cluster"));
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    maps.fail(Fault::From(0));
    assert!(balancer.update(&desired(&writer)).into_iter().any(|result| result.is_err()));
    maps.fail(Fault::Never);
    balancer.prune().unwrap();
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    assert_eq!(actual(&maps.dump()), expected(&service("Cluster")));
}

#[test]
fn drifted_entries_are_repaired() {
    let maps = Arc::<FakeMaps>::default();
    let writer = writer();
    let content = with_backends(&["10.0.0.1", "10.0.0.2"]);
    writer.replace(Source::Api, content.clone());
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    maps.tamper(|rows| {
        let slot = *rows.keys().find(|key| matches!(key, Key::Service(_, 2))).unwrap();
        rows.remove(&slot);
        rows.insert(Key::AffinityMatch(77, 77), Value::Present);
        let reverse = Value::ReverseNat([192, 0, 2, 1].into(), 1);
        rows.insert(Key::ReverseNat(crate::lbmap::rows::Family::V4, 1), reverse);
    });
    let damaged = balancer.prune().unwrap().damaged;
    assert_eq!(damaged.len(), 1);
    balancer.update(&desired(&writer)).into_iter().for_each(|result| _ = result.unwrap());
    assert_eq!(actual(&maps.dump()), expected(&content));
}

/// With the reconciler: a fault shows in the row's status, and the retry succeeds.
#[tokio::test(start_paused = true)]
async fn the_status_reports_a_failure_until_the_retry_succeeds() {
    let maps = Arc::<FakeMaps>::default();
    let writer = writer();
    let ops = LbOps {
        balancer: Balancer::restore(maps.clone()).unwrap(),
        comparisons: Arc::default(),
        context: ReconcileContext { settings: settings(), addresses: None, frontends: writer.frontends() },
        unserved: Default::default(),
    };
    let (_, reconciler) = Reconciler::builder(writer.frontends_for_statuses())
        .status(|frontend: &Frontend| &frontend.status, |frontend, status| frontend.status = status)
        .merge(|current, reconciled| current.id = reconciled.id)
        .batch_ops(ops)
        .build();
    let frontends: Table<Frontend> = writer.frontends();
    let address = "10.96.0.1:80/TCP".parse().unwrap();
    let content = with_backends(&["10.0.0.1"]);
    let test = async {
        maps.fail(Fault::From(2));
        writer.replace(Source::Api, content.clone());
        let failed = frontends.wait_for(Frontend::by_address(&address), |f| f.status.error().is_some()).await;
        assert_eq!((failed.status.error(), failed.id), (Some("injected fault"), 0));
        maps.fail(Fault::Never);
        let done = frontends.wait_for(Frontend::by_address(&address), |f| f.status.is_done()).await;
        assert_eq!(done.id, 1);
        assert_eq!(actual(&maps.dump()), expected(&content));
        writer.replace(Source::Api, State::default());
        while !maps.dump().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    reconciler.run_until(test).await;
}

/// A restart that takes many rounds, with a prune after the first, writes and deletes nothing.
#[tokio::test(start_paused = true)]
async fn a_start_of_many_rounds_leaves_the_maps_as_they_are() {
    let service = |n: u8| {
        let spec =
            format!("{{type: NodePort, clusterIP: 10.96.0.{n}, ports: [{{port: 80, nodePort: 300{n}}}]}}");
        let slice = format!("{{name: s{n}-1, labels: {{kubernetes.io/service-name: s{n}}}}}");
        let ends = format!(
            "addressType: IPv4\n  ports: [{{port: 8080}}]\n  endpoints: [{{addresses: [10.0.0.{n}]}}]"
        );
        (format!("- metadata: {{name: s{n}}}\n  spec: {spec}\n"), format!("- metadata: {slice}\n  {ends}\n"))
    };
    let (services, slices): (String, String) = (10..30).map(service).unzip();
    let content = state(&format!("services:\n{services}endpoints:\n{slices}"));
    let maps = Arc::<FakeMaps>::default();
    for start in 0..2 {
        let writer = writer();
        let initializers = writer.register("source");
        let ops = LbOps {
            balancer: Balancer::restore(maps.clone()).unwrap(),
            comparisons: Arc::default(),
            context: ReconcileContext {
                settings: settings(),
                addresses: None,
                frontends: writer.frontends(),
            },
            unserved: Default::default(),
        };
        writer.replace(Source::Api, content.clone());
        writer.complete(initializers);
        let (handle, reconciler) = Reconciler::builder(writer.frontends_for_statuses())
            .status(|frontend: &Frontend| &frontend.status, |frontend, status| frontend.status = status)
            .merge(|current, reconciled| current.id = reconciled.id)
            .round(3, 1000, 1)
            .batch_ops(ops)
            .build();
        let (before, operations) = (maps.dump(), maps.operations());
        let frontends = writer.frontends();
        let test = async {
            handle.wait_until(frontends.revision(&frontends.snapshot())).await.unwrap();
            handle.pruned().await.unwrap();
        };
        reconciler.run_until(test).await;
        assert_eq!(actual(&maps.dump()), expected(&content));
        if start > 0 {
            assert_eq!((maps.operations(), maps.dump()), (operations, before));
        }
    }
}

/// A frontend has grown beyond the capacity while no agent ran: a prune keeps its entries.
#[test]
fn a_prune_keeps_entries_of_frontends_that_wait_for_capacity() {
    let maps = Arc::new(FakeMaps::with_capacity(4));
    let before = with_backends(&["10.0.0.1", "10.0.0.2"]);
    let writer = writer();
    writer.replace(Source::Api, before.clone());
    brought(&maps, &writer);
    writer.replace(Source::Api, with_backends(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    refusal(balancer.update(&desired(&writer)).remove(0));
    balancer.prune_but(|_| true).unwrap();
    assert_eq!(actual(&maps.dump()), expected(&before));
}
