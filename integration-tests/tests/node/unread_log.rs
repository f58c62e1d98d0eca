//! An agent whose log is not read works: it starts, makes endpoints, answers, and stops.

use std::io::{self, Write as _};

use integration_tests::Node;
use test_kit::require_root;

#[test]
fn a_log_that_is_not_read_stops_nothing() {
    require_root!();
    let mut node = Node::new();
    let (reader, mut writer) = io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
    let mut command = node.agent_command();
    command.stderr(writer);
    node.spawn_command(command);
    node.wait_ready();
    let pod = node.add_pod("a");
    assert_eq!(node.get("/v1/healthz")["cilium"]["state"], "Ok");
    node.delete_pod(pod);
    node.stop();
    drop(reader);
}
