//! Endpoints, restarts and host devices against the real kernel, in a sandbox of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::tc::Tc;
use bpf::{Direction, Link, Map, RawMap};
use datapath_abi::{EndpointInfo, EndpointKey, NodeConfig, PolicyEntry, PolicyKey, ep_flag};
use datapath_api::{Datapath, DatapathError, EndpointDatapath};
use devices::Netlink;
use loader::device_links::{self, Attached, Place, Style};
use loader::host::{self, HostSettings};
use loader::{KernelDatapath, ProgramSet, READY_FIRST};
use maps::{FamilyConfig, Maps, MapsConfig, Specs, policy_name};
use test_kit::{Sandbox, require_root};

mod kit;

use kit::{OPTIONS, maps, node_config, pod, start};

fn filters(ifindex: u32) -> Vec<bpf::tc::Filter> {
    Tc::new().unwrap().filters(ifindex, Direction::Ingress).unwrap()
}

fn policy_rows(maps: &Maps, id: u16) -> Vec<(PolicyKey, PolicyEntry)> {
    let map: Map<PolicyKey, PolicyEntry> = Map::open(&maps.path(&policy_name(id))).unwrap();
    map.entries().unwrap()
}

#[test]
fn an_endpoint_comes_and_goes_with_all_its_rows() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    assert_eq!(datapath.pool().ready(), READY_FIRST);
    let endpoint = pod(&sandbox, 7);
    datapath.attach(&endpoint).unwrap();

    let row = maps.ep_config().lookup(&7).unwrap().unwrap();
    assert_eq!(
        (row.id, row.ifindex, row.flags),
        (7, endpoint.ifindex, ep_flag::LIVE | ep_flag::SOURCE_CHECK)
    );
    assert_eq!(maps.ep_by_ifindex().lookup(&endpoint.ifindex).unwrap(), Some(7));
    let lxc = maps.lxc().lookup(&EndpointKey::from(IpAddr::V4(endpoint.ipv4.unwrap()))).unwrap().unwrap();
    assert_eq!((lxc.lxc_id, lxc.ifindex, lxc.sec_id), (7, endpoint.ifindex, 5));
    assert!(policy_rows(&maps, 7).is_empty(), "all is denied until the policy is written");
    let pinned = RawMap::open(&maps.path(&policy_name(7))).unwrap().info().unwrap();
    assert_eq!(maps.ep_policies().id(row.policy_slot).unwrap(), Some(pinned.id));
    let found = filters(endpoint.ifindex);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, "cil_from_container-lxc00007");
    let link = || Netlink::open().unwrap().link_by_index(endpoint.ifindex).unwrap();
    assert!(!link().is_up(), "the host's side stays down until the caller switches it on");
    datapath.up(&endpoint).unwrap();
    assert!(link().is_up());

    // Attached again with another address: the old one is removed.
    let moved = EndpointDatapath { ipv4: Some(Ipv4Addr::new(10, 0, 0, 99)), ..endpoint.clone() };
    datapath.attach(&moved).unwrap();
    assert_eq!(maps.lxc().lookup(&EndpointKey::v4(endpoint.ipv4.unwrap())).unwrap(), None);
    assert_eq!(datapath.restored().unwrap(), [EndpointDatapath { ifname: String::new(), ..moved.clone() }]);
    assert_eq!(maps.ep_config().lookup(&7).unwrap().unwrap().policy_slot, row.policy_slot);

    assert!(datapath.detach(7).unwrap());
    assert_eq!(maps.ep_config().lookup(&7).unwrap().unwrap().flags, 0);
    assert_eq!(maps.ep_by_ifindex().lookup(&endpoint.ifindex).unwrap(), Some(0));
    assert!(maps.lxc().entries().unwrap().is_empty());
    assert!(!maps.path(&policy_name(7)).exists());
    assert_eq!(filters(endpoint.ifindex).len(), 1, "what is left on the interface drops its packets");
    assert!(!datapath.detach(7).unwrap());
    let slots_before = datapath.pool().ready();
    std::thread::sleep(Duration::from_millis(1050));
    datapath.pool().tend().unwrap();
    assert_eq!(datapath.pool().ready(), slots_before + 1, "the slot comes back after its rest");
}

