//! Another build with other instructions and other sizes of maps takes over from the one that runs, and back again: no
//! packet is lost and no connection breaks, even if it is killed at any time in between.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use bpf::tc::Tc;
use bpf::{Direction, Link, MapInfo, Program, RawMap};
use integration_tests::cast::{Cast, LONG, SHORT, assert_nothing, assert_perfect, eventually};
use integration_tests::{Node, other_build};
use test_kit::{require_root, try_wait_until};

/// Options of the two builds: sizes of maps that programs write, that the agent writes, and of policy maps.
const SIZES: [(&str, [u32; 2]); 4] = [
    ("bpf-ct-global-tcp-max", [65_536, 8_192]),
    ("bpf-ct-global-any-max", [8_192, 32_768]),
    ("bpf-lb-map-max", [1_024, 4_096]),
    ("bpf-policy-map-max", [4_096, 16_384]),
];

/// Maps with a size that one of the options sets.
const RESIZED: [(&str, &str); 6] = [
    ("cilium_ct4_global", "bpf-ct-global-tcp-max"),
    ("cilium_ct6_global", "bpf-ct-global-tcp-max"),
    ("cilium_ct_any4_global", "bpf-ct-global-any-max"),
    ("cilium_ct_any6_global", "bpf-ct-global-any-max"),
    ("cilium_lb4_services_v2", "bpf-lb-map-max"),
    ("cilium_lb6_backends_v3", "bpf-lb-map-max"),
];

/// Maps that both builds share.
const SHARED: [&str; 4] = ["cilium_lxc", "cilium_ipcache_v2", "ep_config", "ep_policies"];

fn resize(node: &mut Node, build: usize) {
    node.config.extend(SIZES.map(|(option, sizes)| (option.to_owned(), sizes[build].to_string())));
}

fn cast() -> Cast {
    let mut node = Node::new();
    node.config.insert("bpf-map-dynamic-size-ratio".into(), "0".into());
    resize(&mut node, 0);
    Cast::on(node)
}

fn map(node: &Node, name: &str) -> MapInfo {
    RawMap::open(&node.pin(name)).unwrap().info().unwrap()
}

