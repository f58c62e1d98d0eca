//! Invalid calls: their codes and texts. None of them reaches an agent or the kernel.

mod support;

use support::{CONFIG, feed, plugin};

fn call(env: &[(&str, &str)], config: &str) -> String {
    let mut process = plugin();
    process.env("CILIUM_SOCK", "/nonexistent/agent.sock").envs(env.iter().copied());
    feed(process, config).error()
}

const ADD: [(&str, &str); 4] = [
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "0123456789"),
    ("CNI_NETNS", "/nonexistent/netns"),
    ("CNI_IFNAME", "eth0"),
];

fn add_with(name: &str, value: &str) -> String {
    let mut env = ADD.to_vec();
    env.push((name, value));
    call(&env, CONFIG)
}

#[test]
fn variables() {
    insta::assert_snapshot!(call(&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "eth0")], CONFIG), @"4 required env variables [CNI_CONTAINERID,CNI_NETNS] missing");
    insta::assert_snapshot!(call(&[("CNI_COMMAND", "DEL")], CONFIG), @"4 required env variables [CNI_CONTAINERID,CNI_IFNAME] missing");
    insta::assert_snapshot!(call(&[("CNI_COMMAND", "MOVE")], CONFIG), @"4 unknown CNI_COMMAND: MOVE");
    insta::assert_snapshot!(add_with("CNI_CONTAINERID", "abcd"), @r#"4 invalid CNI_CONTAINERID "abcd": too short, at least 5 characters are needed"#);
    insta::assert_snapshot!(add_with("CNI_CONTAINERID", "../../etc"), @r#"4 invalid CNI_CONTAINERID "../../etc": want letters, digits, '_', '.', '-', the first a letter or digit"#);
    insta::assert_snapshot!(add_with("CNI_IFNAME", "a-very-long-name"), @r#"4 invalid CNI_IFNAME "a-very-long-name": too long, at most 15 characters are possible"#);
    insta::assert_snapshot!(add_with("CNI_IFNAME", "eth/0"), @r#"4 invalid CNI_IFNAME "eth/0": '/', ':' and white space are not possible in interface names"#);
    insta::assert_snapshot!(add_with("CNI_IFNAME", ".."), @r#"4 invalid CNI_IFNAME "..": '.' and '..' are no interface names"#);
    insta::assert_snapshot!(add_with("CNI_ARGS", "K8S_POD_NAME"), @r#"4 invalid CNI_ARGS "K8S_POD_NAME": want KEY=VALUE;KEY=VALUE"#);
    insta::assert_snapshot!(add_with("CNI_ARGS", "COLOUR=red"), @r#"4 invalid CNI_ARGS "COLOUR=red": a key is unknown and IgnoreUnknown=1 is not given"#);
    insta::assert_snapshot!(add_with("CNI_NETNS", "/nonexistent/netns"), @"999 opening the network namespace /nonexistent/netns: No such file or directory (os error 2)");
}

#[test]
fn configurations() {
    insta::assert_snapshot!(call(&ADD, ""), @"6 cannot decode the network configuration: EOF while parsing a value at line 1 column 0");
    insta::assert_snapshot!(call(&ADD, "{"), @"6 cannot decode the network configuration: EOF while parsing an object at line 1 column 1");
    insta::assert_snapshot!(call(&ADD, r#"{"cniVersion":1,"name":"cilium"}"#), @"6 cannot decode the network configuration: invalid type: integer `1`, expected a string at line 1 column 15");
    insta::assert_snapshot!(call(&ADD, r#"{"cniVersion":"2.0.0","name":"cilium"}"#), @r#"1 incompatible CNI versions (config is "2.0.0", plugin supports [0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0])"#);
    insta::assert_snapshot!(call(&ADD, r#"{"cniVersion":"1.0.0"}"#), @r#"7 invalid network configuration, key "name": missing network name"#);
    insta::assert_snapshot!(call(&ADD, r#"{"cniVersion":"1.0.0","name":"a b"}"#), @r#"7 invalid network configuration, key "name": want letters, digits, '_', '.', '-', the first a letter or digit"#);
    insta::assert_snapshot!(call(&ADD, r#"{"cniVersion":"1.0.0","name":"cilium","prevResult":{}}"#), @r#"7 invalid network configuration, key "prevResult": a previous result is given, but chaining-mode names no plugin to chain to"#);
    insta::assert_snapshot!(call(&ADD, r#"{"name":"cilium","chaining-mode":"generic-veth"}"#), @r#"7 invalid network configuration, key "prevResult": missing; chaining-mode "generic-veth" takes over the interface of the plugin before it in the list of plugins"#);
}

#[test]
fn verbs_that_the_version_does_not_have() {
    let verb = |verb: &str, config: &str| {
        let mut env = ADD.to_vec();
        env[0] = ("CNI_COMMAND", verb);
        call(&env, config)
    };
    insta::assert_snapshot!(verb("CHECK", r#"{"cniVersion":"0.3.1","name":"cilium"}"#), @r#"1 config version "0.3.1" does not allow CHECK"#);
    insta::assert_snapshot!(verb("STATUS", r#"{"cniVersion":"1.0.0","name":"cilium"}"#), @r#"1 config version "1.0.0" does not allow STATUS"#);
    insta::assert_snapshot!(verb("GC", r#"{"cniVersion":"1.0.0","name":"cilium"}"#), @r#"1 config version "1.0.0" does not allow GC"#);
    insta::assert_snapshot!(verb("GC", CONFIG), @r#"7 invalid network configuration, key "cni.dev/valid-attachments": missing; without the list of attachments in use nothing can be collected"#);
    insta::assert_snapshot!(verb("CHECK", CONFIG), @r#"7 invalid network configuration, key "prevResult": missing; CHECK compares with it"#);
}

#[test]
fn an_unreachable_agent() {
    let verb = |verb: &str, config: &str| {
        let mut env = ADD.to_vec();
        env[0] = ("CNI_COMMAND", verb);
        call(&env, config)
    };
    insta::assert_snapshot!(verb("STATUS", CONFIG), @"50 DaemonDown (unable to connect to Cilium agent: No such file or directory (os error 2))");
    let check = r#"{"cniVersion":"1.1.0","name":"cilium","prevResult":{"ips":[]}}"#;
    insta::assert_snapshot!(verb("CHECK", check), @"11 DaemonDown (unable to connect to the agent at unix:///nonexistent/agent.sock: No such file or directory (os error 2). Is the agent running?)");
}

#[test]
fn version_needs_nothing() {
    let mut process = plugin();
    process.env("CNI_COMMAND", "VERSION");
    let answer = feed(process, "");
    assert!(answer.ok);
    insta::assert_snapshot!(answer.stdout, @r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#);
}

#[test]
fn without_a_verb_it_prints_its_name() {
    let answer = feed(plugin(), "");
    assert!(answer.ok);
    assert_eq!(answer.stdout, "");
}
