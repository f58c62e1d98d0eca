//! A simulated cluster: objects of many nodes, which an HTTP server of this process gives to real agents and operators.

mod objects;

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::FutureExt;
use k8s_fake_apiserver::{HttpServer, Tracker};
use k8s_types::schema::custom_resource_definitions;
use k8s_types::{Api, Key, Kind, Preconditions};
use serde_json::Value;
use statedb::Db;
use test_kit::NetNs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

pub use objects::{Size, cilium_node, node_address, service_address};

use crate::{Cluster, Node};

const SERVER_THREADS: usize = 4;

/// The API server of a simulated cluster. Dropping it ends its connections.
pub struct SimulatedCluster {
    /// The number of objects at the start.
    pub size: Size,
    /// The objects.
    pub tracker: Tracker,
    http: HttpServer,
    url: String,
    runtime: Runtime,
}

/// The time at which the last event of a watch has reached a client that does not read it.
pub struct Arrivals(Arc<Mutex<Instant>>);

impl Arrivals {
    /// Returns the time of the last one.
    ///
    /// # Panics
    /// When the client has panicked.
    #[must_use]
    pub fn last(&self) -> Instant {
        *self.0.lock().unwrap()
    }
}

impl SimulatedCluster {
    /// Creates a cluster of this size with the given kinds, and serves it at an address of a network namespace.
    ///
    /// # Panics
    /// When it cannot be served.
    #[must_use]
    pub fn new(ns: &NetNs, size: Size, kinds: &[Kind]) -> Self {
        let tracker = Tracker::new(&Db::new().table().unwrap());
        for &kind in kinds {
            tracker.add_objects(size.objects(kind)).unwrap();
        }
        tracker.add_objects(custom_resource_definitions()).unwrap();
        // A list of a large kind keeps a thread busy for seconds; leases are renewed meanwhile.
        let runtime =
            Builder::new_multi_thread().worker_threads(SERVER_THREADS).enable_all().build().unwrap();
        let (http, url) = serve(ns, &tracker, &runtime);
        Self { size, tracker, http, url, runtime }
    }

    /// Serves the same objects at another address. The server knows the requests that it gets itself.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn second_server(&self, ns: &NetNs) -> (HttpServer, String) {
        serve(ns, &self.tracker, &self.runtime)
    }

    /// Returns the server of [`url`](Self::url).
    #[must_use]
    pub fn server(&self) -> &HttpServer {
        &self.http
    }

    /// Returns the URL of the API server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the requests since the last call.
    pub fn take_requests(&self) -> Vec<String> {
        self.http.take_requests()
    }

    /// Returns an object.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn get(&self, kind: Kind, key: &Key) -> Value {
        let stored = Api::get(&self.tracker, kind, key).now_or_never().unwrap().unwrap();
        serde_json::from_slice(&stored).unwrap()
    }

    /// Changes an object as a client does that has read it.
    ///
    /// # Panics
    /// When there is no such object, or it is invalid then.
    pub fn edit(&self, kind: Kind, key: &Key, edit: impl FnOnce(&mut Value)) {
        let mut object = self.get(kind, key);
        edit(&mut object);
        Api::update(&self.tracker, kind, object.to_string().into()).now_or_never().unwrap().unwrap();
    }

    /// Creates an object.
    ///
    /// # Panics
    /// When it is invalid.
    pub fn add(&self, object: &Value) {
        self.tracker.add(&object.to_string()).unwrap();
    }

    /// Deletes an object.
    ///
    /// # Panics
    /// When there is none.
    pub fn remove(&self, kind: Kind, key: &Key) {
        Api::delete(&self.tracker, kind, key, Preconditions::default()).now_or_never().unwrap().unwrap();
    }

    /// Watches the objects of a path from now on, from a network namespace: what agents have later than this client is not
    /// the work of the server.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    pub fn arrivals(&self, ns: &NetNs, path: &str) -> Arrivals {
        let objects = self.tracker.objects();
        let version = objects.revision(&objects.snapshot());
        let address = self.url.trim_start_matches("http://");
        let request =
            format!("GET {path}?watch=true&resourceVersion={version} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let socket = ns.run(|| TcpStream::connect(address)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let last = Arc::new(Mutex::new(Instant::now()));
        let arrived = last.clone();
        self.runtime.spawn(async move {
            let mut socket = tokio::net::TcpStream::from_std(socket).unwrap();
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut bytes = vec![0; 1 << 20];
            while socket.read(&mut bytes).await.is_ok_and(|count| count > 0) {
                *arrived.lock().unwrap() = Instant::now();
            }
        });
        Arrivals(last)
    }

    /// Makes a node one of this cluster: [`Cluster::NODE`], with a range of pods of its own.
    pub fn join(&self, node: &mut Node) {
        for option in ["cluster-folder", "ipv4-range", "ipv6-range"] {
            node.config.remove(option);
        }
        let options = [
            ("k8s-api-server-urls", self.url.as_str()),
            ("enable-cilium-endpoint-slice", "true"),
            ("identity-allocation-mode", "crd"),
            ("ipam", "kubernetes"),
            // Ten backends for each service.
            ("bpf-lb-map-max", "262144"),
        ];
        node.config.extend(options.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    /// Starts the agent of a node that has joined, and does not wait.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn(&self, node: &mut Node) {
        let mut command = node.agent_command();
        command.env("K8S_NODE_NAME", Cluster::NODE);
        node.spawn_command(command);
    }
}

/// Serves a tracker at an address of a network namespace; returns the server and its URL.
fn serve(ns: &NetNs, tracker: &Tracker, runtime: &Runtime) -> (HttpServer, String) {
    let listener = ns.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let http = HttpServer::new(tracker);
    let server = http.clone();
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        panic!("{}", server.serve(listener).await);
    });
    (http, url)
}