/// A route by the interface of a pod would be a way past policy without the program.
#[test]
fn with_endpoint_routes_pods_have_a_program_that_goes_after_their_routes() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let (before, after) = (pod(&sandbox, 7), pod(&sandbox, 8));
    datapath.attach(&before).unwrap();
    let egress = |endpoint: &EndpointDatapath| -> Vec<String> {
        let filters = Tc::new().unwrap().filters(endpoint.ifindex, Direction::Egress).unwrap();
        filters.into_iter().map(|filter| filter.name).collect()
    };
    assert!(egress(&before).is_empty());

    let mut nl = Netlink::open().unwrap();
    let load = |config| Arc::new(ProgramSet::load(&maps, config).unwrap());
    let routed = NodeConfig { endpoint_routes: 1, redirect_peer: 0, ..node_config() };
    datapath.switch(load(routed), &mut nl).unwrap();
    datapath.attach(&after).unwrap();
    for (endpoint, name) in [(&before, "cil_to_container-lxc00007"), (&after, "cil_to_container-lxc00008")] {
        assert_eq!(egress(endpoint), [name]);
        assert_eq!(filters(endpoint.ifindex).len(), 1);
        datapath.up(endpoint).unwrap();
    }
    assert!(datapath.reattach(&mut nl).unwrap().is_empty());
    Tc::new().unwrap().detach(before.ifindex, Direction::Egress, OPTIONS.filter_priority).unwrap();
    assert_eq!(datapath.reattach(&mut nl).unwrap(), ["program to endpoint 7 on lxc00007"]);
    assert_eq!(egress(&before).len(), 1);

    let host = sandbox.host();
    host.ip_batch(
        "route add 10.0.0.7/32 dev lxc00007 proto kernel\nroute add fd00::7/128 dev lxc00007 proto kernel
         route add 203.0.113.7/32 dev lxc00007\nroute add 10.0.0.7/32 dev lxc00008 metric 5\n",
    )
    .unwrap();
    datapath.switch(load(node_config()), &mut nl).unwrap();
    assert_eq!(egress(&before).len(), 1, "its routes are there");
    assert_eq!(datapath.detach_to_pods(&mut nl).unwrap(), 2);
    assert!(egress(&before).is_empty() && egress(&after).is_empty());
    let left = host.ip("route show dev lxc00007").unwrap();
    assert_eq!(left.split_whitespace().next(), Some("203.0.113.7"), "{left}");
    assert!(!host.ip("-6 route show dev lxc00007").unwrap().contains("fd00::7"));
    assert!(
        host.ip("route show dev lxc00008").unwrap().contains("10.0.0.7"),
        "of another endpoint's address"
    );
    assert_eq!(datapath.detach_to_pods(&mut nl).unwrap(), 0);
}

#[test]
fn the_last_number_is_an_endpoints_too() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let endpoint = EndpointDatapath { id: u16::MAX, ..pod(&sandbox, 7) };
    datapath.attach(&endpoint).unwrap();
    assert!(datapath.detach(u16::MAX).unwrap());
    assert!(!datapath.detach(u16::MAX).unwrap());
}

#[test]
fn wrong_calls_say_what_is_wrong_and_leave_nothing_attached() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let early = KernelDatapath::new(maps.clone(), OPTIONS);
    let endpoint =
        EndpointDatapath { id: 7, ifindex: 4242, ifname: "lxcgone".into(), ..EndpointDatapath::default() };
    assert!(matches!(early.attach(&endpoint), Err(DatapathError::NotReady)));
    let datapath = start(&maps);
    let error = datapath.attach(&endpoint).unwrap_err();
    assert_eq!(error.to_string(), "endpoint 7: there is no interface 4242 (lxcgone)");
    assert_eq!(datapath.up(&endpoint).unwrap_err().to_string(), error.to_string());
    assert!(maps.lxc().entries().unwrap().is_empty(), "no address leads to an interface that is not there");
    let zero = datapath.attach(&EndpointDatapath::default()).unwrap_err();
    assert_eq!(zero.to_string(), "endpoint id 0 is not valid: ids are 1 to 65535");
}

