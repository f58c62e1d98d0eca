//! A client that accepts all resources, for hives without an Envoy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_api::discovery::DiscoveryRequest;
use envoy_api::listener::Listener;
use envoy_api::{Message as _, core, rpc};
use hive::prelude::*;
use parking_lot::Mutex;
use xds::Value;

use crate::handle::Envoy;
use crate::kind::Kind;
use crate::metrics::Counters;
use crate::resources::{Resources, Stream};

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
