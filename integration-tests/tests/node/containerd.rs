//! The plugin as a container runtime calls it: Debian's containerd makes a pod sandbox with runc, over its CRI socket, in
//! namespaces and folders of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use grpc::Connection;
use integration_tests::{Node, binary, pod_manifest};
use serde_json::json;
use test_kit::{Process, require, require_root, wait_until};
use tokio::net::UnixStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic_prost::ProstCodec;

/// Messages of `runtime.v1`, as far as the test needs them.
mod cri {
    use std::collections::HashMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct RunRequest {
        #[prost(message, optional, tag = "1")]
        pub(super) config: Option<Config>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Config {
        #[prost(message, optional, tag = "1")]
        pub(super) metadata: Option<Metadata>,
        #[prost(map = "string, string", tag = "6")]
        pub(super) labels: HashMap<String, String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Metadata {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(string, tag = "2")]
        pub(super) uid: String,
        #[prost(string, tag = "3")]
        pub(super) namespace: String,
    }

    /// The request and the answer of all verbs that have no other field here.
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Id {
        #[prost(string, tag = "1")]
        pub(super) pod_sandbox_id: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct StatusResponse {
        #[prost(message, optional, tag = "1")]
        pub(super) status: Option<Status>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Status {
        #[prost(message, optional, tag = "5")]
        pub(super) network: Option<Address>,
    }

    /// The first address, and those of the other family.
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Address {
        #[prost(string, tag = "1")]
        pub(super) ip: String,
        #[prost(message, repeated, tag = "2")]
        pub(super) additional: Vec<Additional>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Additional {
        #[prost(string, tag = "1")]
        pub(super) ip: String,
    }
}

/// Starts a containerd and ends it, its shims and its mounts with the namespaces that they are in.
struct Runtime {
    folder: PathBuf,
    _process: Process,
}

impl Runtime {
    fn start(node: &Node, networks: &Path, plugins: &Path) -> Runtime {
        let folder = node.sandbox().dir().join("containerd");
        fs::create_dir_all(&folder).unwrap();
        let place = |name: &str| json!(folder.join(name)).to_string();
        let config = format!(
            r#"version = 2
root = {root}
state = {state}
[grpc]
  address = {socket}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  disable_apparmor = true
  disable_cgroup = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {plugins}
    conf_dir = {networks}
"#,
            root = place("root"),
            state = place("state"),
            socket = place("socket"),
            plugins = json!(plugins),
            networks = json!(networks),
        );
        fs::write(folder.join("config.toml"), config).unwrap();
        let log = fs::File::create(folder.join("log")).unwrap();
        // Its namespaces of networks are below /run, its cgroups below that of the test.
        let script = r#"mount -t tmpfs tmpfs /run && mkdir /run/netns && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec containerd -c "$0""#;
        let mut command = node.host().command("unshare");
        command
            .args(["--mount", "--propagation=private", "--pid", "--fork", "--mount-proc", "--kill-child"])
            .args(["--ipc", "--cgroup", "sh", "-c", script])
            .arg(folder.join("config.toml"))
            .env("CILIUM_SOCK", node.socket())
            .env("PATH", path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let process = Process::start(&mut command).unwrap();
        let runtime = Runtime { folder, _process: process };
        wait_until("containerd serves", Duration::from_secs(60), || runtime.folder.join("socket").exists());
        runtime
    }

    /// Imports the image of the sandbox, which has a single program.
    fn import(&self) {
        let image = self.folder.join("image");
        fs::create_dir_all(image.join("blobs/sha256")).unwrap();
        fs::write(image.join("pause.c"), "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
            .unwrap();
        self.run(&image, "cc -static -O1 -o pause pause.c");
        self.run(&image, "tar -cf layer.tar pause");
        let blob = |content: &[u8]| {
            let file = image.join("blob");
            fs::write(&file, content).unwrap();
            let digest = self.run(&image, "sha256sum blob")[..64].to_owned();
            fs::rename(file, image.join("blobs/sha256").join(&digest)).unwrap();
            (format!("sha256:{digest}"), content.len())
        };
        let (layer, layer_size) = blob(&fs::read(image.join("layer.tar")).unwrap());
        let config = json!({"architecture": ARCHITECTURE, "os": "linux", "config": {"Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [layer]}});
        let (config, config_size) = blob(config.to_string().as_bytes());
        let kind = |name: &str| format!("application/vnd.oci.image.{name}");
        let manifest = json!({"schemaVersion": 2, "mediaType": kind("manifest.v1+json"),
            "config": {"mediaType": kind("config.v1+json"), "digest": config, "size": config_size},
            "layers": [{"mediaType": kind("layer.v1.tar"), "digest": layer, "size": layer_size}]});
        let (manifest, size) = blob(manifest.to_string().as_bytes());
        let index = json!({"schemaVersion": 2, "manifests": [{"mediaType": kind("manifest.v1+json"),
            "digest": manifest, "size": size, "annotations": {"io.containerd.image.name": IMAGE}}]});
        fs::write(image.join("index.json"), index.to_string()).unwrap();
        fs::write(image.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        self.run(&image, "tar -cf image.tar oci-layout index.json blobs");
        let socket = self.folder.join("socket");
        let import =
            format!("ctr -a {} -n k8s.io images import --snapshotter native image.tar", socket.display());
        self.run(&image, &import);
    }

    fn run(&self, folder: &Path, line: &str) -> String {
        let mut words = line.split(' ');
        let mut command = Command::new("env");
        command.arg(words.next().unwrap()).args(words).env("PATH", path()).current_dir(folder);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{line}: {}\n{}", text(&output.stderr), self.log());
        text(&output.stdout)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Sends a request as the kubelet does.
    fn call<Q, R>(&self, verb: &str, request: Q) -> Result<R, String>
    where
        Q: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stream = UnixStream::connect(self.folder.join("socket")).await.unwrap();
            let (connection, work) = Connection::new(stream).await.unwrap();
            let path = PathAndQuery::try_from(format!("/runtime.v1.RuntimeService/{verb}")).unwrap();
            let mut client = tonic::client::Grpc::new(connection);
            let answer = async {
                client.ready().await.map_err(|error| error.to_string())?;
                let codec = ProstCodec::<Q, R>::default();
                let answer = client.unary(tonic::Request::new(request), path, codec).await;
                answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
            };
            tokio::select! {
                answer = answer => answer,
                end = work => Err(format!("the connection has ended: {end:?}")),
            }
        })
    }

    fn run_pod(&self, name: &str) -> Result<String, String> {
        let labels = [("io.kubernetes.pod.name", name), ("io.kubernetes.pod.namespace", "default")];
        let config = cri::Config {
            metadata: Some(cri::Metadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "default".to_owned(),
            }),
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        };
        let id: cri::Id = self.call("RunPodSandbox", cri::RunRequest { config: Some(config) })?;
        Ok(id.pod_sandbox_id)
    }

    fn addresses(&self, id: &str) -> Vec<String> {
        let answer: cri::StatusResponse = self.call("PodSandboxStatus", sandbox(id)).unwrap();
        let network = answer.status.unwrap().network.unwrap();
        std::iter::once(network.ip).chain(network.additional.into_iter().map(|address| address.ip)).collect()
    }
}

/// Packages of Debian that `tools/setup` unpacks: containerd, runc, and the plugin loopback that this containerd calls before ours.
fn packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("target/tools/containerd")
}

/// Where programs are found, those of the packages first.
fn path() -> String {
    let folders = ["usr/bin", "usr/sbin"].map(|folder| packages().join(folder).display().to_string());
    format!("{}:{}", folders.join(":"), std::env::var("PATH").unwrap())
}

const IMAGE: &str = "localhost/pause:1";
const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

fn sandbox(id: &str) -> cri::Id {
    cri::Id { pod_sandbox_id: id.to_owned() }
}

#[test]
fn a_pod_sandbox_of_containerd_has_an_endpoint_until_it_is_removed() {
    require_root!();
    require!(packages().exists(), "containerd is not unpacked: FULL=1 does it");
    let mut node = Node::new();
    let [networks, plugins] = ["cni/net.d", "cni/bin"].map(|name| node.sandbox().dir().join(name));
    fs::create_dir_all(&networks).unwrap();
    fs::create_dir_all(&plugins).unwrap();
    symlink(binary("apiary-cni"), plugins.join("cilium-cni")).unwrap();
    symlink(packages().join("usr/lib/cni/loopback"), plugins.join("loopback")).unwrap();
    let file = networks.join("05-cilium.conflist");
    node.config.insert("write-cni-conf-when-ready".to_owned(), file.display().to_string());
    node.start();
    let runtime = Runtime::start(&node, &networks, &plugins);
    runtime.import();
    let before = node.endpoints();

    node.apply("web.yaml", &pod_manifest("default", "web", &[("name", "web")]));
    let id =
        runtime.run_pod("web").unwrap_or_else(|error| panic!("{error}\n{}\n{}", runtime.log(), node.log()));
    assert_eq!(node.endpoints().len(), before.len() + 1, "{:?}", node.endpoints());
    let addresses = runtime.addresses(&id);
    assert_eq!(addresses.len(), 2, "both families: {addresses:?}");
    for address in &addresses {
        node.host().exec(&format!("ping -c 1 -W 10 {address}")).unwrap();
    }
    let _: cri::Id = runtime.call("StopPodSandbox", sandbox(&id)).unwrap();
    assert_eq!(node.endpoints(), before, "the plugin was asked to delete it");
    let _: cri::Id = runtime.call("RemovePodSandbox", sandbox(&id)).unwrap();

    for address in &addresses {
        let ping = node.host().exec(&format!("ping -c 1 -W 1 {address}"));
        assert!(ping.is_err(), "control: {address} answers without the pod");
    }
    node.stop();
}