#[test]
fn large_interface_numbers_have_a_map_of_their_own() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    sandbox.host().ip("link add lxcbig index 70000 type veth peer name p0").unwrap();
    let endpoint =
        EndpointDatapath { id: 9, ifindex: 70_000, ifname: "lxcbig".into(), ..EndpointDatapath::default() };
    datapath.attach(&endpoint).unwrap();
    assert_eq!(maps.ep_by_ifindex_hi().lookup(&70_000).unwrap(), Some(9));
    datapath.detach(9).unwrap();
    assert_eq!(maps.ep_by_ifindex_hi().lookup(&70_000).unwrap(), None);
}

#[test]
fn a_restart_switches_every_endpoint_and_repairs_pins() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let first = start(&maps);
    first.attach_host(500, 0).unwrap();
    let pods: Vec<EndpointDatapath> = (1..=3).map(|id| pod(&sandbox, id)).collect();
    pods.iter().for_each(|p| first.attach(p).unwrap());
    let rows =
        |id: u16| vec![(PolicyKey { sec_label: id.into(), ..PolicyKey::any(false) }, PolicyEntry::allow(0))];
    pods.iter().for_each(|p| first.swap_policy(p.id, &rows(p.id)).unwrap());
    let before: Vec<u32> = pods.iter().map(|p| filters(p.ifindex)[0].program).collect();
    let slot = |id: u32| maps.ep_config().lookup(&id).unwrap().unwrap().policy_slot;
    let slots = [slot(1), slot(2), slot(3)];
    drop(first);

    // Another process removes a pin, replaces a pinned map, and removes a filter.
    std::fs::remove_file(maps.path(&policy_name(1))).unwrap();
    std::fs::remove_file(maps.path(&policy_name(2))).unwrap();
    RawMap::create(&maps.policy_spec(2)).unwrap().pin(&maps.path(&policy_name(2))).unwrap();
    sandbox.host().exec("tc qdisc del dev lxc00003 clsact").unwrap();
    maps.lxc().clear().unwrap();

    let second = start(&maps);
    assert_eq!(*second.host_endpoint().borrow(), 500);
    assert_eq!(second.restored().unwrap().len(), 3);
    let programs = second.programs().unwrap();
    let policy_program = programs.program(datapath_object::LXC_POLICY).unwrap().info().unwrap().id;
    for (i, p) in pods.iter().enumerate() {
        let found = filters(p.ifindex);
        assert_eq!(found.len(), 1);
        assert_ne!(found[0].program, before[i], "endpoint {} runs the new program", p.id);
        assert_eq!(slot(p.id.into()), slots[i]);
        let called = maps.call_policy().id(p.id.into()).unwrap();
        assert_eq!(called, Some(policy_program), "programs of another origin call the new one as well");
        let pinned = RawMap::open(&maps.path(&policy_name(p.id))).unwrap().info().unwrap().id;
        assert_eq!(maps.ep_policies().id(slots[i]).unwrap(), Some(pinned));
        assert_eq!(policy_rows(&maps, p.id), rows(p.id));
        assert!(maps.lxc().lookup(&EndpointKey::v4(p.ipv4.unwrap())).unwrap().is_some());
    }
    // One program array: that of the load in use.
    let arrays = maps.fs().map_names().unwrap();
    assert_eq!(arrays.iter().filter(|n| n.starts_with("cilium_calls_shared_")).count(), 1);
}