fn policy_maps(node: &Node) -> BTreeMap<String, MapInfo> {
    let names = fs::read_dir(node.pin("")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names
        .filter(|name| name.starts_with("cilium_policy_v2_"))
        .map(|name| (name.clone(), map(node, &name)))
        .collect()
}

/// Numbers of the programs on the uplink, on cilium_host and on the pods, by the place.
fn programs(node: &Node) -> BTreeMap<String, u32> {
    let mut programs = BTreeMap::new();
    for (device, name) in
        [("eth0", "cil_from_netdev"), ("cilium_host", "cil_from_host"), ("cilium_net", "cil_to_host")]
    {
        let pin = node.sandbox().bpf_root().join("cilium/devices").join(device).join("links").join(name);
        programs.insert(device.to_owned(), Link::open(&pin).unwrap().info().unwrap().program);
    }
    let tc = Tc::new().unwrap();
    for line in node.host().ip("-o link show").unwrap().lines().filter(|line| line.contains(": lxc")) {
        let index: u32 = line.split(':').next().unwrap().parse().unwrap();
        let filters = tc.filters(index, Direction::Ingress).unwrap();
        let [filter] = &filters[..] else { panic!("{filters:?}") };
        programs.insert(filter.name.clone(), filter.program);
    }
    programs
}

/// The instructions of a program, as the kernel has checked them. Numbers of maps differ in every load.
fn instructions(id: u32) -> Vec<String> {
    let dump = std::process::Command::new("bpftool")
        .args(["prog", "dump", "xlated", "id", &id.to_string()])
        .output()
        .unwrap();
    assert!(dump.status.success(), "{dump:?}");
    let text = String::from_utf8(dump.stdout).unwrap();
    text.lines().filter(|line| !line.contains("map[")).map(str::to_owned).collect()
}

#[test]
fn builds_replace_each_other_and_lose_nothing() {
    require_root!();
    test_kit::require_command!("bpftool");
    let mut cast = cast();
    let builds = [cast.node.program.clone(), other_build(cast.node.sandbox().dir())];
    let identities = cast.identities();
    let long = cast.allowed(LONG);
    let never = cast.denied();
    sleep(Duration::from_millis(100));
    let connections = cast.all_connections();
    for (round, build) in [0, 1, 0, 1, 0].into_iter().enumerate() {
        // The first is the control: the same build again.
        let same = round == 0;
        let before = programs(&cast.node);
        let shared = SHARED.map(|name| map(&cast.node, name));
        let resized = RESIZED.map(|(name, _)| map(&cast.node, name));
        let code = instructions(before["eth0"]);
        let (allowed, denied) = (cast.allowed(SHORT), cast.denied());
        sleep(Duration::from_millis(100));
        if round % 2 == 0 {
            cast.node.stop();
        } else {
            cast.node.kill();
        }
        cast.node.program.clone_from(&builds[build]);
        resize(&mut cast.node, build);
        cast.node.start();
        // Links of devices are the last. The same build takes the programs that run.
        eventually(|| match same {
            true => cast.node.log().contains("kept=true"),
            false => programs(&cast.node).iter().all(|(place, program)| before.get(place) != Some(program)),
        });
        sleep(Duration::from_millis(150));
        let what = format!("build {build}");
        assert_perfect(allowed, &what, &cast.node);
        assert_nothing(denied, &what, &cast.node);
        assert_eq!(cast.identities(), identities, "{what}: identities stay");

        let after = programs(&cast.node);
        assert_eq!(after.len(), 6, "three devices and three pods");
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
        assert!(
            after.iter().all(|(place, program)| (before[place] == *program) == same),
            "{before:?} {after:?}"
        );
        assert_eq!(
            instructions(after["eth0"]) == code,
            same,
            "{what}: whether the instructions are the same"
        );
        assert_eq!(SHARED.map(|name| map(&cast.node, name)), shared, "these stay");
        for ((name, option), before) in RESIZED.iter().zip(resized) {
            let after = map(&cast.node, name);
            assert_eq!(after.layout.max_entries.to_string(), cast.node.config[*option], "{name}");
            assert_eq!(after == before, same, "{name}: {before:?} {after:?}");
        }
        for (name, policy) in policy_maps(&cast.node) {
            assert_eq!(
                policy.layout.max_entries.to_string(),
                cast.node.config["bpf-policy-map-max"],
                "{name}"
            );
        }
        assert_eq!(cast.connections(), connections, "{what}: connections stay");
        // New endpoints get maps of this size as well.
        let pod = cast.node.add_pod(&format!("new{round}"));
        assert!(
            policy_maps(&cast.node)
                .values()
                .all(|map| map.layout.max_entries.to_string() == cast.node.config["bpf-policy-map-max"])
        );
        cast.node.delete_pod(pod);
        // The kernel may remove its interface later.
        let pods = || cast.node.host().ip("-o link show").unwrap().matches(": lxc").count();
        eventually(|| pods() == 3);
    }
    assert_perfect(long, "all builds", &cast.node);
    assert_nothing(never, "all builds", &cast.node);
}

#[test]
fn a_build_that_is_killed_on_the_way_loses_nothing() {
    require_root!();
    let mut cast = cast();
    let builds = [cast.node.program.clone(), other_build(cast.node.sandbox().dir())];
    let long = cast.allowed(LONG);
    let never = cast.denied();
    sleep(Duration::from_millis(100));
    let connections = cast.all_connections();
    cast.node.kill();
    let mut interrupted = 0;
    for (round, delay) in [0, 60, 5, 80, 10, 100, 20, 150, 40, 60, 80, 200].into_iter().enumerate() {
        // Twice this way, twice that way: a build may find what the same one has begun, or the other.
        let build = 1 - round / 2 % 2;
        cast.node.program.clone_from(&builds[build]);
        resize(&mut cast.node, build);
        cast.node.spawn();
        // None come when the one before was ready with it.
        let begun = || if unfinished(&cast.node).is_empty() { Err("none".to_owned()) } else { Ok(()) };
        let _ = try_wait_until(Duration::from_secs(1), begun);
        sleep(Duration::from_millis(delay));
        cast.node.kill();
        interrupted += usize::from(!unfinished(&cast.node).is_empty());
    }
    assert!(interrupted >= 3, "{interrupted} of 12 kills found maps on their way");
    cast.node.start();
    eventually(|| unfinished(&cast.node).is_empty());
    assert_eq!(cast.connections(), connections, "connections stay");
    sleep(Duration::from_millis(100));
    assert_perfect(long, "killed on the way", &cast.node);
    assert_nothing(never, "killed on the way", &cast.node);
}

/// Pins of maps that are about to take another's place.
fn unfinished(node: &Node) -> Vec<String> {
    let names = fs::read_dir(node.pin("")).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with("_next")).collect()
}

