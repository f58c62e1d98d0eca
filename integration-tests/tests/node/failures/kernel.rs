//! A kernel that temporarily refuses calls: no memory, interrupted, busy.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, ServiceFixture, pod_manifest};
use test_kit::{Process, UdpFlow, has_command, require_root, skip};

use super::kit::{allows, health, logged, node, until, until_well};

/// Makes each call of bpf(2) by the agent fail with this error, until it is dropped.
struct Refusal(Process);

impl Refusal {
    fn of(node: &Node, error: &str) -> Refusal {
        let mut command = Command::new("strace");
        command
            .args(["-f", "-qq", "-e", "trace=bpf", "-e"])
            .arg(format!("inject=bpf:error={error}"))
            .args(["-o", "/dev/null", "-p"])
            .arg(node.agent_pid().to_string());
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let process = Process::start(&mut command).unwrap();
        // Wait until the kernel reports the tracer.
        let status = format!("/proc/{}/status", node.agent_pid());
        until(node, "the tracer is there", || {
            let status = std::fs::read_to_string(&status).unwrap();
            !status.lines().any(|line| line == "TracerPid:\t0")
        });
        sleep(Duration::from_millis(200));
        Refusal(process)
    }

    fn end(mut self) {
        self.0.terminate().unwrap();
        self.0.wait(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn calls_that_the_kernel_refuses_are_tried_again_and_named() {
    require_root!();
    if !has_command("strace") {
        skip!("needs strace");
    }
    let mut node = node("1s");
    node.follow_services("lb.yaml");
    node.start();
    let [a, b, c] = ["a", "b", "c"].map(|name| node.add_pod(name));
    node.serve(&[ServiceFixture::new("web", &["10.96.0.1"], &["10.1.0.1"])]);
    until_well(&node);
    let flow = UdpFlow::start(&a.ns, &c.ns, c.ipv4).unwrap();
    let reaches = |from: &integration_tests::Pod| {
        let flow = UdpFlow::start(&from.ns, &b.ns, b.ipv4).unwrap();
        sleep(Duration::from_millis(60));
        flow.stop().received > 0
    };
    assert!(reaches(&a) && reaches(&c));

    for (error, text, allowed, backend) in [
        ("ENOMEM", "Cannot allocate memory", "a", "10.1.0.2"),
        ("EBUSY", "Device or resource busy", "c", "10.1.0.3"),
        ("EAGAIN", "Resource temporarily unavailable", "a", "10.1.0.4"),
        ("EINTR", "Interrupted system call", "c", "10.1.0.5"),
    ] {
        let warnings = node.log().lines().filter(|line| line.contains("level=warn")).count();
        let refusal = Refusal::of(&node, error);
        // All at once: a policy, a service, other labels, a pod.
        node.apply("policy.yaml", &allows(allowed));
        node.write_services(&integration_tests::state_file(&[ServiceFixture::new(
            "web",
            &["10.96.0.1"],
            &[backend],
        )]));
        node.apply("pod-a.yaml", &pod_manifest("default", "a", &[("name", "a"), ("round", error)]));
        until(&node, "health names the error", || health(&node).contains(text));
        sleep(Duration::from_millis(500));
        refusal.end();
        let (yes, no) = if allowed == "a" { (&a, &c) } else { (&c, &a) };
        until(&node, "the policy is in force", || reaches(yes) && !reaches(no));
        node.serve(&[ServiceFixture::new("web", &["10.96.0.1"], &[backend])]);
        until(&node, "all endpoints are ready", || {
            let rows = node.endpoints();
            rows.iter().all(|row| row.contains("\"ready\""))
        });
        until_well(&node);
        let after = node.log().lines().filter(|line| line.contains("level=warn")).count();
        assert!(after - warnings < 25, "a flood of {}: {}", after - warnings, node.log());
    }
    let report = flow.stop();
    assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    assert_eq!(logged(&node, "panicked"), 0);
    let late = node.add_pod("late");
    node.delete_pod(late);
}