#[test]
fn an_endpoint_taken_over_keeps_its_pinned_link() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    test_kit::require!(bpf::probe().unwrap().tcx, "needs tcx, Linux 6.6");
    let maps = maps(&sandbox);
    let first = start(&maps);
    let endpoint = pod(&sandbox, 1);
    first.attach(&endpoint).unwrap();
    // As left by a Cilium agent: a tcx link, no filter.
    sandbox.host().exec("tc qdisc del dev lxc00001 clsact").unwrap();
    let folder = maps.fs().endpoint_links(1);
    std::fs::create_dir_all(&folder).unwrap();
    let pin = folder.join("cil_from_container");
    let programs = first.programs().unwrap();
    let program = programs.program(datapath_object::FROM_CONTAINER).unwrap();
    Link::tcx(program, endpoint.ifindex, Direction::Ingress).unwrap().pin(&pin).unwrap();
    let before = Link::open(&pin).unwrap().info().unwrap();
    drop(first);

    let second = start(&maps);
    let after = Link::open(&pin).unwrap().info().unwrap();
    assert_eq!(after.id, before.id);
    assert_ne!(after.program, before.program);
    assert!(filters(endpoint.ifindex).is_empty(), "packets pass by one program");
    assert!(second.reattach(&mut Netlink::open().unwrap()).unwrap().is_empty());
    second.prune(&BTreeSet::new()).unwrap();
    assert!(!folder.exists());
}

#[test]
fn endpoints_are_found_without_the_list_of_ids() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let first = start(&maps);
    first.attach_host(500, 0).unwrap();
    let endpoint = pod(&sandbox, 1);
    first.attach(&endpoint).unwrap();
    maps.ep_ids().clear().unwrap();
    drop(first);
    let second = start(&maps);
    assert_eq!(second.restored().unwrap().len(), 1);
    assert_eq!(*second.host_endpoint().borrow(), 500);
}

#[test]
fn an_emptied_slot_gets_a_new_map() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let first = start(&maps);
    let endpoint = pod(&sandbox, 1);
    first.attach(&endpoint).unwrap();
    let slot = maps.ep_config().lookup(&1).unwrap().unwrap().policy_slot;
    maps.ep_policies().unset(slot).unwrap();
    let second = start(&maps);
    let new = maps.ep_config().lookup(&1).unwrap().unwrap().policy_slot;
    let pinned = RawMap::open(&maps.path(&policy_name(1))).unwrap().info().unwrap().id;
    assert_eq!(maps.ep_policies().id(new).unwrap(), Some(pinned));
    assert!(policy_rows(&maps, 1).is_empty(), "what was allowed is not known any more");
    second.attach(&endpoint).unwrap();
}

#[test]
fn a_prune_removes_what_no_known_endpoint_owns_and_nothing_else() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    datapath.attach_host(500, 0).unwrap();
    let pods: Vec<EndpointDatapath> = (1..=2).map(|id| pod(&sandbox, id)).collect();
    pods.iter().for_each(|p| datapath.attach(p).unwrap());
    // Leftovers of a Cilium agent and of a crash.
    for name in ["cilium_policy_v2_00777", "cilium_policy_v2_8", "cilium_policy_00009"] {
        RawMap::create(&maps.policy_spec(777)).unwrap().pin(&maps.path(name)).unwrap();
    }
    let host_row = EndpointInfo { flags: datapath_abi::lxc_flag::HOST, ..EndpointInfo::default() };
    let host_key = EndpointKey::v4(Ipv4Addr::new(10, 99, 0, 1));
    maps.lxc().update(&host_key, &host_row).unwrap();
    maps.lxc()
        .update(&EndpointKey::v4(Ipv4Addr::new(1, 2, 3, 4)), &EndpointInfo { lxc_id: 777, ..host_row })
        .unwrap();
    maps.lxc()
        .update(
            &EndpointKey::v4(Ipv4Addr::new(1, 2, 3, 5)),
            &EndpointInfo { lxc_id: 777, ..EndpointInfo::default() },
        )
        .unwrap();
    maps.ep_by_ifindex_hi().update(&99_999, &777).unwrap();
    maps.ep_ids().update(&778, &3).unwrap();

    let pruned = datapath.prune(&BTreeSet::from([1, 500])).unwrap();
    assert_eq!(pruned.endpoints, [2]);
    assert_eq!(pruned.leftovers, 6);
    assert_eq!(datapath.restored().unwrap().len(), 1);
    assert!(maps.lxc().lookup(&host_key).unwrap().is_some());
    assert_eq!(maps.ep_by_ifindex_hi().lookup(&99_999).unwrap(), None);
    let policies: Vec<String> =
        maps.fs().map_names().unwrap().into_iter().filter(|n| n.starts_with("cilium_policy_")).collect();
    assert_eq!(policies, ["cilium_policy_v2_00001", "cilium_policy_v2_00500"]);
    assert_eq!(datapath.prune(&BTreeSet::from([1, 500])).unwrap(), datapath_api::Pruned::default());
}

