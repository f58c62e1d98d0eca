//! A client that accepts all resources, for hives without an Envoy; a real Envoy; untrusted input.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use envoy_api::discovery::DiscoveryRequest;
use envoy_api::listener::Listener;
use envoy_api::{Message as _, core, rpc};
use hive::prelude::*;
use parking_lot::Mutex;
use xds::Value;

use crate::access_log::parse;
use crate::handle::Envoy;
use crate::kind::Kind;
use crate::metrics::Counters;
use crate::process::{Bootstrap, EnvoyProcessConfig};
use crate::resources::{Owner, Resources, Stream};
use crate::server::{Services, serve as serve_socket};

/// The last resources that a client has received, and its answers.
#[derive(Debug, Default)]
pub struct Recorder {
    received: Mutex<BTreeMap<Kind, Arc<[Value]>>>,
    refusal: Mutex<Option<(Kind, String)>>,
    /// The names of the last listeners, and how often they have changed.
    listeners: Mutex<(BTreeSet<String>, u64)>,
}

impl Recorder {
    /// Returns the last resources of a type that the client has received.
    pub fn received(&self, kind: Kind) -> Arc<[Value]> {
        self.received.lock().get(&kind).cloned().unwrap_or_default()
    }

    /// Returns how often listeners have come or gone.
    pub fn listener_changes(&self) -> u64 {
        self.listeners.lock().1
    }

    fn record(&self, kind: Kind, resources: Vec<Value>) {
        if kind == Kind::Listeners {
            let name = |value: &Value| Listener::decode(&**value).map(|listener| listener.name);
            let names: BTreeSet<String> = resources.iter().filter_map(|value| name(value).ok()).collect();
            let mut listeners = self.listeners.lock();
            if listeners.0 != names {
                *listeners = (names, listeners.1 + 1);
            }
        }
        self.received.lock().insert(kind, resources.into());
    }

    /// Lets the client refuse the responses of a type with a text, or accept all again.
    pub fn refuse(&self, refusal: Option<(Kind, String)>) {
        *self.refusal.lock() = refusal;
    }
}

/// Provides `Arc<Envoy>` with a client, `Arc<Recorder>`, that accepts resources once there are any.
pub fn recorder() -> Cell {
    module(
        "envoy-recorder",
        "A client of xDS that records resources",
        [
            provide(|| Arc::new(Envoy::new(Resources::new(Counters::default()), true))),
            provide(|| Arc::new(Recorder::default())),
            invoke(record),
        ],
    )
}

fn record(envoy: Arc<Envoy>, recorder: Arc<Recorder>, jobs: JobGroup) {
    jobs.one_shot("client", move |cx: JobCx| async move {
        let mut changed = envoy.subscribe();
        let mut streams: Vec<(Stream, String)> = Vec::new();
        for kind in Kind::ALL {
            let mut stream = envoy.resources().open(kind);
            let node =
                core::Node { id: "host~127.0.0.1~no-id~localdomain".to_owned(), ..core::Node::default() };
            stream.request(DiscoveryRequest { node: Some(node), ..DiscoveryRequest::default() })?;
            streams.push((stream, String::new()));
        }
        loop {
            changed.mark_unchanged();
            for (stream, version) in &mut streams {
                let Some(response) = stream.response() else { continue };
                let kind = stream.kind();
                let nonce = response.version.to_string();
                let refusal = recorder.refusal.lock().clone().filter(|(refused, _)| *refused == kind);
                if refusal.is_none() {
                    recorder.record(kind, response.resources);
                    version.clone_from(&nonce);
                }
                let error_detail = refusal.map(|(_, message)| rpc::Status { code: 13, message });
                let (version_info, response_nonce) = (version.clone(), nonce);
                stream.request(DiscoveryRequest {
                    version_info,
                    response_nonce,
                    error_detail,
                    ..DiscoveryRequest::default()
                })?;
            }
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                _ = changed.changed() => {}
            }
        }
    })
    .add();
}

/// Provides a handle of its own, served on a socket.
pub fn serve(socket: PathBuf) -> Cell {
    let serving = move |envoy: Arc<Envoy>, jobs: JobGroup| {
        let (services, socket) = (
            Services::new(envoy.resources().clone()).unwrap_or_else(|error| panic!("{error}")),
            socket.clone(),
        );
        jobs.one_shot("xds", move |cx: JobCx| serve_socket(socket, 0, services, cx)).add();
    };
    let envoy = || Arc::new(Envoy::new(Resources::new(Counters::default()), true));
    module("xds", "A server", [provide(envoy), invoke(serving)])
}

/// An Envoy of upstream, which has none of Cilium's filters; killed on drop.
#[derive(Debug)]
pub struct Upstream(Child);

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Upstream {
    /// Returns the binary that `tools/envoy` has fetched.
    pub fn binary() -> Option<PathBuf> {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tools/envoy");
        let output = Command::new(tool).arg("there").output().ok()?;
        let path = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| PathBuf::from(path.trim()))
    }

    /// Starts it with the bootstrap of an Envoy that the agent starts. The socket is `xds.sock` in a folder.
    pub fn start(binary: &Path, folder: &Path, socket: &Path) -> std::io::Result<Upstream> {
        let bootstrap =
            Bootstrap { config: EnvoyProcessConfig::default(), connect_timeout: 2, is_ipv4: true };
        let file = folder.join("bootstrap.json");
        std::fs::write(&file, bootstrap.render(socket.parent().unwrap_or(folder)))?;
        let log = std::fs::File::create(folder.join("envoy.log"))?;
        let mut command = Command::new(binary);
        command.arg("-c").arg(file).args(["-l", "warning", "--concurrency", "1", "--disable-hot-restart"]);
        Ok(Upstream(command.stdout(Stdio::null()).stderr(log).spawn()?))
    }
}

/// Parses a message of the access log. Returns whether it is one.
pub fn parse_log_entry(message: &[u8]) -> bool {
    parse(message).is_ok()
}

/// Answers the requests of a stream of listeners, as far as they keep to the protocol. Returns the versions of the
/// responses.
pub fn answer(requests: &[&[u8]]) -> Vec<u64> {
    let resources = Resources::new(Counters::default());
    let mut stream = resources.open(Kind::Listeners);
    let mut versions = Vec::new();
    for (number, request) in requests.iter().enumerate() {
        let name: Arc<str> = format!("listener-{}", number % 2).into();
        let value: Value = vec![u8::try_from(number % 256).unwrap_or_default()].into();
        resources.replace(Owner::Policy, Kind::Listeners, BTreeMap::from([(name, value)]));
        let Ok(request) = DiscoveryRequest::decode(*request) else { break };
        if stream.request(request).is_err() {
            break;
        }
        versions.extend(stream.response().map(|response| response.version));
    }
    versions
}
