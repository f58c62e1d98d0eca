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

#[tokio::test(start_paused = true)]
async fn a_request_that_a_failure_has_overtaken_is_no_recovery() {
    let server = Overlapping::default();
    let given: Arc<Mutex<Option<Health>>> = Arc::default();
    let taken = given.clone();
    let mut hive =
        TestHive::new(module("client", "x", [invoke(move |health: Health| *taken.lock() = Some(health))]));
    hive.start().await;
    let health = given.lock().take().expect("the module has health");
    let (metrics, limiter) = (ClientMetrics::default(), Limiter::new(0.0, 1));
    let urls = vec!["http://fake".to_owned()];
    let link = Link::new(Place::Nowhere, urls, Arc::new(server.clone()), limiter, metrics, health).unwrap();
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
