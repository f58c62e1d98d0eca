//! The state of the server, from requests that overlap.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Request, Response, Uri};
use kube::client::Body;
use tokio::sync::Notify;

use super::*;
use crate::connect::Connect;

/// A server that refuses connections while it is broken; requests of `/slow` are answered when the test says so, by a
/// connection that is open already.
#[derive(Clone, Default)]
struct Overlapping {
    is_broken: Arc<AtomicBool>,
    answers: Arc<Notify>,
}

impl Connect for Overlapping {
    fn connect(&self, _: &Access, _: &Uri) -> Result<kube::Client, String> {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                if request.uri().path() == "/slow" {
                    this.answers.notified().await;
                } else if this.is_broken.load(Ordering::Relaxed) {
                    return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
                }
                Ok(Response::new(Body::empty()))
            }
        });
        Ok(kube::Client::new(service, "default"))
    }
}

fn link(server: &(impl Connect + Clone + 'static), limits: (Limiter, Fence), health: Health) -> Link {
    let (urls, connect) = (vec!["http://fake".to_owned()], Arc::new(server.clone()));
    Link::new(Place::Nowhere, urls, connect, limits, ClientMetrics::default(), health).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_failure_has_overtaken_is_no_recovery() {
    let server = Overlapping::default();
    let (mut hive, health) = hive_with_health().await;
    let link = link(&server, (Limiter::new(0.0, 1), Fence::default()), health);
    let fetch = async |path: &str| {
        let request = crate::link::request(http::Method::GET, path, "application/json", Body::empty());
        link.fetch(request, "x", "pods", "").await.is_ok()
    };
    assert!(fetch("/first").await);
    let slow = fetch("/slow");
    let during = async {
        server.is_broken.store(true, Ordering::Relaxed);
        assert!(!fetch("/refused").await);
        server.answers.notify_one();
    };
    let (is_answered, ()) = futures::join!(slow, during);
    assert!(is_answered);
    assert_eq!(*link.recoveries().borrow(), 0, "it began before the failure");
    assert!(!fetch("/refused").await);
    server.is_broken.store(false, Ordering::Relaxed);
    assert!(fetch("/again").await);
    assert_eq!(*link.recoveries().borrow(), 1);
    hive.stop().await;
}

/// A server that records requests.
#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Vec<String>>>);

impl Connect for Recording {
    fn connect(&self, _: &Access, _: &Uri) -> Result<kube::Client, String> {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            this.0.lock().push(format!("{} {}", request.method(), request.uri()));
            std::future::ready(Ok::<_, io::Error>(Response::new(Body::empty())))
        });
        Ok(kube::Client::new(service, "default"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_the_rate_limit_is_not_sent_once_the_fence_is_up() {
    let (server, is_up) = (Recording::default(), Arc::new(AtomicBool::new(false)));
    let (mut hive, health) = hive_with_health().await;
    let seen = is_up.clone();
    let fence = Fence::new(move |plural| plural == "leases" || !seen.load(Ordering::Relaxed));
    let link = link(&server, (Limiter::new(1.0, 1), fence), health);
    let fetch = async |method: http::Method, plural: &str| {
        let request = crate::link::request(method, &format!("/{plural}"), "application/json", Body::empty());
        link.fetch(request, "x", plural, "").await.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(fetch(http::Method::PUT, "nodes").await, Ok(()));
    // The next ones wait for a second each.
    let raised = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        is_up.store(true, Ordering::Relaxed);
    };
    let (waiting, lease, read, ()) = futures::join!(
        fetch(http::Method::PATCH, "nodes"),
        fetch(http::Method::PUT, "leases"),
        fetch(http::Method::GET, "nodes"),
        raised
    );
    assert_eq!(waiting, Err("PATCH x was not sent: this process may not write any more".to_owned()));
    assert_eq!((lease, read), (Ok(()), Ok(())));
    assert_eq!(*server.0.lock(), ["PUT /nodes", "PUT /leases", "GET /nodes"]);
    assert_eq!(*link.recoveries().borrow(), 0, "the server has not failed");
    hive.stop().await;
}
