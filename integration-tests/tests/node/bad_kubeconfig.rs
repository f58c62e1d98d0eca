//! Invalid kubeconfigs, credentials and options of the API server: a start reports all errors at once.
//!
//! The texts are kept as snapshots, because people search for them; `INSTA_UPDATE=always` accepts new ones.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use integration_tests::Node;
use test_kit::{Process, require_root};

/// A node with repeated starts of the agent, each with an invalid configuration.
struct Starts {
    node: Node,
    reported: String,
}

impl Starts {
    fn new() -> Self {
        let mut node = Node::new();
        node.config.remove("cluster-folder");
        Self { node, reported: String::new() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.node.sandbox().dir().join(name)
    }

    /// Writes a kubeconfig of these parts; the files that it names are in the same folder.
    fn kubeconfig(&mut self, cluster: &str, user: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: main\nclusters: [{{name: here, cluster: {{{cluster}}}}}]\n\
             users: [{{name: robot, user: {{{user}}}}}]\ncontexts: [{{name: main, context: {{cluster: here, user: robot}}}}]\n"
        );
        let text = text.replace("DIR", self.node.sandbox().dir().to_str().unwrap());
        self.text(text.as_bytes());
    }

    fn text(&mut self, text: &[u8]) {
        let file = self.file("kubeconfig");
        fs::write(&file, text).unwrap();
        self.node.config.insert("k8s-kubeconfig-path".to_owned(), file.to_str().unwrap().to_owned());
    }

    /// Starts the agent, which must exit with an error.
    fn refused(&mut self, name: &str) {
        let command = self.node.agent_command();
        self.refused_command(name, command);
    }

    fn refused_command(&mut self, name: &str, mut command: Command) {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut agent = Process::start(&mut command).unwrap();
        let mut stderr = agent.child().stderr.take().unwrap();
        let status = agent.wait(Duration::from_secs(20));
        drop(agent);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stderr, &mut text).unwrap();
        let status = status.unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        assert!(!text.contains("panicked"), "{name}: {text}");
        let text = text.replace(self.node.sandbox().dir().to_str().unwrap(), "DIR");
        let line = text.lines().find_map(|line| line.split_once("level=fatal ")).map_or("", |(_, line)| line);
        // Where the code is that found it says nothing here.
        let reason =
            line.split_once(" failed: ").or(line.split_once(" error=")).map_or(line, |(_, reason)| reason);
        let reason = reason.split(" (set: ").next().unwrap_or_default();
        writeln!(self.reported, "## {name}: exit code {}\n{reason}", status.code().unwrap_or(-1)).unwrap();
    }
}

#[test]
fn files_that_are_no_kubeconfig() {
    require_root!();
    let mut starts = Starts::new();
    starts.node.config.insert("k8s-kubeconfig-path".to_owned(), "/nonexistent/kubeconfig".to_owned());
    starts.refused("missing file");
    starts.node.config.insert("k8s-kubeconfig-path".to_owned(), "/etc".to_owned());
    starts.refused("a directory");
    let pipe = starts.file("pipe");
    starts.node.host().exec(&format!("mkfifo {}", pipe.display())).unwrap();
    starts.node.config.insert("k8s-kubeconfig-path".to_owned(), pipe.to_str().unwrap().to_owned());
    starts.refused("a pipe");
    let large = starts.file("large");
    fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    starts.node.config.insert("k8s-kubeconfig-path".to_owned(), large.to_str().unwrap().to_owned());
    starts.refused("a file of a terabyte");
    for (name, text) in [
        ("empty", &b""[..]),
        ("binary", b"\x7fELF\x00\x01\xff\xfe"),
        ("broken YAML", b"apiVersion: v1\nclusters:\n  - name: [here\n"),
        ("a list", b"[1, 2]"),
        ("another kind", b"apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n"),
        ("wrong type", b"clusters: {name: here}\n"),
        ("no context", b"clusters: []\nusers: []\ncontexts: [{name: main}]\n"),
        ("unknown context", b"current-context: other\ncontexts: [{name: main, context: {cluster: c, user: u}}]\n"),
        ("unknown cluster", b"current-context: main\nclusters: [{name: here, cluster: {server: 'https://h'}}]\ncontexts: [{name: main, context: {cluster: c, user: u}}]\n"),
        ("unknown user", b"current-context: main\nclusters: [{name: c, cluster: {server: 'https://h'}}]\nusers: [{name: robot, user: {}}]\ncontexts: [{name: main, context: {cluster: c, user: u}}]\n"),
        ("context without content", b"current-context: main\nclusters: []\ncontexts: [{name: main}]\n"),
    ] {
        starts.text(text);
        starts.refused(name);
    }
    insta::assert_snapshot!(starts.reported);
}

