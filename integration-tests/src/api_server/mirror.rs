//! A watch of which a test awaits the events one by one.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_types::testing::Reader;
use k8s_types::{SourceError, WatchEvent};
use serde_json::Value;

/// Limit of the wait for an event.
const LIMIT: Duration = Duration::from_secs(120);

/// A watch of one namespace, and the objects by its events.
pub(super) struct Mirror {
    events: BoxStream<'static, Result<WatchEvent, SourceError>>,
    reader: Reader,
}

impl Mirror {
    pub(super) fn of(events: BoxStream<'static, Result<WatchEvent, SourceError>>) -> Mirror {
        Mirror { events, reader: Reader::default() }
    }

    /// Returns the object of this name.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.objects().find(|object| object["metadata"]["name"] == name)
    }

    /// Returns all objects.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Value> {
        self.reader.objects().values()
    }

    /// Waits for the first list.
    pub(super) async fn listed(&mut self) {
        assert_eq!(self.next().await, "restart");
        while self.next().await != "listed" {}
    }

    /// Waits until the objects satisfy the condition.
    pub(super) async fn until(&mut self, is_so: impl Fn(&Mirror) -> bool) {
        while !self.reader.is_complete() || !is_so(self) {
            self.next().await;
        }
    }

    /// Waits for the next event about objects. Errors are skipped: sources report them and continue with events.
    pub(super) async fn next(&mut self) -> String {
        let said = async {
            loop {
                let event = self.events.next().await.expect("a watch never ends");
                if let Some(said) = self.reader.apply(event) {
                    return said;
                }
            }
        };
        tokio::time::timeout(LIMIT, said).await.expect("the watch says nothing")
    }
}
