//! The source of an API server's objects.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hive::Health;
use k8s_types::{Kind, Selection, Source, SourceError, WatchEvent};

use crate::definitions::Definitions;
use crate::follow::Follow;
use crate::link::Link;
use crate::metrics::{WatchState, Watches};
use crate::target::Target;
use crate::watch_timeouts::WatchTimeouts;

/// The name of the source, which is part of job names.
pub(crate) const NAME: &str = "daemon-k8s";

/// The source; empty without a server.
pub(crate) struct ApiServer(pub(crate) Option<Connection>);

/// Dependencies of watches.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) link: Arc<Link>,
    pub(crate) definitions: Definitions,
    pub(crate) watches: Watches,
    pub(crate) timeouts: WatchTimeouts,
    pub(crate) health: Health,
}

impl Connection {
    /// Returns a watch of objects.
    pub(crate) fn follow(&self, target: Target) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        let health = self.health.child(&target.scope());
        health.ok("Waits for the list");
        let state = Arc::new(WatchState::new(&target));
        self.watches.add(&state);
        Follow::new(self.link.clone(), target, self.definitions.clone(), self.timeouts, state, health)
            .stream()
    }
}

impl Source for ApiServer {
    fn name(&self) -> &str {
        NAME
    }

    fn has(&self, _kind: Kind) -> bool {
        self.0.is_some()
    }

    fn reports_errors(&self) -> bool {
        true
    }

    fn watch(&self, selection: Selection) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        match &self.0 {
            Some(connection) => connection.follow(Target::of(&selection)),
            None => stream::pending().boxed(),
        }
    }
}
