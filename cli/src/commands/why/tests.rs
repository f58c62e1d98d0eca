//! Paths over entries that a test gives.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use datapath_abi::{
    CtEntry, DIRECT_ROUTING, EndpointInfo, LbAffinity, LbService, MasqueradeAddresses, RemoteEndpointInfo,
    identity, ipcache_flag, ipv4_word, lb_algorithm, lb_flag, lb_flag2, lb_scope, lxc_flag, tuple_flag,
};

use super::Target;
use super::entries::{Backend, Entries, Frontend, Tuple};
use super::path::{DirectReturn, Flow, Hop, Masquerade, NoBackend, NodeFacts, Origin, Path, explain};

const POD: &str = "10.0.0.1";
const LOCAL: &str = "10.0.0.2:8080";
const REMOTE: &str = "10.0.1.2:8080";
const CLIENT: &str = "198.51.100.1";
const NODE: &str = "192.0.2.1";
const SERVICE: &str = "10.96.0.1:80";
/// The id of the service, as entries have it.
const ID: u16 = 7_u16.to_be();

#[derive(Clone, Default)]
struct Fake {
    endpoints: HashMap<IpAddr, EndpointInfo>,
    ipcache: HashMap<IpAddr, RemoteEndpointInfo>,
    services: HashMap<Frontend, LbService>,
    backends: HashMap<u32, Backend>,
    maglev: Option<Vec<u32>>,
    affinity: HashMap<IpAddr, LbAffinity>,
    source_range: Option<IpAddr>,
    connections: HashMap<Tuple, CtEntry>,
    translations: HashMap<Tuple, SocketAddr>,
    masquerade: Vec<(u32, MasqueradeAddresses)>,
    excluded: Option<IpAddr>,
}

impl Entries for Fake {
    fn endpoint(&self, ip: IpAddr) -> anyhow::Result<Option<EndpointInfo>> {
        Ok(self.endpoints.get(&ip).copied())
    }

    fn ipcache(&self, ip: IpAddr) -> anyhow::Result<Option<RemoteEndpointInfo>> {
        Ok(self.ipcache.get(&ip).copied())
    }

    fn service(&self, key: &Frontend) -> anyhow::Result<Option<LbService>> {
        Ok(self.services.get(key).copied())
    }

    fn backend(&self, id: u32, ipv4: bool) -> anyhow::Result<Option<Backend>> {
        Ok(self.backends.get(&id).copied().filter(|backend| backend.address.is_ipv4() == ipv4))
    }

    fn reverse_nat(&self, id: u16, _: bool) -> anyhow::Result<Option<SocketAddr>> {
        let of = |(key, row): (&Frontend, &LbService)| (row.rev_nat_index == id).then_some(key.address);
        Ok(self.services.iter().find_map(of))
    }

    fn maglev(&self, id: u16, _: bool) -> anyhow::Result<Option<Vec<u32>>> {
        Ok(self.maglev.clone().filter(|_| id == ID))
    }

    fn affinity(&self, client: IpAddr, _: u16) -> anyhow::Result<Option<LbAffinity>> {
        Ok(self.affinity.get(&client).copied())
    }

    fn in_source_range(&self, client: IpAddr, _: u16) -> anyhow::Result<bool> {
        Ok(self.source_range == Some(client))
    }

    fn connection(&self, tuple: &Tuple) -> anyhow::Result<Option<CtEntry>> {
        Ok(self.connections.get(tuple).copied())
    }

    fn translation(&self, tuple: &Tuple) -> anyhow::Result<Option<SocketAddr>> {
        Ok(self.translations.get(tuple).copied())
    }

    fn masquerade(&self) -> anyhow::Result<Vec<(u32, MasqueradeAddresses)>> {
        Ok(self.masquerade.clone())
    }

