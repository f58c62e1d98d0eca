//! The kit's guarantees, on the real kernel.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use test_kit::{
    MachineState, NetNs, Sandbox, SandboxOptions, TcpFlow, UdpFlow, free_port, require_root, wait_until,
};

fn wired(sandbox: &Sandbox) -> NetNs {
    let pod = sandbox.netns("pod").unwrap();
    sandbox.host().veth("host0", &pod, "eth0").unwrap();
    sandbox.host().ip("addr add 10.0.0.1/24 dev host0").unwrap();
    sandbox.host().ip("addr add fd00::1/64 dev host0 nodad").unwrap();
    pod.ip("addr add 10.0.0.2/24 dev eth0").unwrap();
    pod.ip("addr add fd00::2/64 dev eth0 nodad").unwrap();
    pod
}

#[test]
fn a_sandbox_leaves_nothing_behind() {
    require_root!();
    let namespaces = || ["net", "mnt"].map(|ns| fs::read_link(format!("/proc/thread-self/ns/{ns}")).unwrap());
    let before = namespaces();
    let (dir, cgroup);
    {
        let sandbox = Sandbox::with(&SandboxOptions { cgroup: true, ..SandboxOptions::default() }).unwrap();
        let inside = namespaces();
        assert!(before[0] != inside[0] && before[1] != inside[1]);
        dir = sandbox.dir().to_owned();
        cgroup = sandbox.cgroup().unwrap();
        assert!(cgroup.join("cgroup.procs").exists());
        fs::create_dir(cgroup.join("child")).unwrap();
        fs::create_dir(sandbox.bpf_root().join("tc")).unwrap();
        assert!(Path::new("/sys/fs/bpf/tc").is_dir(), "the default bpffs is the private one");
        fs::write(sandbox.state_dir().join("file"), "x").unwrap();
        let links: Vec<_> = fs::read_dir("/sys/class/net").unwrap().flatten().collect();
        assert_eq!(links.len(), 1, "{links:?}");
        assert!(fs::write("/proc/sys/kernel/panic", "0").is_err(), "machine-wide keys are read-only");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        sandbox.netns("a").unwrap();
        // A thread that outlives the sandbox does not keep it from going.
        let (_stop, wait) = std::sync::mpsc::channel::<()>();
        let builder = thread::Builder::new().name("outlives".into());
        builder.spawn(move || wait.recv_timeout(Duration::from_secs(1))).unwrap();
        drop(sandbox);
        assert!(!dir.exists());
    }
    assert_eq!(before, namespaces());
    assert!(!dir.exists());
    assert!(!Path::new("/sys/fs/bpf/tc/nothing").exists());
}

#[test]
fn runtimes_and_processes_are_inside() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let pod = wired(&sandbox);
    let seen = thread::scope(|s| s.spawn(|| fs::read_to_string("/proc/thread-self/net/dev")).join());
    assert!(seen.unwrap().unwrap().contains("host0"));
    assert!(sandbox.host().ip("-o link").unwrap().contains("host0"));
    assert!(pod.ip("-o link").unwrap().contains("eth0"));
    assert!(!pod.ip("-o link").unwrap().contains("host0"));
    let error = pod.ip("link set nosuch up").unwrap_err().to_string();
    assert!(error.contains("nosuch"), "{error}");
    pod.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    assert_eq!(pod.sysctl("net/ipv4/ip_forward").unwrap(), "1");
    assert_ne!(free_port(IpAddr::from([127, 0, 0, 1])).unwrap(), 0);
}

#[test]
fn flows_count_every_packet_and_see_a_cut() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let pod = wired(&sandbox);
    for ip in ["10.0.0.2", "fd00::2"] {
        let ip: IpAddr = ip.parse().unwrap();
        let udp = UdpFlow::start(sandbox.host(), &pod, ip).unwrap();
        let tcp = TcpFlow::start(sandbox.host(), &pod, ip).unwrap();
        wait_until("packets flow", Duration::from_secs(10), || udp.received() > 100 && tcp.received() > 100);
        let (udp, tcp) = (udp.stop(), tcp.stop());
        assert!(udp.is_perfect(), "{udp:?}");
        assert!(tcp.is_perfect(), "{tcp:?}");
    }
    let udp = UdpFlow::start(sandbox.host(), &pod, "10.0.0.2".parse().unwrap()).unwrap();
    wait_until("packets flow", Duration::from_secs(10), || udp.received() > 50);
    pod.ip("link set eth0 down").unwrap();
    thread::sleep(Duration::from_millis(100));
    let report = udp.stop();
    assert!(report.lost() > 20 && report.socket_drops == 0, "{report:?}");
}

#[test]
fn the_machine_comparison_sees_changes() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let before = MachineState::capture();
    assert!(before.len() > 100);
    assert_eq!(before.changes(&MachineState::capture()), Vec::<String>::new());
    sandbox.host().set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    sandbox.host().ip("link add br0 type bridge").unwrap();
    fs::create_dir(sandbox.bpf_root().join("tc")).unwrap();
    let changes = before.changes(&MachineState::capture());
    for part in ["net/ipv4/ip_forward: '0' -> '1'", "br0", "/sys/fs/bpf: '' -> 'tc'"] {
        assert!(changes.iter().any(|c| c.contains(part)), "{part}: {changes:#?}");
    }
}