#[test]
fn servers_and_credentials() {
    require_root!();
    let mut starts = Starts::new();
    for (name, content) in [
        ("empty", &b""[..]),
        ("blank", b"\n"),
        ("two-lines", b"one\ntwo\n"),
        ("binary", b"\xff\xfe\x00"),
        ("text", b"hello"),
    ] {
        fs::write(starts.file(name), content).unwrap();
    }
    let good = "server: 'https://192.0.2.9:6443'";
    for (name, cluster, user) in [
        ("no server", "", ""),
        ("empty server", "server: ''", ""),
        ("server without scheme", "server: '192.0.2.9:6443'", ""),
        ("server of another scheme", "server: 'ftp://192.0.2.9'", ""),
        ("server without host", "server: 'https://:6443'", ""),
        ("server with a blank", "server: 'https://a b'", ""),
        ("port out of range", "server: 'https://192.0.2.9:66443'", ""),
        ("CA not base64", "server: 'https://h', certificate-authority-data: '%%%'", ""),
        ("CA no certificate", "server: 'https://h', certificate-authority-data: aGVsbG8=", ""),
        ("CA missing", "server: 'https://h', certificate-authority: DIR/missing.crt", ""),
        ("CA a directory", "server: 'https://h', certificate-authority: /etc", ""),
        ("CA empty", "server: 'https://h', certificate-authority: DIR/empty", ""),
        ("CA no PEM", "server: 'https://h', certificate-authority: DIR/text", ""),
        ("proxy", "server: 'https://h', proxy-url: 'http://p:3128'", ""),
        ("token missing", good, "tokenFile: DIR/missing"),
        ("token a directory", good, "tokenFile: /etc"),
        ("token empty", good, "tokenFile: DIR/empty"),
        ("token blank", good, "tokenFile: DIR/blank"),
        ("token of two lines", good, "tokenFile: DIR/two-lines"),
        ("token binary", good, "tokenFile: DIR/binary"),
        ("token with a blank", good, "token: 'two words'"),
        ("certificate missing", good, "client-certificate: DIR/missing, client-key: DIR/missing"),
        ("certificate without key", good, "client-certificate: DIR/text"),
        ("certificate no PEM", good, "client-certificate: DIR/text, client-key: DIR/text"),
        ("certificate not base64", good, "client-certificate-data: '%%%', client-key-data: '%%%'"),
        (
            "exec missing",
            good,
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: /nonexistent/login}",
        ),
        ("auth provider", good, "auth-provider: {name: gcp}"),
    ] {
        starts.kubeconfig(cluster, user);
        starts.refused(name);
    }
    insta::assert_snapshot!(starts.reported);
}

#[test]
fn options_and_environment() {
    require_root!();
    let mut starts = Starts::new();
    starts.kubeconfig("server: 'https://192.0.2.9:6443'", "");
    for (key, value) in [
        ("k8s-client-qps", "-1"),
        ("k8s-client-qps", "NaN"),
        ("k8s-client-qps", "inf"),
        ("k8s-client-burst", "-3"),
        ("k8s-client-connection-timeout", "soon"),
        ("k8s-client-connection-timeout", "-5s"),
        ("k8s-heartbeat-timeout", "30"),
        ("crd-wait-timeout", "5 minutes"),
        ("enable-k8s", "maybe"),
        ("k8s-api-server-urls", "192.0.2.9"),
        ("k8s-api-server-urls", "https://192.0.2.9,ftp://x"),
        ("k8s-api-server-urls", "https://192.0.2.9:99999"),
    ] {
        let before = starts.node.config.insert(key.to_owned(), value.to_owned());
        starts.refused(&format!("{key} {value:?}"));
        match before {
            Some(before) => starts.node.config.insert(key.to_owned(), before),
            None => starts.node.config.remove(key),
        };
    }
    starts.node.config.remove("k8s-kubeconfig-path");
    for (name, host, port) in [
        ("no service account", "10.96.0.1", "443"),
        ("no port", "10.96.0.1", "https"),
        ("no host", "not a host", "443"),
    ] {
        let mut command = starts.node.agent_command();
        command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
        starts.refused_command(name, command);
    }
    insta::assert_snapshot!(starts.reported);
}