    fn is_excluded_by_agent(&self, ip: IpAddr) -> anyhow::Result<bool> {
        Ok(self.excluded == Some(ip))
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn frontend(address: &str, slot: u16) -> Frontend {
    Frontend { address: socket(address), protocol: 6, scope: lb_scope::EXTERNAL, slot }
}

/// A node with a pod, and a service with a backend here and one on another node.
fn entries() -> Fake {
    let mut fake = Fake::default();
    for (address, lxc_id, flags) in [(POD, 11, 0), ("10.0.0.2", 12, 0), (NODE, 1, lxc_flag::HOST)] {
        fake.endpoints.insert(ip(address), EndpointInfo { lxc_id, flags, ..EndpointInfo::default() });
    }
    let own = RemoteEndpointInfo { sec_identity: identity::HOST, ..RemoteEndpointInfo::default() };
    fake.ipcache.insert(ip(NODE), own);
    let flags = lb_flag::ROUTABLE;
    let main = LbService { count: 2, rev_nat_index: ID, flags, ..LbService::default() };
    fake.services.insert(frontend(SERVICE, 0), main);
    for (id, address) in [(1, LOCAL), (2, REMOTE)] {
        let slot = LbService { backend_id: id, rev_nat_index: ID, ..LbService::default() };
        fake.services.insert(frontend(SERVICE, id as u16), slot);
        fake.backends.insert(id, Backend { address: socket(address), state: 0 });
    }
    let address = MasqueradeAddresses { ipv4: ipv4_word(NODE.parse().unwrap()), ..Default::default() };
    // A range of no address: nothing is excluded.
    let address = MasqueradeAddresses { excluded_ipv4: 1, excluded_ipv4_mask: 0, ..address };
    fake.masquerade = vec![(DIRECT_ROUTING, address), (2, address)];
    fake
}

fn facts() -> NodeFacts {
    NodeFacts { nodeport: true, masquerade: [Masquerade::Bpf; 2], ..NodeFacts::default() }
}

fn flow(origin: Origin, source: &str, destination: &str) -> Flow {
    Flow { origin, source: ip(source), sport: Some(4000), destination: socket(destination), protocol: 6 }
}

fn main_entry(fake: &mut Fake) -> &mut LbService {
    fake.services.get_mut(&frontend(SERVICE, 0)).unwrap()
}

fn path(flow: &Flow, facts: &NodeFacts, fake: &Fake) -> Path {
    explain(flow, facts, fake).unwrap()
}

fn starts(action: &str) -> impl Fn(&Hop) -> bool {
    move |hop| hop.action.starts_with(action)
}

fn destinations(path: &Path) -> Vec<String> {
    path.branches.iter().map(|branch| branch.destination.to_string()).collect()
}

#[test]
fn targets_are_ports_and_protocols() {
    let target = |text: &str| text.parse::<Target>().map(|t| (t.port, t.protocol));
    assert_eq!(target("80/TCP"), Ok((80, "tcp".to_owned())));
    assert_eq!(target("53"), Ok((53, "tcp".to_owned())));
    assert!(target("http/TCP").unwrap_err().contains("80/TCP"));
    assert!(target("70000/TCP").is_err());
}

#[test]
fn a_pod_may_get_each_backend_and_replies_get_the_address_of_the_service() {
    let path = path(&flow(Origin::Pod, POD, SERVICE), &facts(), &entries());
    insta::assert_snapshot!(path.text(), @r"

    Path on this node:
      pod's interface: 10.96.0.1:80 is a service
        by service 7 10.96.0.1:80: 2 backends
      pod's interface: a new connection gets a random backend
        by slots 1 to 2: backends 1, 2
      to 10.0.0.2:8080:
        pod's interface: delivered to endpoint 12, by its ingress policy
          by cilium_lxc 10.0.0.2: endpoint 12
        reply:
          pod's interface: source 10.0.0.2:8080 becomes 10.96.0.1:80
            by reverse NAT of service 7: 10.96.0.1:80
      to 10.0.1.2:8080:
        pod's interface: routed by the host's stack
        device, sent: masqueraded, as 10.0.1.2 is outside of the cluster; source becomes 192.0.2.1 by interface 2; its port stays if it is free and in the range of translations
        reply:
          device, received: destination becomes 10.0.0.1 again
          pod's interface: source 10.0.1.2:8080 becomes 10.96.0.1:80
            by reverse NAT of service 7: 10.96.0.1:80
    ");
}

#[test]
fn a_connection_an_affinity_and_a_table_decide_in_this_order() {
    let from_world = flow(Origin::Network, CLIENT, SERVICE);
    let mut fake = entries();
    let node = NodeFacts { maglev: true, ..facts() };
    fake.maglev = Some(vec![2; 5]);
    assert_eq!(destinations(&path(&from_world, &node, &fake)), [REMOTE]);
    // Pods have no table without an annotation.
    assert_eq!(destinations(&path(&flow(Origin::Pod, POD, SERVICE), &node, &fake)), [LOCAL, REMOTE]);
    main_entry(&mut fake).backend_id = lb_algorithm::RANDOM << lb_algorithm::SHIFT;
    assert_eq!(destinations(&path(&from_world, &node, &fake)), [LOCAL, REMOTE]);
    main_entry(&mut fake).backend_id = 0;
    fake.affinity.insert(ip(CLIENT), LbAffinity { backend_id: 1, ..LbAffinity::default() });
    assert_eq!(destinations(&path(&from_world, &node, &fake)), [REMOTE], "the service has no affinity");
    main_entry(&mut fake).flags |= lb_flag::SESSION_AFFINITY;
    assert_eq!(destinations(&path(&from_world, &node, &fake)), [LOCAL]);
    let tuple = from_world.tuple(tuple_flag::SERVICE).unwrap();
    fake.connections.insert(tuple, CtEntry { backend_id: 2, rev_nat_index: ID, ..CtEntry::default() });
    assert_eq!(destinations(&path(&from_world, &node, &fake)), [REMOTE]);
    let other_port = Flow { sport: Some(4001), ..from_world };
    assert_eq!(destinations(&path(&other_port, &node, &fake)), [LOCAL]);
}

#[test]
fn clients_outside_are_refused_by_range_scope_and_missing_backends() {
    let from_world = flow(Origin::Network, CLIENT, SERVICE);
    let text = |fake: &Fake| path(&from_world, &facts(), fake).text();
    let mut fake = entries();
    assert!(!text(&fake).contains("DROPPED"), "{}", text(&fake));
    main_entry(&mut fake).flags |= lb_flag::SOURCE_RANGE;
    assert!(text(&fake).contains("DROPPED, no source range has the client"), "{}", text(&fake));
    fake.source_range = Some(ip(CLIENT));
    assert!(!text(&fake).contains("DROPPED"), "{}", text(&fake));
    main_entry(&mut fake).flags2 = lb_flag2::QUARANTINED_OR_DENY;
    assert!(text(&fake).contains("DROPPED, a source range denies the client"), "{}", text(&fake));
    main_entry(&mut fake).flags = 0;
    assert!(text(&fake).contains("only clients of the cluster are served"), "{}", text(&fake));
    let mut fake = entries();
    main_entry(&mut fake).count = 0;
    let refused = path(&from_world, &facts(), &fake);
    assert!(refused.text().contains("the service has no active backend"), "{}", refused.text());
    assert!(refused.branches.is_empty());
    let without = |no_backend, from, fake: &Fake| {
        let node = NodeFacts { no_backend, ..facts() };
        path(&flow(from, if from == Origin::Pod { POD } else { CLIENT }, SERVICE), &node, fake)
    };
    for origin in [Origin::Network, Origin::Pod] {
        let text = |no_backend| without(no_backend, origin, &fake).text();
        assert!(text(NoBackend::Reject).contains("REFUSED") && text(NoBackend::Reject).contains("ICMP"));
        assert!(text(NoBackend::Drop).contains("(158)"), "{}", text(NoBackend::Drop));
        let routed = without(NoBackend::Route, origin, &fake);
        assert!(routed.text().contains("left to the node's routes"), "{}", routed.text());
        assert_eq!(destinations(&routed), [SERVICE]);
    }
    let sockets = NodeFacts { host_sockets: true, pod_sockets: true, ..facts() };
    let refused = path(&flow(Origin::Pod, POD, SERVICE), &sockets, &fake);
    assert!(refused.text().contains("EHOSTUNREACH"), "{}", refused.text());
    main_entry(&mut fake).flags = lb_flag::ROUTABLE | lb_flag::NODE_PORT | lb_flag::EXT_LOCAL_SCOPE;
    let local = without(NoBackend::Route, Origin::Network, &fake);
    assert!(local.text().contains("(158)"), "{}", local.text());
    // A node that does not serve at devices leaves the packet to the stack.
    let off = NodeFacts { nodeport: false, ..facts() };
    assert_eq!(destinations(&path(&from_world, &off, &fake)), [SERVICE]);
}

#[test]
fn a_client_outside_keeps_its_address_to_local_backends_and_by_direct_return() {
    let mut from_world = flow(Origin::Network, CLIENT, SERVICE);
    let mut fake = entries();
    let remote = |node: &NodeFacts, fake: &Fake| {
        let path = path(&from_world, node, fake);
        let [local, remote] = &path.branches[..] else { panic!("{path:#?}") };
        assert!(!local.hops.iter().any(|hop| hop.action.contains("source")), "{local:#?}");
        remote.clone()
    };
    let translated = "source becomes the direct-routing address of this node, 192.0.2.1";
    assert!(remote(&facts(), &fake).hops.iter().any(starts(translated)));
    let stays = "source 198.51.100.1 stays: the backend's node answers the client itself";
    let direct = NodeFacts { direct_return: DirectReturn::All, ..facts() };
    let branch = remote(&direct, &fake);
    assert!(branch.hops.iter().any(starts(stays)), "{branch:#?}");
    assert_eq!(branch.reply[0].at, "backend's node");
    let by_service = NodeFacts { direct_return: DirectReturn::ByService, ..facts() };
    assert!(remote(&by_service, &fake).hops.iter().any(starts(translated)));
    main_entry(&mut fake).flags2 |= lb_flag2::FORWARDING_DSR;
    assert!(remote(&by_service, &fake).hops.iter().any(starts(stays)));
    main_entry(&mut fake).flags2 = 0;

    // The entries of a connection name its port.
    let mapped = socket("192.0.2.1:40000");
    let leaves = Flow { destination: socket(REMOTE), ..from_world };
    fake.translations.insert(leaves.tuple(tuple_flag::OUT).unwrap(), mapped);
    let reply = Tuple { source: socket(REMOTE), destination: mapped, protocol: 6, flags: tuple_flag::IN };
    fake.translations.insert(reply, socket("198.51.100.1:4000"));
    let branch = path(&from_world, &facts(), &fake).branches.remove(1);
    assert!(
        branch.hops.iter().any(starts("source 198.51.100.1:4000 becomes 192.0.2.1:40000")),
        "{branch:#?}"
    );
    let back = "destination 192.0.2.1:40000 becomes 198.51.100.1:4000 again";
    assert_eq!(branch.reply[0].action, back);
    fake.masquerade.clear();
    from_world.sport = None;
    let branch = path(&from_world, &facts(), &fake).branches.remove(1);
    assert!(
        branch.hops.iter().any(starts("DROPPED, this node has no direct-routing address")),
        "{branch:#?}"
    );
}

#[test]
fn packets_to_other_nodes_keep_the_port_of_the_frontend_by_ipip() {
    const KEPT: &str = "10.0.1.2:80";
    let from_world = flow(Origin::Network, CLIENT, SERVICE);
    let mut fake = entries();
    let info =
        RemoteEndpointInfo { flags: ipcache_flag::HAS_TUNNEL_ENDPOINT, ..RemoteEndpointInfo::default() };
    fake.ipcache.insert(ip("10.0.1.2"), info);
    let by_option = NodeFacts { direct_return: DirectReturn::All, tunnel: true, ..facts() };
    let ipip = NodeFacts { has_outer_headers: true, ..by_option.clone() };
    insta::assert_snapshot!(path(&from_world, &ipip, &fake).text(), @r"

    Path on this node:
      device, received: 10.96.0.1:80 is a service
        by service 7 10.96.0.1:80: 2 backends
      device, received: a new connection gets a random backend
        by slots 1 to 2: backends 1, 2
      device, received: packets to 10.0.1.2 keep port 80: IPIP carries no other
        by backend 2: 10.0.1.2:8080
      to 10.0.0.2:8080:
        device, received: routed by the host's stack to cilium_host, delivered to endpoint 12, by its ingress policy
          by cilium_lxc 10.0.0.2: endpoint 12
        reply:
          backend's interface: source 10.0.0.2:8080 becomes 10.96.0.1:80
            by reverse NAT of service 7: 10.96.0.1:80
      to 10.0.1.2:80:
        device, received: destination 10.96.0.1:80 stays, by direct return with IPIP
        device, received: source 198.51.100.1 stays: the backend's node answers the client itself
        device, received: sent in an outer IP header to 10.0.1.2, by the host's route there
        reply:
          backend's node: source 10.0.1.2:80 becomes 10.96.0.1:80
            by reverse NAT of service 7: 10.96.0.1:80
    ");
    assert_eq!(destinations(&path(&from_world, &by_option, &fake)), [LOCAL, REMOTE]);
    assert_eq!(destinations(&path(&flow(Origin::Pod, POD, SERVICE), &ipip, &fake)), [LOCAL, REMOTE]);
    // Only services with the flag do, if they choose.
    let by_service = NodeFacts { direct_return: DirectReturn::ByService, ..ipip.clone() };
    assert_eq!(destinations(&path(&from_world, &by_service, &fake)), [LOCAL, REMOTE]);
    main_entry(&mut fake).flags2 |= lb_flag2::FORWARDING_DSR;
    assert_eq!(destinations(&path(&from_world, &by_service, &fake)), [LOCAL, KEPT]);
    // Two ports of an address are one destination, and a backend at the frontend's port needs no notice.
    let text = |fake: &Fake| path(&from_world, &ipip, fake).text();
    fake.backends.insert(1, Backend { address: socket("10.0.1.2:8081"), state: 0 });
    assert_eq!(destinations(&path(&from_world, &ipip, &fake)), [KEPT]);
    assert_eq!(text(&fake).matches("IPIP carries no other").count(), 2);
    for id in [1, 2] {
        fake.backends.insert(id, Backend { address: socket(KEPT), state: 0 });
    }
    assert_eq!(destinations(&path(&from_world, &ipip, &fake)), [KEPT]);
    assert!(!text(&fake).contains("IPIP carries no other"), "{}", text(&fake));
}

#[test]
fn conditions_of_masquerading_are_named() {
    const WORLD: &str = "203.0.113.9:443";
    let world = ip("203.0.113.9");
    let hop = |node: &NodeFacts, fake: &Fake| {
        let path = path(&flow(Origin::Pod, POD, WORLD), node, fake);
        path.branches[0].hops.last().unwrap().action.clone()
    };
    let fake = entries();
    assert!(hop(&facts(), &fake).contains("source becomes 192.0.2.1 by interface 2"));
    let off = NodeFacts { masquerade: [Masquerade::Off, Masquerade::Bpf], ..facts() };
    assert_eq!(hop(&off, &fake), "source 10.0.0.1 stays: masquerading is off");
    let iptables = NodeFacts { masquerade: [Masquerade::Iptables; 2], ..facts() };
    assert!(hop(&iptables, &fake).contains("CILIUM_POST_nat"));
    let mut excluded = fake.clone();
    let row = &mut excluded.masquerade[1].1;
    let range = ipv4_word("203.0.113.0".parse().unwrap());
    (row.excluded_ipv4, row.excluded_ipv4_mask) = (range, ipv4_word("255.255.255.0".parse().unwrap()));
    assert!(hop(&facts(), &excluded).contains("in the range that is not masqueraded"));
    let mut keeps = fake.clone();
    keeps.endpoints.get_mut(&ip(POD)).unwrap().flags |= lxc_flag::SKIP_MASQUERADE_V4;
    assert!(hop(&facts(), &keeps).contains("the pod keeps its address"));
    let by_agent = Fake { excluded: Some(world), ..fake.clone() };
    assert!(!hop(&facts(), &by_agent).contains("ip-masq-agent"), "the option is off");
    assert!(hop(&NodeFacts { ip_masq_agent: true, ..facts() }, &by_agent).contains("ip-masq-agent excludes"));

    let mut node = fake.clone();
    let info = RemoteEndpointInfo { sec_identity: identity::REMOTE_NODE, ..RemoteEndpointInfo::default() };
    node.ipcache.insert(world, info);
    assert!(hop(&facts(), &node).contains("only with enable-remote-node-masquerade"));
    let tunnel = NodeFacts { tunnel: true, ..facts() };
    assert!(hop(&tunnel, &node).contains("source becomes 192.0.2.1"), "nodes have no routes to pods");
    node.ipcache.get_mut(&world).unwrap().flags = ipcache_flag::HAS_TUNNEL_ENDPOINT;
    assert_eq!(hop(&tunnel, &node), "encapsulated for the destination's node");
    let none = Fake { masquerade: Vec::new(), ..fake };
    assert!(hop(&facts(), &none).contains("DROPPED, no device has a masquerade address"));
}

#[test]
fn ports_of_nodes_are_found_by_their_port_alone() {
    let mut fake = entries();
    let any = Frontend { address: socket("0.0.0.0:30080"), ..frontend(SERVICE, 0) };
    let row = LbService { flags: lb_flag::ROUTABLE | lb_flag::NODE_PORT, ..*main_entry(&mut fake) };
    fake.services.insert(any, row);
    for slot in [1, 2] {
        let row = fake.services[&frontend(SERVICE, slot)];
        fake.services.insert(Frontend { slot, ..any }, row);
    }
    let found = |flow: &Flow, fake: &Fake| destinations(&path(flow, &facts(), fake));
    let to_own = flow(Origin::Pod, POD, "192.0.2.1:30080");
    assert_eq!(found(&to_own, &fake), [LOCAL, REMOTE]);
    let to_other = flow(Origin::Pod, POD, "192.0.2.2:30080");
    assert_eq!(found(&to_other, &fake), ["192.0.2.2:30080"], "not known as a node");
    let mut info = RemoteEndpointInfo { sec_identity: identity::REMOTE_NODE, ..Default::default() };
    fake.ipcache.insert(ip("192.0.2.2"), info);
    assert_eq!(found(&to_other, &fake), [LOCAL, REMOTE]);
    info.flags = ipcache_flag::REMOTE_CLUSTER;
    fake.ipcache.insert(ip("192.0.2.2"), info);
    assert_eq!(found(&to_other, &fake), ["192.0.2.2:30080"], "a node of another cluster");
    let host = Flow { protocol: 6, ..flow(Origin::Host, NODE, "127.0.0.1:30080") };
    let sockets = NodeFacts { host_sockets: true, ..facts() };
    assert_eq!(destinations(&path(&host, &sockets, &fake)), [LOCAL, REMOTE]);
    assert_eq!(found(&host, &fake), ["127.0.0.1:30080"], "without hooks at sockets");
}

#[test]
fn a_pod_that_is_its_own_backend_and_sockets_are_named() {
    let own = flow(Origin::Pod, "10.0.0.2", SERVICE);
    let text = path(&own, &facts(), &entries()).branches[0].hops[0].action.clone();
    assert!(text.contains("the pod is its own backend"), "{text}");
    let sockets = NodeFacts { host_sockets: true, pod_sockets: true, ..facts() };
    let translated = path(&own, &sockets, &entries());
    assert_eq!(translated.hops[0].at, "pod's socket");
    assert!(
        translated.branches[1]
            .reply
            .iter()
            .any(|hop| hop.action.contains("reports 10.96.0.1:80 as its peer"))
    );
    // SCTP has no hooks at sockets.
    let sctp = Flow { protocol: 132, ..own };
    let mut fake = entries();
    let row = *main_entry(&mut fake);
    fake.services.insert(Frontend { protocol: 132, ..frontend(SERVICE, 0) }, row);
    assert_eq!(path(&sctp, &sockets, &fake).hops[0].at, "pod's interface");
}

#[test]
fn packets_change_the_family_for_backends_of_the_other_one_and_by_the_gateway() {
    let node = NodeFacts { translates: true, is_gateway: true, ..facts() };
    // An IPv4 frontend leads to its twin, which has an IPv6 backend.
    let mut fake = entries();
    let twin = |slot| frontend("[::ffff:10.96.0.1]:80", slot);
    let flags2 = lb_flag2::NAT_46X64;
    *main_entry(&mut fake) =
        LbService { rev_nat_index: ID, flags: lb_flag::ROUTABLE, flags2, ..LbService::default() };
    let id = 8_u16.to_be();
    let main =
        LbService { count: 1, rev_nat_index: id, flags: lb_flag::ROUTABLE, flags2, ..LbService::default() };
    fake.services.insert(twin(0), main);
    fake.services.insert(twin(1), LbService { backend_id: 3, rev_nat_index: id, ..LbService::default() });
    fake.backends.insert(3, Backend { address: socket("[fd00::9]:8080"), state: 0 });
    let from_world = flow(Origin::Network, CLIENT, SERVICE);
    let explained = path(&from_world, &node, &fake);
    assert_eq!(destinations(&explained), ["[fd00::9]:8080"]);
    assert_eq!(explained.hops[0].action, "the packet becomes IPv6, to [::ffff:10.96.0.1]:80");
    // Pods have no backend, nor has anything without the option.
    for (origin, source, node) in [(Origin::Pod, POD, &node), (Origin::Network, CLIENT, &facts())] {
        assert!(path(&flow(origin, source, SERVICE), node, &fake).branches.is_empty());
    }
    // An IPv4 backend is a mapped address.
    fake.backends.insert(3, Backend { address: socket("[::ffff:10.0.1.2]:8080"), state: 0 });
    let last = |path: &Path| path.branches[0].hops.last().unwrap().action.clone();
    let sent = "source becomes an IPv4 address of this node, the packet becomes IPv4, sent past the stack to 10.0.1.2:8080";
    assert_eq!(last(&path(&from_world, &node, &fake)), sent);
    fake.backends.insert(3, Backend { address: socket("[::ffff:10.0.0.2]:8080"), state: 0 });
    assert!(
        last(&path(&from_world, &node, &fake))
            .ends_with("delivered by ingress policy for the world to 10.0.0.2:8080")
    );
    let machine = flow(Origin::Network, "2001:db8::9", "[64:ff9b::198.51.100.7]:443");
    assert!(
        last(&path(&machine, &node, &fake))
            .ends_with("becomes IPv4, sent past the stack to 198.51.100.7:443")
    );
    assert!(!last(&path(&machine, &facts(), &fake)).contains("IPv4"), "without the gateway");
}
