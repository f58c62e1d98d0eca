//! Policies in the REST API.

use super::*;

fn listed(world: &World) -> String {
    let list = crate::rest::list(&world.policies, &world.writer.backends(), Some(&world.pods));
    serde_json::to_string(&list).unwrap()
}

#[test]
fn policies_by_name_with_their_pods() {
    let mut world = World::new();
    assert_eq!(listed(&world), "[]");
    let ports = || vec![port(5300, "UDP", "dns"), port(8080, "TCP", "web")];
    let named = at_address("fd00::1", vec![port(53, "UDP", "dns"), port(80, "TCP", "web")], ports());
    world.policy("b", Some(named));
    world.policy("a", Some(of_service("s", vec![], vec![port(5300, "UDP", "dns")])));
    world.settle();
    let (a, without) = (
        r#"{"frontend-mappings":[],"frontend-type":"clusterIP + all svc ports","lrp-type":"svc","name":"a","namespace":"ns","service-id":"ns/s","uid":"u"}"#,
        r#"{"frontend-mappings":[{"backends":[],"frontend-address":{"ip":"fd00::1","port":53,"protocol":"UDP"}},{"backends":[],"frontend-address":{"ip":"fd00::1","port":80,"protocol":"TCP"}}],"frontend-type":"IP + named ports","lrp-type":"addr","name":"b","namespace":"ns","uid":"u"}"#,
    );
    assert_eq!(listed(&world), format!("[{a},{without}]"));

    world.pod("p", Some(pod("p", "a", "fd00::9", true)));
    world.policy("b", Some(at_address("fd00::1", vec![port(53, "UDP", "")], vec![port(5300, "UDP", "")])));
    world.settle();
    let with = r#"{"frontend-mappings":[{"backends":[{"backend-address":{"ip":"fd00::9","port":5300,"protocol":"UDP","state":"active"},"pod-id":"ns/p"}],"frontend-address":{"ip":"fd00::1","port":53,"protocol":"UDP"}}],"frontend-type":"IP + port","lrp-type":"addr","name":"b","namespace":"ns","uid":"u"}"#;
    assert_eq!(listed(&world), format!("[{a},{with}]"));
}
