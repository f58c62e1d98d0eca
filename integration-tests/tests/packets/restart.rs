//! No packet and no state is lost when the agent stops, is killed, and starts again.

use std::thread::sleep;
use std::time::Duration;

use integration_tests::{Node, Pod};
use test_kit::{TcpFlow, UdpFlow, require_root};

const RUNS: usize = 5;

/// How the agent ends before its next start.
#[derive(Clone, Copy, Debug)]
enum End {
    Terminate,
    Kill,
}

/// Restarts the agent under UDP and TCP between the first two pods over both families.
fn restart_under_traffic(node: &mut Node, pods: &[Pod], end: End) {
    let (a, b) = (&pods[0], &pods[1]);
    let udp = b.addresses().map(|ip| UdpFlow::start(&a.ns, &b.ns, ip).unwrap());
    let tcp = b.addresses().map(|ip| TcpFlow::start(&a.ns, &b.ns, ip).unwrap());
    let before = node.endpoints();
    sleep(Duration::from_millis(100));
    match end {
        End::Terminate => node.stop(),
        End::Kill => {
            node.kill();
        }
    }
    sleep(Duration::from_millis(50));
    node.start();
    sleep(Duration::from_millis(100));
    for flow in udp {
        let report = flow.stop();
        assert!(report.is_perfect(), "{end:?}: {report:?}\n{}", node.log());
    }
    for flow in tcp {
        let report = flow.stop();
        assert!(report.is_perfect(), "{end:?}: {report:?}\n{}", node.log());
    }
    assert_eq!(before, node.endpoints(), "{end:?}: numbers and addresses stay");
}

fn restarts(count: usize) {
    require_root!();
    let mut node = Node::started();
    let pods = node.add_pods(count);
    for end in [End::Terminate, End::Kill] {
        for _ in 0..RUNS {
            restart_under_traffic(&mut node, &pods, end);
        }
    }
    // Restored endpoints can still be used and deleted.
    let late = node.add_pod("late");
    let udp = UdpFlow::start(&late.ns, &pods[0].ns, pods[0].ipv4).unwrap();
    sleep(Duration::from_millis(100));
    let report = udp.stop();
    assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    for pod in pods {
        node.delete_pod(pod);
    }
    node.delete_pod(late);
}

#[test]
fn restarts_with_2_endpoints_lose_nothing() {
    restarts(2);
}

#[test]
fn restarts_with_50_endpoints_lose_nothing() {
    restarts(50);
}