#[test]
fn an_unknown_interface_is_guarded_once() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let endpoint = pod(&sandbox, 3);
    assert!(datapath.guard(endpoint.ifindex, &endpoint.ifname).unwrap());
    let guarded = filters(endpoint.ifindex);
    assert_eq!(guarded.len(), 1);
    assert!(!datapath.guard(endpoint.ifindex, &endpoint.ifname).unwrap());
    assert!(!datapath.guard(9999, "lxcgone").unwrap());
    datapath.attach(&endpoint).unwrap();
    assert_eq!(filters(endpoint.ifindex).len(), 1);
}

/// The programs are loaded with the pinned maps of tables, whatever their size, and with no others.
#[test]
fn programs_have_the_maglev_tables_of_the_option() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let config = || MapsConfig {
        bpf_root: sandbox.bpf_root().to_str().unwrap().to_owned(),
        preallocate_bpf_maps: false,
        ..MapsConfig::default()
    };
    for positions in [251, 131_071] {
        let maps = Maps::of(Specs::new(config(), FamilyConfig::default()).with_maglev(Some(positions)));
        maps.open().unwrap();
        let load = |maglev_table_size| {
            ProgramSet::load(&maps, NodeConfig { nodeport: 1, maglev: 1, maglev_table_size, ..node_config() })
        };
        let programs = load(positions).unwrap();
        let pinned = bpf::RawMap::open(&maps.path("cilium_lb4_maglev")).unwrap();
        assert_eq!(pinned.id(), maps.shared("cilium_lb4_maglev").unwrap().unwrap().id());
        drop(programs);
        // The control: a constant beyond the tables.
        assert!(load(positions + 1).is_err());
    }
}

/// Kernel ids of a load's programs by their names.
fn ids(set: &ProgramSet) -> BTreeMap<&'static str, u32> {
    let loaded = datapath_object::PROGRAMS
        .iter()
        .filter_map(|program| Some((program.name, set.program(program.name).ok()?.info().unwrap().id)));
    loaded.collect()
}

#[test]
fn programs_are_kept_for_a_load_of_the_same_and_for_no_other() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let first_maps = maps(&sandbox);
    let fs = first_maps.fs();
    let sets = || bpf::names_in(&fs.root().join("cilium/programs")).unwrap();
    let load = |maps: &Maps| ProgramSet::load(maps, node_config()).unwrap();
    let first = load(&first_maps);
    let expected = ids(&first);
    assert!(expected.len() == 20, "{expected:?}");
    assert_ne!(ids(&load(&first_maps)), expected, "nothing is kept before it was asked for");
    first.keep(fs).unwrap();
    let folder = fs.root().join("cilium/programs").join(&sets()[0]);
    drop(first);

    // Another process with its own handles.
    let again = load(&maps(&sandbox));
    assert_eq!(ids(&again), expected);
    let array: bpf::ObjectMap =
        bpf::ObjectMap::new(RawMap::open(&folder.join("cilium_calls")).unwrap()).unwrap();
    let arp = datapath_object::PROGRAMS.iter().find(|program| program.name == "tail_arp").unwrap();
    array.unset(arp.slot.unwrap()).unwrap();
    again.keep(fs).unwrap();
    assert_eq!(ids(&load(&first_maps)), expected);
    assert_eq!(array.id(arp.slot.unwrap()).unwrap(), Some(expected["tail_arp"]), "an emptied slot is filled");

    // Other settings, and programs that they add.
    let other = NodeConfig { source_ip_verification: 0, ..node_config() };
    assert_ne!(ids(&ProgramSet::load(&first_maps, other).unwrap()), expected);
    let more = NodeConfig { endpoint_routes: 1, ..node_config() };
    assert_eq!(ids(&ProgramSet::load(&first_maps, more).unwrap()).len(), expected.len() + 1);

    // A pin that is missing, one of another program, one of a map, and a folder that was not completed.
    let arp_pin = folder.join("tail_arp");
    let policy_pin = folder.join("tail_ipv4_policy");
    std::fs::remove_file(&arp_pin).unwrap();
    assert_ne!(ids(&load(&first_maps)), expected);
    bpf::Program::open(&policy_pin).unwrap().pin(&arp_pin).unwrap();
    assert_ne!(ids(&load(&first_maps)), expected);
    std::fs::remove_file(&arp_pin).unwrap();
    RawMap::open(&folder.join("cilium_calls")).unwrap().pin(&arp_pin).unwrap();
    assert_ne!(ids(&load(&first_maps)), expected);
    std::fs::remove_file(&arp_pin).unwrap();
    again.program("tail_arp").unwrap().pin(&arp_pin).unwrap();
    assert_eq!(ids(&load(&first_maps)), expected);
    std::fs::remove_file(folder.join("record")).unwrap();
    let unrecorded = load(&first_maps);
    assert_ne!(ids(&unrecorded), expected);

    // Those that are kept last replace the others.
    unrecorded.keep(fs).unwrap();
    assert_eq!(sets().len(), 1);
    assert!(!folder.exists());

    // A map that was made again: programs with the old one would see other entries than the agent.
    std::fs::remove_file(first_maps.path("cilium_lxc")).unwrap();
    let remade = load(&maps(&sandbox));
    assert_ne!(ids(&remade), ids(&unrecorded));
    remade.keep(fs).unwrap();
    assert_eq!(ids(&load(&maps(&sandbox))), ids(&remade));
}

