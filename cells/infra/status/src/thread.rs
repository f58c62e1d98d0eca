//! The thread of the probes' server and of the watchdog: it has a runtime of its own, so that both keep working when
//! jobs, or all threads of the agent's runtime, hang.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use hive::Health;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::collector::Collector;
use crate::error::Error;
use crate::kubelet::{self, Port};
use crate::proxy::Proxy;
use crate::watch::Watch;

/// Interval between two samples of the watchdog.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The running thread.
pub(crate) struct Thread {
    stop: CancellationToken,
    handle: JoinHandle<()>,
}

impl Thread {
    /// Starts the thread and waits until it listens or has failed to.
    pub(crate) async fn start(
        port: Port,
        proxy: Option<Proxy>,
        watch: Watch,
        collector: Arc<Collector>,
        server: Health,
    ) -> Result<Self, Error> {
        let stop = CancellationToken::new();
        let (listening, bound) = oneshot::channel();
        let stopped = stop.clone();
        let handle = std::thread::Builder::new()
            .name("healthz".to_owned())
            .spawn(move || run(port, proxy, watch, collector, server, stopped, listening))
            .map_err(Error::Thread)?;
        match bound.await {
            Ok(bound) => bound?,
            Err(_) => return Err(Error::Thread(io::Error::other("it ended at once"))),
        }
        Ok(Self { stop, handle })
    }

    /// Stops it and waits for its end.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        // Fails only if the thread has panicked, which is logged.
        let _ended = hive::blocking(move || self.handle.join()).await;
    }
}

fn run(
    port: Port,
    proxy: Option<Proxy>,
    mut watch: Watch,
    collector: Arc<Collector>,
    server: Health,
    stop: CancellationToken,
    listening: oneshot::Sender<Result<(), Error>>,
) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(listening.send(Err(Error::Thread(error)))),
    };
    runtime.block_on(async move {
        let listeners = match kubelet::bind(port) {
            Ok(listeners) => listeners,
            Err(error) => return drop(listening.send(Err(error))),
        };
        let proxy = match proxy.map(|proxy| proxy.bind().map(|listener| (listener, proxy))).transpose() {
            Ok(proxy) => proxy,
            Err(error) => return drop(listening.send(Err(error))),
        };
        server.ok("serving");
        let mut servers = JoinSet::new();
        for listener in listeners {
            let collector = collector.clone();
            let answer = move |request: &_| kubelet::probe(&collector, request, port.require_k8s);
            servers.spawn(kubelet::serve(listener, answer, stop.clone(), server.clone()));
        }
        if let Some((listener, proxy)) = proxy {
            let health = proxy.health.clone();
            health.ok("serving");
            let answer = move |request: &_| proxy.answer(&collector, request, SystemTime::now());
            servers.spawn(kubelet::serve(listener, answer, stop.clone(), health));
        }
        let _waits = listening.send(Ok(()));
        let mut samples = interval(SAMPLE_INTERVAL);
        samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(samples.tick()).await.is_some() {
            watch.sample();
        }
        servers.join_all().await;
    });
}
