//! The job that follows the secrets of a source.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::{self, select_all};
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};
use hive::JobCx;
use hive::health::{SHOWN, summarize};
use k8s_tables::{ObjectEvent, Row};
use k8s_types::core::Secret as Object;
use k8s_types::{Resource as _, Selection, Source, SourceError};

use super::secret::Secret;
use super::store::{Scope, Secrets, Store};

type Event = Result<ObjectEvent<Row<Object>>, SourceError>;

/// A selection that is followed.
struct Following {
    events: BoxStream<'static, Event>,
    /// Those of a list that is not complete yet: the former ones stay in the store meanwhile.
    secrets: Secrets,
    is_listing: bool,
    error: Option<SourceError>,
}

impl Following {
    fn new(source: &dyn Source, scope: &Scope) -> Following {
        let selection = Selection::all(Object::KIND).in_namespace(&scope.namespace);
        let selection = match &scope.name {
            Some(name) => selection.named(name),
            None => selection,
        };
        let events = k8s_tables::events::<Object>(source, selection).boxed();
        Following { events, secrets: Secrets::new(), is_listing: true, error: None }
    }

    /// Applies an event. Returns whether the secrets are all.
    fn apply(&mut self, scope: &Scope, event: Option<Event>) -> bool {
        match event {
            None => self.events = stream::pending().boxed(),
            Some(Err(error)) => {
                self.error = Some(error);
                return false;
            }
            Some(Ok(event)) => {
                self.error = None;
                self.read(scope, event);
            }
        }
        !self.is_listing
    }

    fn read(&mut self, scope: &Scope, event: ObjectEvent<Row<Object>>) {
        match event {
            ObjectEvent::Restart => {
                self.secrets.clear();
                self.is_listing = true;
            }
            ObjectEvent::Listed => self.is_listing = false,
            ObjectEvent::Applied(object) => {
                let name: Arc<str> = object.metadata.name.as_str().into();
                match Secret::decode(&object) {
                    Ok(secret) => {
                        if scope.name.is_none()
                            && let Err(fault) = secret.resource(&name)
                        {
                            let namespace = &scope.namespace;
                            tracing::info!(%namespace, secret = %name, %fault, "Envoy does not get a secret by SDS");
                        }
                        self.secrets.insert(name, Arc::new(secret));
                    }
                    Err(fault) => {
                        tracing::warn!(namespace = %scope.namespace, secret = %name, %fault, "A secret is not valid");
                        self.secrets.remove(&name);
                    }
                }
            }
            ObjectEvent::Deleted(key) => _ = self.secrets.remove(key.name.as_str()),
            ObjectEvent::Invalid(_) | ObjectEvent::Progress => {}
        }
    }
}

/// Follows the selections of the store in a source.
pub(crate) async fn follow(
    store: Store,
    number: usize,
    source: Arc<dyn Source>,
    cx: JobCx,
) -> anyhow::Result<()> {
    let mut scopes = store.scopes();
    let mut all: BTreeMap<Scope, Following> = BTreeMap::new();
    loop {
        let wanted = scopes.borrow_and_update().clone();
        let unwanted = all.keys().filter(|scope| !wanted.contains(scope));
        for scope in unwanted.cloned().collect::<Vec<_>>() {
            all.remove(&scope);
            store.set(&scope, number, None);
        }
        for scope in wanted {
            all.entry(scope).or_insert_with_key(|scope| Following::new(&*source, scope));
        }
        report(&all, &cx);
        let (scope, event) = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            _ = scopes.changed() => continue,
            next = next(&mut all) => next,
        };
        if let Some(following) = all.get_mut(&scope)
            && following.apply(&scope, event)
        {
            store.set(&scope, number, Some(following.secrets.clone()));
        }
    }
}

/// Returns the next event, with its selection.
async fn next(all: &mut BTreeMap<Scope, Following>) -> (Scope, Option<Event>) {
    if all.is_empty() {
        return future::pending().await;
    }
    let events = all.iter_mut().map(|(scope, following)| {
        let next = following.events.next();
        next.map(|event| (scope.clone(), event)).boxed()
    });
    select_all(events).await.0
}

fn report(all: &BTreeMap<Scope, Following>, cx: &JobCx) {
    let errors = all.iter().filter_map(|(scope, following)| {
        let error = following.error.as_ref()?;
        let name = scope.name.as_deref().map(|name| format!("/{name}")).unwrap_or_default();
        Some(format!("{}{name}: {error}", scope.namespace))
    });
    let errors = summarize(errors, SHOWN, "; ");
    if errors.is_empty() {
        let count: usize = all.values().map(|following| following.secrets.len()).sum();
        cx.health.ok(format_args!("{count} secrets"));
    } else {
        cx.health.degraded("Secrets cannot be followed, the former ones stay", errors);
    }
}