#[test]
fn what_does_not_fit_is_kept_or_refused_by_name() {
    require_root!();
    let mut cast = cast();
    let flows = cast.allowed(LONG);
    sleep(Duration::from_millis(100));
    cast.node.stop();
    // More connections than the smaller map has room for.
    let connections = RawMap::open(&cast.node.pin("cilium_ct4_global")).unwrap();
    let (keys, values): (Vec<[u8; 14]>, Vec<[u8; 56]>) = (0..2_000u32)
        .map(|number| {
            let (mut key, mut value) = ([0u8; 14], [0u8; 56]);
            key[..4].copy_from_slice(&number.to_be_bytes());
            // Ends in a century.
            value[32..36].copy_from_slice(&u32::MAX.to_ne_bytes());
            (key, value)
        })
        .unzip();
    connections.update_batch(keys.as_flattened(), values.as_flattened()).unwrap();
    let before = connections.info().unwrap();
    cast.node.config.insert("bpf-ct-global-tcp-max".into(), "1024".into());
    cast.node.start();
    assert_eq!(map(&cast.node, "cilium_ct4_global"), before, "it stays");
    assert_eq!(map(&cast.node, "cilium_ct6_global").layout.max_entries, 1024, "the others do not");
    let log = cast.node.log();
    let reported = log.lines().find(|line| line.contains("Map keeps its size")).expect("the log says so");
    assert!(
        reported.contains("level=warn")
            && reported.contains("cilium_ct4_global")
            && reported.contains("wanted=1024"),
        "{reported}"
    );
    cast.node.stop();

    // Services are not thrown out, nor is anything else changed.
    let before = maps_by_pin(&cast.node);
    cast.node.config.insert("bpf-lb-map-max".into(), "4".into());
    let reported = cast.node.refused_start();
    for part in [
        "cilium_lb4_services_v2",
        "cilium_lb6_services_v2",
        "max 1024",
        "max 4 ",
        "it holds",
        "agent cleanup --dry-run",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert_eq!(maps_by_pin(&cast.node), before, "nothing was changed");
    cast.node.config.insert("bpf-lb-map-max".into(), "1024".into());
    cast.node.start();
    assert_perfect(flows, "kept and refused", &cast.node);
}

/// State of a newer agent is not touched, whether its maps or one of its files show the version.
#[test]
fn what_a_newer_agent_has_left_is_refused_and_forwards_on() {
    require_root!();
    let mut cast = cast();
    let flows = cast.allowed(LONG);
    let never = cast.denied();
    sleep(Duration::from_millis(100));
    cast.node.stop();
    let version = RawMap::open(&cast.node.pin("ep_schema")).unwrap();
    let identities = cast.node.endpoint_files().join("identities.json");
    let known = fs::read_to_string(&identities).unwrap();
    // Other sizes as well, which would have maps replaced.
    resize(&mut cast.node, 1);
    for newer_maps in [true, false] {
        let file = if newer_maps { known.clone() } else { known.replace("\"version\":1", "\"version\":99") };
        assert!(newer_maps || file != known, "{known}");
        fs::write(&identities, &file).unwrap();
        let number: u32 = if newer_maps { 99 } else { 1 };
        version.update(&[0; 4], &number.to_ne_bytes(), bpf::UpdateMode::Any).unwrap();
        let before = (maps_by_pin(&cast.node), programs(&cast.node));
        let reported = cast.node.refused_start();
        assert!(reported.contains("99"), "{reported}");
        assert_eq!(
            (maps_by_pin(&cast.node), programs(&cast.node)),
            before,
            "nothing was changed: {reported}"
        );
        assert_eq!(fs::read_to_string(&identities).unwrap(), file);
    }
    fs::write(&identities, &known).unwrap();
    cast.node.start();
    sleep(Duration::from_millis(100));
    assert_perfect(flows, "a newer agent", &cast.node);
    assert_nothing(never, "a newer agent", &cast.node);
}

/// Kernel numbers of all pinned maps.
fn maps_by_pin(node: &Node) -> BTreeMap<String, u32> {
    let names = fs::read_dir(node.pin("")).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).map(|name| (name.clone(), map(node, &name).id)).collect()
}

/// The control: a program that is missing is noticed by the flows.
#[test]
fn without_programs_packets_are_lost() {
    require_root!();
    let mut cast = cast();
    let (flows, connections) = cast.allowed(SHORT);
    sleep(Duration::from_millis(100));
    cast.node.kill();
    let drop_all = Program::from_instructions("drop", &[0x0000_0002_0000_00b7, 0x95]).unwrap();
    let tc = Tc::new().unwrap();
    for line in cast.node.host().ip("-o link show").unwrap().lines().filter(|line| line.contains(": lxc")) {
        let index: u32 = line.split(':').next().unwrap().parse().unwrap();
        let filters = tc.filters(index, Direction::Ingress).unwrap();
        tc.attach(index, Direction::Ingress, filters[0].priority, &filters[0].name, &drop_all).unwrap();
    }
    sleep(Duration::from_millis(50));
    assert!(flows.into_iter().all(|flow| flow.stop().lost() > 0));
    drop(connections);
}
