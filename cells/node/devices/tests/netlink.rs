//! Requests against the real kernel, in namespaces of their own.

use std::net::IpAddr;
use std::time::Instant;

use devices::rtnetlink::{LinkChange, NeighborSpec, Netlink, RouteSpec, VethPeer, VethSpec};
use devices::{SCOPE_LINK, TABLE_MAIN};
use test_kit::{Sandbox, require_root};

#[test]
fn a_pod_interface_from_birth_to_deletion() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let pod = sandbox.netns("pod").unwrap();
    let mut host = Netlink::open().unwrap();
    let mac = [0x02, 0, 0, 0, 0, 1];
    let made = host
        .add_veth(&VethSpec {
            name: "lxc1",
            mac: Some(mac),
            mtu: Some(1400),
            group: Some(77),
            up: false,
            peer: VethPeer { name: "eth0", mtu: Some(1400), netns: Some(pod.fd()), ..VethPeer::default() },
        })
        .unwrap();
    assert_eq!((made.name.as_str(), made.kind.as_str()), ("lxc1", "veth"));
    assert_eq!(made.hardware_addr.ethernet(), Some(mac));
    assert_eq!((made.mtu, made.group, made.is_up()), (1400, 77, false));
    host.set_link_up(made.index, true).unwrap();
    host.add_alt_name(made.index, "a-rather-long-other-name").unwrap();
    let found = host.link_by_name("a-rather-long-other-name").unwrap();
    assert!(found.is_up());
    assert_eq!(found.alt_names, ["a-rather-long-other-name"]);
    assert_eq!(host.link_by_index(made.index).unwrap().name, "lxc1");
    assert_eq!(host.find_link("nosuch").unwrap(), None);

    pod.run(|| {
        let mut nl = Netlink::open().unwrap();
        let eth0 = nl.link_by_name("eth0").unwrap();
        nl.set_link_up(eth0.index, true).unwrap();
        for address in ["10.1.0.9/32", "fd00::9/128"] {
            nl.add_address(eth0.index, address.parse::<ipnetwork::IpNetwork>().unwrap()).unwrap();
        }
        let router: IpAddr = [10, 1, 0, 1].into();
        let on_link = RouteSpec::on_link("10.1.0.1/32".parse().unwrap(), eth0.index);
        nl.replace_route(&on_link).unwrap();
        let default = RouteSpec {
            mtu: 1350,
            src: Some([10, 1, 0, 9].into()),
            ..RouteSpec::on_link("0.0.0.0/0".parse().unwrap(), eth0.index).via(router)
        };
        nl.replace_route(&default).unwrap();
        nl.replace_route(&default).unwrap();
        let default6 = RouteSpec::on_link("::/0".parse().unwrap(), eth0.index);
        nl.replace_route(&default6).unwrap();
        let neighbor = NeighborSpec { link_index: eth0.index, ip: router, mac };
        nl.replace_neighbor(&neighbor).unwrap();

        let routes = nl.routes().unwrap();
        let main: Vec<_> = routes.iter().filter(|r| r.key.table == TABLE_MAIN).collect();
        let v4 = main.iter().find(|r| r.is_default() && r.gateway.is_some());
        assert_eq!(v4.map(|r| (r.gateway, r.mtu)), Some((Some(router), 1350)), "{main:?}");
        let direct = main.iter().find(|r| r.key.dst == on_link.dst).unwrap();
        assert_eq!(direct.scope, SCOPE_LINK);
        assert_eq!(main.iter().filter(|r| r.is_default()).count(), 2);
        let neighbors = nl.neighbors().unwrap();
        let entry = neighbors.iter().find(|n| n.ip == router).unwrap();
        assert_eq!(entry.hardware_addr.ethernet(), Some(mac));
        assert_eq!(entry.row()[4], "PERMANENT");
        let addresses = nl.addresses(eth0.index).unwrap();
        assert!(addresses.contains(&"fd00::9/128".parse().unwrap()), "{addresses:?}");

        nl.delete_neighbor(eth0.index, router).unwrap();
        nl.delete_route(&default).unwrap();
        assert!(nl.delete_route(&default).unwrap_err().is_not_found());
        nl.delete_address(eth0.index, "fd00::9/128".parse().unwrap()).unwrap();
        let gone = nl.delete_address(eth0.index, "fd00::9/128".parse().unwrap());
        assert!(gone.unwrap_err().is_not_found());
    });

    let again = host.add_veth(&VethSpec {
        name: "lxc1",
        peer: VethPeer { name: "x", ..VethPeer::default() },
        ..VethSpec::default()
    });
    let error = again.unwrap_err();
    assert!(error.is_exists(), "{error}");
    assert_eq!(error.to_string(), "netlink: add veth lxc1 with peer x: File exists (os error 17)");
    let renamed = LinkChange { name: Some("lxc2"), up: Some(false), ..LinkChange::default() };
    host.change_link(made.index, &renamed).unwrap();
    assert_eq!(host.link_by_index(made.index).unwrap().name, "lxc2");
    host.delete_link(made.index).unwrap();
    assert_eq!(host.find_link("lxc2").unwrap(), None);
    assert!(host.delete_link(made.index).unwrap_err().is_not_found());
}

#[test]
fn links_are_deleted_by_group() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let pod = sandbox.netns("pod").unwrap();
    let mut host = Netlink::open().unwrap();
    let names: Vec<(String, String)> = (0..50).map(|i| (format!("lxc{i}"), format!("eth{i}"))).collect();
    let start = Instant::now();
    for (i, (name, peer)) in names.iter().enumerate() {
        host.add_veth(&VethSpec {
            name,
            group: Some(if i % 2 == 0 { 5 } else { 6 }),
            peer: VethPeer { name: peer, netns: Some(pod.fd()), ..VethPeer::default() },
            ..VethSpec::default()
        })
        .unwrap();
    }
    let made = start.elapsed();
    let start = Instant::now();
    host.delete_links_in_group(5).unwrap();
    let deleted = start.elapsed();
    let left: Vec<String> = host.links().unwrap().into_iter().map(|l| l.name).collect();
    assert_eq!(left.len(), 26, "lo and the other group: {left:?}");
    assert!(left.contains(&"lxc1".to_owned()) && !left.contains(&"lxc0".to_owned()));
    assert!(host.delete_links_in_group(0).is_err());
    // One by one, 25 deletions take 16 to 30 ms each.
    assert!(deleted.as_millis() < 400, "created in {made:?}, deleted in {deleted:?}");
}
