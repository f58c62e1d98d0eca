//! The agent's requests to a server, and the permissions of `config/roles.yaml`.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use cluster_stage::{StageOptions, User};
use integration_tests::{Cluster, Right, asked, granted};
use k8s_types::schema::custom_resource_definitions;
use test_kit::require_root;

use super::objects::{KINDS, list, object};

/// Kinds that Cilium's chart lets an agent read for features that this one lacks; a new reader removes its kind.
const LATER: [&str; 9] = [
    "ciliumbgpadvertisements",
    "ciliumbgpnodeconfigs",
    "ciliumbgppeerconfigs",
    "ciliumdatapathplugins",
    "ciliumegressgatewaypolicies",
    "ciliumendpointslices",
    "ciliuml2announcementpolicies",
    "ciliumloadbalancerippools",
    "ciliumpodippools",
];

#[test]
fn the_agent_follows_what_its_roles_allow_and_they_allow_no_more() {
    require_root!();
    let options = StageOptions { rbac: true, audit: true, ..StageOptions::default() };
    let mut cluster = Cluster::with(&options, &custom_resource_definitions());
    cluster.stage.apply(include_str!("../../../../config/roles.yaml")).unwrap();
    let sources = format!(
        r#"[{{"kind":"config-map","namespace":"kube-system","name":"cilium-config"}},
            {{"kind":"cilium-node-config","namespace":"kube-system","name":"all"}},
            {{"kind":"node","name":"{}"}}]"#,
        Cluster::NODE
    );
    cluster.node.config.insert("config-sources".to_owned(), sources);
    // Features that follow kinds of their own.
    for option in ["enable-local-redirect-policy", "enable-envoy-config"] {
        cluster.node.config.insert(option.to_owned(), "true".to_owned());
    }
    let write = |cluster: &Cluster, version| {
        let objects = KINDS.iter().flat_map(|kind| (0..3).map(move |number| object(*kind, number, version)));
        cluster.stage.apply(&list(objects.collect())).unwrap();
    };
    write(&cluster, 0);
    cluster.start();
    cluster.until_equal();
    for version in 0..2 {
        cluster.gate.cut();
        write(&cluster, version);
        thread::sleep(Duration::from_secs(1));
    }
    cluster.until_equal();
    // Lists again, by the same agent and by its next start.
    cluster.gate.hold();
    cluster.stage.kubectl(&["delete", "service,pod", "o-0", "--wait=false"]).unwrap();
    cluster.stage.compact().unwrap();
    cluster.stage.kill_api_server().unwrap();
    cluster.stage.start_api_server().unwrap();
    cluster.gate.cut();
    cluster.gate.open();
    cluster.until_equal();
    cluster.node.stop();
    cluster.start();
    cluster.until_equal();

    let (asked, refused) = asked(&cluster.stage, User::Agent);
    assert_eq!(refused, BTreeSet::new(), "the roles do not allow it");
    let granted = granted(&cluster.stage, User::Agent);
    assert_eq!(asked.difference(&granted).next(), None, "another role allows it");
    // The node's own object; other writes are the matter of another test.
    let is_known = |right: &Right| right.follows() || right.resource == "ciliumnodes";
    assert!(asked.iter().all(is_known), "{asked:?}");
    // The server determines which of the two verbs is used to follow objects.
    let followed = |rights: &BTreeSet<Right>| -> BTreeSet<(String, String)> {
        let rights = rights.iter().filter(|right| right.follows());
        rights.map(|right| (right.group.clone(), right.resource.clone())).collect()
    };
    let later = LATER.map(|plural| ("cilium.io".to_owned(), plural.to_owned()));
    let unused: Vec<_> = followed(&granted).difference(&followed(&asked)).cloned().collect();
    assert_eq!(unused, later, "the roles allow to follow what the agent does not");
}
