//! An API server with fault injection: unreachable, slow, refusing, or with lost responses.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_types::{Api, ApiError, Key, Kind, Patch, Preconditions};
use parking_lot::Mutex;
use tokio::time::sleep;

/// A fault of a request.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// It is processed and answered.
    None,
    /// It does not reach the server.
    Unsent(ApiError),
    /// The server executes it, but the response is lost.
    LostAnswer,
    /// It is neither executed nor answered.
    Hangs,
}

pub(crate) fn is_unreachable() -> ApiError {
    ApiError::Unavailable { message: "connection refused".into(), retry_after: None }
}

pub(crate) fn busy(seconds: u64) -> ApiError {
    ApiError::Unavailable { message: "too many requests".into(), retry_after: Some(seconds) }
}

/// A recorded request.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) verb: &'static str,
    pub(crate) name: String,
}

#[derive(Clone)]
pub(crate) struct Faulty {
    inner: Arc<dyn Api>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    is_unreachable: bool,
    next: VecDeque<Fault>,
    refused: Vec<(&'static str, ApiError)>,
    latency: Duration,
    made: Vec<Made>,
    under_way: usize,
    most: usize,
}

impl Faulty {
    pub(crate) fn over(inner: Arc<dyn Api>) -> Faulty {
        Faulty { inner, plan: Arc::default() }
    }

    /// Sets whether requests fail to reach the server.
    pub(crate) fn is_unreachable(&self, is_unreachable: bool) {
        self.plan.lock().is_unreachable = is_unreachable;
    }

    /// Sets the faults of the next requests, one each.
    pub(crate) fn next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.plan.lock().next.extend(faults);
    }

    /// Sets the error of all requests with a verb; none to process them again.
    pub(crate) fn refuse(&self, verb: &'static str, error: Option<ApiError>) {
        let mut plan = self.plan.lock();
        plan.refused.retain(|(other, _)| *other != verb);
        plan.refused.extend(error.map(|error| (verb, error)));
    }

    pub(crate) fn latency(&self, latency: Duration) {
        self.plan.lock().latency = latency;
    }

    /// Returns the requests since the last call.
    pub(crate) fn made(&self) -> Vec<Made> {
        std::mem::take(&mut self.plan.lock().made)
    }

    pub(crate) fn verbs(&self) -> Vec<&'static str> {
        self.made().iter().map(|made| made.verb).collect()
    }

    /// Returns the maximum number of concurrent requests.
    pub(crate) fn most(&self) -> usize {
        self.plan.lock().most
    }

    fn request<T: Send + 'static>(
        &self,
        verb: &'static str,
        name: &str,
        request: impl FnOnce(&dyn Api) -> BoxFuture<'static, Result<T, ApiError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, ApiError>> {
        let (inner, plan, name) = (self.inner.clone(), self.plan.clone(), name.to_owned());
        async move {
            let (fault, latency) = {
                let mut plan = plan.lock();
                plan.made.push(Made { verb, name });
                plan.under_way += 1;
                plan.most = plan.most.max(plan.under_way);
                let refused = plan.refused.iter().find(|(other, _)| *other == verb);
                let fault = match (plan.is_unreachable, refused) {
                    (true, _) => Fault::Unsent(is_unreachable()),
                    (false, Some((_, error))) => Fault::Unsent(error.clone()),
                    (false, None) => plan.next.pop_front().unwrap_or(Fault::None),
                };
                (fault, plan.latency)
            };
            let _ends = Ends(plan);
            sleep(latency).await;
            match fault {
                Fault::None => request(&*inner).await,
                Fault::Unsent(error) => Err(error),
                Fault::LostAnswer => {
                    drop(request(&*inner).await);
                    Err(is_unreachable())
                }
                Fault::Hangs => std::future::pending().await,
            }
        }
        .boxed()
    }
}

struct Ends(Arc<Mutex<Plan>>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
    }
}

fn name_of(object: &Bytes) -> String {
    let object: serde_json::Value = serde_json::from_slice(object).unwrap();
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

type Answer<T> = BoxFuture<'static, Result<T, ApiError>>;

impl Api for Faulty {
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes> {
        let key = key.clone();
        self.request("get", &key.name.clone(), move |api| api.get(kind, &key))
    }

    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.request("create", &name_of(&object), move |api| api.create(kind, object))
    }

    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.request("update", &name_of(&object), move |api| api.update(kind, object))
    }

    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.request("update/status", &name_of(&object), move |api| api.update_status(kind, object))
    }

    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes> {
        let key = key.clone();
        self.request("patch", &key.name.clone(), move |api| api.patch(kind, &key, status, patch))
    }

    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()> {
        let key = key.clone();
        self.request("delete", &key.name.clone(), move |api| api.delete(kind, &key, only_if))
    }
}