#[test]
fn a_device_keeps_its_link_and_gets_the_new_program() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    test_kit::require!(bpf::probe().unwrap().tcx, "needs tcx, Linux 6.6");
    let maps = maps(&sandbox);
    let mut nl = Netlink::open().unwrap();
    let devices = host::ensure_devices(&mut nl).unwrap();
    let style = Style { tcx: true, filter_priority: 1 };
    let place = Place {
        device: devices.host.name.clone(),
        ifindex: devices.host.index,
        program: datapath_object::FROM_HOST,
        egress: true,
    };
    let fs = maps.fs();
    let pin = fs.root().join("cilium/devices/cilium_host/links/cil_from_host");
    let load = || ProgramSet::load(&maps, node_config()).unwrap();
    let (old, new) = (load(), load());
    let attach = |set: &ProgramSet, place: &Place| {
        device_links::attach(fs, style, place, set.program(place.program).unwrap()).unwrap()
    };
    assert_eq!(attach(&old, &place), Attached::Created);
    let before = Link::open(&pin).unwrap().info().unwrap();
    assert_eq!(attach(&new, &place), Attached::Updated);
    let after = Link::open(&pin).unwrap().info().unwrap();
    assert_eq!(after.id, before.id);
    assert_ne!(after.program, before.program);

    // The pair is recreated: its old link is defunct, a new one takes the pin.
    nl.delete_link(devices.host.index).unwrap();
    let devices = host::ensure_devices(&mut nl).unwrap();
    let place = Place { ifindex: devices.host.index, ..place };
    assert_eq!(attach(&new, &place), Attached::Created);
    assert_eq!(Link::open(&pin).unwrap().info().unwrap().ifindex, Some(devices.host.index));

    // A kernel without tcx: a filter, and no link beside it; and back.
    let filter = Style { tcx: false, ..style };
    let by_filter = device_links::attach(fs, filter, &place, new.program(place.program).unwrap()).unwrap();
    assert_eq!(by_filter, Attached::Filter);
    assert!(!pin.exists());
    let egress = || Tc::new().unwrap().filters(place.ifindex, Direction::Egress).unwrap();
    assert_eq!(egress()[0].name, "cil_from_host-cilium_host");
    device_links::detach(fs, filter, &place).unwrap();
    assert!(egress().is_empty());
    device_links::detach(fs, filter, &Place { ifindex: 9999, ..place.clone() }).unwrap();
    device_links::attach(fs, filter, &place, new.program(place.program).unwrap()).unwrap();
    assert_eq!(attach(&new, &place), Attached::Created);
    assert!(egress().is_empty());
    assert_eq!(device_links::devices_with_links(fs).unwrap(), ["cilium_host"]);
    device_links::detach_all(fs, style, "cilium_host", Some(place.ifindex)).unwrap();
    assert!(device_links::devices_with_links(fs).unwrap().is_empty());
}

