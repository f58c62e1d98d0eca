//! The whole agent in numbers: start, restart, endpoints, plugin. Prints one row a number
//! (name, measured, unit, goal, met, peer), tab separated.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use integration_tests::measure::{
    Candidate, compared_row, from_clients, no_rows, percentile, resident, row, seconds,
};
use integration_tests::{Node, binary, costs};
use test_kit::NetNs;

fn main() {
    if !test_kit::is_root() {
        no_rows("agent", "needs root");
        return;
    }
    sizes();
    start_and_idle();
    endpoints();
    plugin();
}

fn median(samples: Vec<f64>) -> f64 {
    percentile(samples, 50)
}

fn sizes() {
    for (name, file, goal) in [("agent binary", "agent", 20.0), ("CNI binary", "apiary-cni", 2.0)] {
        let bytes = fs::metadata(binary(file)).unwrap().len();
        let change = costs::size_change(name, bytes);
        compared_row(name, bytes as f64 / 1e6, "MB", goal, change.as_deref().unwrap_or("-"));
    }
}

/// Waits, at a grain of 1 ms, until `probe` gives a value.
fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn health_answers(node: &Node) -> bool {
    let probe = || -> std::io::Result<bool> {
        use std::io::Read;
        let mut stream = std::net::TcpStream::connect("127.0.0.1:9879")?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"))
    };
    node.host().run(|| probe().unwrap_or(false))
}

/// The links of the host datapath are pinned and run its programs.
fn host_datapath_ready(node: &Node) -> bool {
    let runs = |device: &str, program: &str| -> bpf::Result<bool> {
        let pin = format!("cilium/devices/{device}/links/{program}");
        let link = bpf::Link::open(&node.sandbox().bpf_root().join(pin))?;
        Ok(bpf::Program::open_id(link.info()?.program)?.name() == program)
    };
    let places = [
        ("cilium_host", "cil_from_host"),
        ("cilium_host", "cil_to_host"),
        ("cilium_net", "cil_to_host"),
        ("eth0", "cil_from_netdev"),
    ];
    places.iter().all(|(device, program)| runs(device, program).unwrap_or(false))
}

fn start_and_idle() {
    let (mut healthy, mut ready) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let mut node = Node::new();
        let begin = Instant::now();
        node.spawn();
        until("healthz", || health_answers(&node).then_some(()));
        healthy.push(seconds(begin));
        until("host datapath", || host_datapath_ready(&node).then_some(()));
        ready.push(seconds(begin));
        node.stop();
    }
    row("exec to healthz", median(healthy), "s", 0.10);
    row("exec to host datapath ready", median(ready), "s", 0.15);

    // Both idle at once: with Hubble the rings are open, and nothing comes.
    let mut observed = Node::new();
    observed.config.insert("enable-hubble".into(), "true".into());
    observed.start();
    let pids = [Node::started(), observed].map(|node| (node.agent_pid(), node));
    std::thread::sleep(Duration::from_secs(60));
    let before = pids.each_ref().map(|(pid, _)| cpu_ticks(*pid));
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs(20));
    let after = pids.each_ref().map(|(pid, _)| cpu_ticks(*pid));
    let passed = seconds(begin);
    let [alone, observed] = [0, 1].map(|node| (after[node] - before[node]) as f64 / passed);
    row("idle CPU", alone, "%", 0.2);
    row("idle CPU with Hubble", observed, "%", 0.2);
    let [alone, observed] = pids.each_ref().map(|(pid, _)| resident(*pid));
    row("idle memory of Hubble", observed - alone, "MB", 3.0);
}

/// Hundredths of a second of processor time that a process has used.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn endpoints() {
    let mut node = Node::started();
    let pods = node.sandbox().netns("pods").unwrap();
    let socket = node.socket();

    let one_by_one: Vec<f64> =
        (0..100).map(|i| Candidate::new(&node, &pods, i).create(&socket) * 1e3).collect();
    row("endpoint create by PUT, p50 of 100", median(one_by_one), "ms", 1.0);
    for i in 0..100 {
        let path = format!("/v1/endpoint/cni-attachment-id:bench{i}:eth{i}");
        assert_eq!(node.request("DELETE", &path, None).unwrap().status, 200);
    }

    let storm: Vec<Candidate> = (100..150).map(|i| Candidate::new(&node, &pods, i)).collect();
    let begin = Instant::now();
    from_clients(8, &storm, |candidate| {
        candidate.create(&socket);
    });
    row("storm of 50 from 8 clients", seconds(begin), "s", 0.025);

    let mut restarts = Vec::new();
    for _ in 0..5 {
        node.stop();
        let begin = Instant::now();
        node.spawn();
        node.wait_ready();
        restarts.push(seconds(begin));
    }
    row("restart with 50 endpoints to all ready", median(restarts), "s", 0.07);
}

/// Whole processes of the plugin, as a container runtime starts them.
fn plugin() {
    let mut node = Node::started();
    let (mut add, mut delete, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..35 {
        let name = format!("pod{i}");
        let ns = node.sandbox().netns(&name).unwrap();
        for (verb, samples) in [("ADD", &mut add), ("DEL", &mut delete)] {
            let watch_memory = i >= 30;
            let (took, peak) = call_plugin(&node, verb, &name, &ns, watch_memory);
            if watch_memory { memory.push(peak) } else { samples.push(took * 1e3) }
        }
        node.sandbox().remove_netns(ns).unwrap();
    }
    row("CNI ADD, whole process, p50 of 30", median(add), "ms", 12.0);
    row("CNI DEL, whole process, p50 of 30", median(delete), "ms", 15.0);
    row("CNI plugin, largest resident memory", memory.into_iter().fold(0.0, f64::max), "MB", 6.0);
    node.stop();
}

/// Seconds that a call takes, and the peak of its resident memory in MB when that is watched.
fn call_plugin(node: &Node, verb: &str, name: &str, ns: &NetNs, watch_memory: bool) -> (f64, f64) {
    let plugin = binary("apiary-cni");
    let mut command = node.host().command(&plugin);
    command
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", format!("container-{name}"))
        .env("CNI_NETNS", ns.path())
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", plugin.parent().unwrap())
        .env("CILIUM_SOCK", node.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let begin = Instant::now();
    let mut child = command.spawn().unwrap();
    let config = format!(
        r#"{{"cniVersion":"1.0.0","name":"cilium","type":"cilium-cni","log-file":"{}"}}"#,
        node.sandbox().dir().join("cni.log").display()
    );
    child.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
    let mut peak: f64 = 0.0;
    if watch_memory {
        // Reading its status costs time, so a watched run is not timed.
        until(&format!("{verb} of {name}"), || {
            if let Ok(text) = fs::read_to_string(format!("/proc/{}/status", child.id())) {
                let high =
                    text.lines().find(|l| l.starts_with("VmHWM:")).and_then(|l| l.split_whitespace().nth(1));
                peak = peak.max(high.and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0 / 1e6);
            }
            child.try_wait().unwrap()
        });
    }
    let status = child.wait().unwrap();
    let took = seconds(begin);
    assert!(status.success(), "{verb} {name}: {status}\n{}", node.log());
    (took, peak)
}