#[test]
fn host_devices_and_addresses_are_those_of_cilium() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let mut nl = Netlink::open().unwrap();
    let settings = HostSettings {
        router_ipv4: Some(Ipv4Addr::new(10, 244, 71, 14)),
        router_ipv6: Some("fd00::b".parse().unwrap()),
    };
    let state = || {
        let text = sandbox.host().ip("-o addr show dev cilium_host scope global").unwrap();
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let first = host::ensure_devices(&mut nl).unwrap();
    host::ensure_addresses(&mut nl, &first.host, &settings).unwrap();
    let addresses = state();
    assert!(addresses[0].contains("inet 10.244.71.14/32 scope global cilium_host"), "{addresses:?}");
    assert!(addresses[1].contains("inet6 fd00::b/128 scope global"), "{addresses:?}");
    let flags = sandbox.host().ip("link show dev cilium_net").unwrap();
    assert!(flags.contains("NOARP") && flags.contains(",UP"), "{flags}");

    // Again: nothing changes, the devices stay.
    let again = host::ensure_devices(&mut nl).unwrap();
    host::ensure_addresses(&mut nl, &again.host, &settings).unwrap();
    assert_eq!((again.host.index, again.net.index), (first.host.index, first.net.index));
    assert_eq!(state(), addresses);

    // Another range: addresses of the old one are removed.
    let other = HostSettings { router_ipv4: Some(Ipv4Addr::new(10, 1, 0, 1)), ..HostSettings::default() };
    host::ensure_addresses(&mut nl, &again.host, &other).unwrap();
    let addresses = state();
    assert_eq!(addresses.len(), 1, "{addresses:?}");
}

#[expect(clippy::print_stderr, reason = "a measurement for the reader of the log")]
/// The limits of SPECIFICATION.md with a margin for a busy machine: attaching waits for no grace period.
#[test]
fn attaching_takes_microseconds_and_a_restart_of_fifty_little_more_than_a_load() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let pods: Vec<EndpointDatapath> = (1..=50).map(|id| pod(&sandbox, id)).collect();
    let mut times: Vec<Duration> = pods
        .iter()
        .map(|p| {
            let started = Instant::now();
            datapath.attach(p).unwrap();
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    assert!(times[25] < Duration::from_millis(50), "median {:?}", times[25]);
    drop(datapath);
    let started = Instant::now();
    let again = start(&maps);
    let took = started.elapsed();
    assert_eq!(again.restored().unwrap().len(), 50);
    assert!(took < Duration::from_secs(2), "{took:?}");
    eprintln!("attach p50 {:?} max {:?}; restart of 50 {took:?}", times[25], times[49]);
}

/// Runs the watchdog's comparison of map entries; returns its repairs.
fn repair(datapath: &KernelDatapath) -> Vec<String> {
    let links = Netlink::open().unwrap().links().unwrap();
    datapath.repair_rows(&links).unwrap()
}

/// An existing pin may refer to another map.
#[test]
fn pins_that_lead_to_other_maps_are_replaced() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    for id in [7, 8] {
        datapath.attach(&pod(&sandbox, id)).unwrap();
    }
    let slot = maps.ep_config().lookup(&7).unwrap().unwrap().policy_slot;
    let slot_pin = maps.fs().policy_maps().join(format!("slot_{slot:05}"));
    let pins = [maps.path(&policy_name(7)), slot_pin, maps.path("cilium_lxc"), maps.path("ep_config")];
    let ids = || pins.clone().map(|pin| RawMap::open(&pin).map(|map| map.id()).unwrap_or_default());
    let before = ids();
    assert!(loader::repair_pins(&datapath).unwrap().is_empty());

    // The other endpoint's map, an empty map of the same layout, maps of other layouts.
    let others = [
        RawMap::open(&maps.path(&policy_name(8))).unwrap(),
        RawMap::create(&maps.policy_spec(7)).unwrap(),
        RawMap::create(&maps.spec("cilium_lxc").unwrap()).unwrap(),
        RawMap::open(&maps.path("cilium_metrics")).unwrap(),
    ];
    for (pin, other) in pins.iter().zip(&others) {
        std::fs::remove_file(pin).unwrap();
        other.pin(pin).unwrap();
    }
    assert!(before.iter().zip(ids()).all(|(before, now)| *before != now));
    let repaired = loader::repair_pins(&datapath).unwrap();
    assert_eq!(repaired.len(), pins.len(), "{repaired:?}");
    assert_eq!(ids(), before);
    assert!(loader::repair_pins(&datapath).unwrap().is_empty());
}

#[test]
fn rows_that_others_remove_or_overwrite_are_written_again() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let maps = maps(&sandbox);
    let datapath = start(&maps);
    let pods = [pod(&sandbox, 7), pod(&sandbox, 8)];
    for pod in &pods {
        datapath.attach(pod).unwrap();
    }
    datapath.attach_host(500, 0).unwrap();
    let all = || {
        let mut lxc: Vec<_> = maps.lxc().entries().unwrap().iter().map(|row| format!("{row:?}")).collect();
        lxc.sort();
        let mut ids = maps.ep_ids().entries().unwrap();
        ids.sort_unstable();
        let settings = [7, 8, 500].map(|id: u32| maps.ep_config().lookup(&id).unwrap().unwrap());
        let links = Netlink::open().unwrap().links().unwrap();
        let by_ifindex = links.iter().map(|link| maps.ep_by_ifindex().lookup(&link.index).unwrap());
        (lxc, ids, settings, by_ifindex.collect::<Vec<_>>(), maps.ep_by_ifindex_hi().entries().unwrap())
    };
    let before = all();
    assert_eq!(repair(&datapath), Vec::<String>::new(), "all is well");

    let [a, b] = &pods;
    let own = a.lxc_rows()[0];
    let other = EndpointKey::v4(Ipv4Addr::new(10, 0, 0, 200));
    let wrong = datapath_abi::EndpointConfig { identity: 2, ..before.2[0] };
    let changes: [(&str, &dyn Fn()); 10] = [
        ("settings are emptied", &|| maps.ep_config().update(&7, &Default::default()).unwrap()),
        ("settings are another's", &|| maps.ep_config().update(&7, &before.2[1]).unwrap()),
        ("the identity is the world's", &|| maps.ep_config().update(&7, &wrong).unwrap()),
        ("the ids are forgotten", &|| maps.ep_ids().clear().unwrap()),
        ("the id has another slot", &|| maps.ep_ids().update(&7, &999).unwrap()),
        ("the interface is another's", &|| maps.ep_by_ifindex().update(&a.ifindex, &8).unwrap()),
        ("the addresses are gone", &|| maps.lxc().clear().unwrap()),
        ("an address is another's", &|| maps.lxc().update(&own.0, &b.lxc_rows()[0].1).unwrap()),
        ("another address is the pod's", &|| maps.lxc().update(&other, &own.1).unwrap()),
        ("an id and an interface without an endpoint", &|| {
            maps.ep_ids().update(&99, &1).unwrap();
            maps.ep_by_ifindex_hi().update(&70_000, &99).unwrap();
        }),
    ];
    for (what, change) in changes {
        change();
        assert_ne!(all(), before, "{what}");
        let repaired = repair(&datapath);
        assert!(!repaired.is_empty(), "{what}");
        assert_eq!(all(), before, "{what}: {repaired:?}");
        assert_eq!(repair(&datapath), Vec::<String>::new(), "{what}");
    }

    // The endpoint still has its own policy, and its removal is complete.
    maps.ep_config().update(&7, &Default::default()).unwrap();
    datapath.write_policy(7, &[]).unwrap();
    assert!(datapath.detach(7).unwrap());
    assert_eq!(repair(&datapath), Vec::<String>::new());
    assert!(maps.lxc().lookup(&own.0).unwrap().is_none());
}
